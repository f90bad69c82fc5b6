"""The plug-in `hone-verifiers` of verifiers, which finds plug-ins by the name of a top-level module."""

from hone.integrations.verifiers import HoneEnv, HoneHarness, HoneTaskset

__all__ = ["HoneEnv", "HoneHarness", "HoneTaskset"]
