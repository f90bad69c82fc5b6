"""Environments of a user's own Python repository: resolved once and installed once, with uv.

`lock` resolves the requirements of a tree's tests; `install` puts them into a directory that sandboxes mount
read-only at SITE_TARGET. The repository's own sources are never installed: tests import them from the tree,
with the changes of the agent.
"""

from hone.tasks.python.interpreters import Interpreter, find_interpreter, find_interpreters
from hone.tasks.python.locking import Locked, lock
from hone.tasks.python.specified import lock_specified
from hone.tasks.python.tool import SITE_TARGET, install

__all__ = [
    "SITE_TARGET",
    "Interpreter",
    "Locked",
    "find_interpreter",
    "find_interpreters",
    "install",
    "lock",
    "lock_specified",
]
