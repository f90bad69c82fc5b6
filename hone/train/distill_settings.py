"""Settings of on-policy distillation."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from hone.policy.settings import ExactEngineSettings, LocalEngineSettings, ModelSettings
from hone.settings import Mark, Settings


class DistillSettings(Settings):
    """On-policy distillation: a teacher model scores every token of the policy's own rollouts, and the policy
    becomes more like it (arXiv:2306.13649)."""

    enabled: bool = False
    """Score rollouts by the teacher."""

    model: ModelSettings | None = None
    """The teacher's model; its tokenizer must have the vocabulary of the policy's. Required."""

    engine: ExactEngineSettings = LocalEngineSettings(context_tokens=16384)
    """The teacher's engine, never the policy's; `local` computes on the CPU. Its context is longer than the
    policy's."""

    coefficient: float = Field(default=1.0, gt=0)
    """Advantage of a token per nat by which the teacher finds it likelier than the policy did."""

    outcome_reward: bool = False
    """Add the teacher's advantages to those of `train.algorithm`; false: train on the teacher's alone."""

    concurrency: Annotated[int, Mark.SAME_RESULTS] = Field(default=32, ge=1)
    """Maximum concurrent requests to the teacher's engine."""

    timeout_s: Annotated[float, Mark.SAME_RESULTS] = Field(default=600.0, gt=0)
    """Time limit for the scores of one conversation, in seconds; a request that exceeds it, or fails, is
    repeated as `rollout.attempts` says."""

    @model_validator(mode="after")
    def _whole_or_off(self) -> Self:
        if not self.enabled:
            given = [name for name in type(self).model_fields if getattr(self, name) != _DEFAULTS[name]]
            if given:
                raise ValueError(
                    f"train.distill.{given[0]} has no effect while train.distill.enabled is false: remove "
                    "it, or set train.distill.enabled = true"
                )
            return self
        if self.model is None:
            raise ValueError(
                "train.distill.model.path is missing: set it to the teacher's folder, or to a hub's model"
            )
        return self


_DEFAULTS = {name: field.default for name, field in DistillSettings.model_fields.items()}
