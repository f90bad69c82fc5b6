"""The model of a run: its shape and its name."""

from __future__ import annotations

from hone.config.fields import ConfigError
from hone.config.run import Command, RunSettings
from hone.config.shapes import Shape, known_shape, model_shape, tiny_shape
from hone.policy.hub import cached_model
from hone.policy.settings import OpenAIEngineSettings


def policy_shape(settings: RunSettings, command: Command) -> tuple[Shape | None, str]:
    """Return the shape of the policy's model, None if the run has none, and its description.

    Raises ConfigError if the recipe names no model, or one that cannot be read.
    """
    if not uses_policy(settings, command):
        return None, f"none: the agent is {settings.agent.kind}"
    if isinstance(settings.engine, OpenAIEngineSettings):
        at = f" at {settings.engine.urls[0]}" if command == "eval" else ""
        return None, f"{settings.engine.model_name}{at}"
    if settings.model is None and (command == "quickstart" or settings.makes_model):
        return tiny_shape(settings.tiny_model), "created by the run"
    if settings.model is None:
        raise ConfigError("model.path is missing: set it in the recipe, or with --set model.path=FOLDER")
    name = str(settings.model.path)
    known = None if cached_model(settings.model) else known_shape(name)
    return known or model_shape(settings.model), name


def uses_policy(settings: RunSettings, command: Command) -> bool:
    """Return whether the command uses a policy."""
    return command != "eval" or settings.agent.uses_policy
