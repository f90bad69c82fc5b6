"""Errors of preparing a task's environment and of handling patches in it."""

from __future__ import annotations

from hone.sandbox.contract import SandboxLost


class EnvironmentFailed(Exception):
    """The environment cannot be prepared, and no patch caused that: an infrastructure failure."""


class BrokenTree(SandboxLost):
    """The agent left a tree that git cannot turn into a patch; its sandbox is unusable."""


class PatchRefused(Exception):
    """The patch is malformed or reaches outside the repository; it is not applied."""
