"""What a service of the Tinker API cannot honour of the settings of a learner."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hone.train.settings import LearnerSettings

ALL_LINEAR = "all-linear"  # the target of adapters that names every linear layer but the head
TINKER_ALPHA = 32.0  # of a service's adapters, for which it has no setting


def tinker_problem(settings: LearnerSettings) -> str | None:
    """Return why a service cannot train with these settings, and what to do; None: it can."""
    lora, memory = settings.lora, settings.memory
    if lora is None or lora.alpha != TINKER_ALPHA or lora.targets != (ALL_LINEAR,):
        return (
            f"a Tinker service trains adapters of all linear layers with alpha {TINKER_ALPHA:g}, and no "
            f'others: set lora to a rank with alpha = {TINKER_ALPHA:g} and targets = ["{ALL_LINEAR}"]'
        )
    if memory != type(memory)() or settings.tree not in ("auto", "off"):
        return (
            "memory and tree have no effect at a Tinker service, which packs and computes rows as it likes: "
            "remove them"
        )
    return None
