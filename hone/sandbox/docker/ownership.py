"""Whose a container is: the labels that tell it, and which containers of an engine nobody owns any more.

The rule that must not break: nothing of an owner that lives, or that cannot be judged from here, is touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from hone.sandbox.docker.engine import OWNER_LABEL, Owned
from hone.sandbox.owners import is_dead

LEASE_LABEL = "hone.lease"  # the sandbox's name under its owner
_RUN_LABEL = "hone.run"
_BOOT_LABEL = "hone.boot"  # the running kernel of the owner's machine


def labels(owner: str, sandbox: str, run: str) -> dict[str, str]:
    """The labels of one sandbox's container."""
    return {OWNER_LABEL: owner, _BOOT_LABEL: _boot(), LEASE_LABEL: sandbox, _RUN_LABEL: run}


def owned_by(owner: str, containers: Iterable[Owned]) -> list[str]:
    """Ids of one owner's containers."""
    return [one.id for one in containers if one.labels[OWNER_LABEL] == owner]


def orphans(containers: Iterable[Owned]) -> list[str]:
    """Ids of the containers whose owner is known to be dead."""
    return [one.id for one in containers if _is_orphan(one.labels)]


def _is_orphan(labels: Mapping[str, str]) -> bool:
    """An owner is judged on its own machine only, since process ids mean nothing elsewhere."""
    return labels.get(_BOOT_LABEL) == _boot() and is_dead(labels[OWNER_LABEL])


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
