"""What every provider has to pass: one check per promise of the contract, each named as a sentence.

    for check in CHECKS:
        await check(provider)      # raises AssertionError, or whatever the provider raised

A check starts its own sandboxes through the open provider it is given and closes them. Checks need `bash`,
`git`, `python3` with pytest and the core utilities in image `host`.
"""

from hone.sandbox.conformance import commands, endings, files, isolation, transfers, tunnels
from hone.sandbox.conformance.registry import CHECKS, Check

__all__ = ["CHECKS", "Check", "commands", "endings", "files", "isolation", "transfers", "tunnels"]
