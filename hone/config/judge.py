"""Settings that run the judge like a policy."""

from __future__ import annotations

from hone.config.run import RunSettings
from hone.policy.settings import SamplingSettings


def as_policy(settings: RunSettings) -> RunSettings:
    """Return the settings with the judge's model, engine and sampling instead of the policy's.

    A judge without its own model uses the model that training starts from.
    """
    judge = settings.judge
    return settings.model_copy(
        update={
            "model": judge.model or settings.model,
            "makes_model": settings.makes_model and judge.model is None,
            "engine": judge.engine,
            "sampling": SamplingSettings(temperature=judge.temperature, max_tokens=judge.max_tokens),
            "run_dir": settings.run_dir / "judge",
        }
    )
