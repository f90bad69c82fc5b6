"""Conformance checks: one for each promise of the contract, named as a sentence.

    for check in CHECKS:
        await check(provider)      # raises AssertionError, or the provider's error; pytest.skip.Exception

A check starts its own sandboxes with the open provider that it is given, and closes them. Checks need `bash`,
`git`, `python3` with pytest and the core utilities in image `host`.
"""

from hone.sandbox.conformance import commands, endings, files, isolation, transfers, tunnels
from hone.sandbox.conformance.suite import CHECKS, Check

__all__ = ["CHECKS", "Check", "commands", "endings", "files", "isolation", "transfers", "tunnels"]
