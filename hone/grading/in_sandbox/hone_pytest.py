"""What the trusted runner needs of pytest, in every version that environments hold: 3.3 to 9.

    3.3 and 3.4  no option sets the root directory
    3.3 to 3.5   marks are found among the keywords of a test; the module of marks has no parts
    3.3 to 3.7   no variable turns the loading of all installed plugins off
    3.3 to 5.3   nodes are made by calling their class
    3.3 to 6     hooks and nodes have `py.path` objects
    7 and later  they have `pathlib` objects, and pytest tells its version as numbers

Older versions are refused: no supported data set pins one, and none is tested. Features decide where they
can, not the version: a repository's own pytest may have any.
"""

import re
from pathlib import Path
from typing import Any, Iterator, List, Tuple

import _pytest.hookspec
import _pytest.runner
import pytest
from _pytest.assertion import rewrite

try:
    from _pytest.mark.structures import get_unpacked_marks
except ImportError:
    from _pytest.mark import get_unpacked_marks  # pyright: ignore[reportAttributeAccessIssue]

__all__ = ["get_unpacked_marks"]

OLDEST = (3, 3)
TestReport: Any = vars(_pytest.runner)["TestReport"]
_MAKE_MODULE: Any = _pytest.hookspec.pytest_pycollect_makemodule
HAS_PATHLIB = "module_path" in _MAKE_MODULE.__code__.co_varnames
_REWRITES_SOURCE = "source" in rewrite.rewrite_asserts.__code__.co_varnames


def version() -> "Tuple[int, ...]":
    return tuple(map(int, re.findall(r"\d+", pytest.__version__)[:2]))


def make_module(cls: type, parent: Any, path: str) -> Any:
    """Return a node for a test module."""
    if HAS_PATHLIB:
        return cls.from_parent(parent, path=Path(path))  # type: ignore[attr-defined]
    local = type(parent.session.fspath)(path)  # a `py.path.local`, which pytest 7 does not need
    from_parent = getattr(cls, "from_parent", None)
    return cls(local, parent) if from_parent is None else from_parent(parent, fspath=local)


def path_of(node: Any) -> str:
    return str(node.path if HAS_PATHLIB else node.fspath)


def marks_named(name: str, item: Any) -> "List[Any]":
    """Return the marks of a test, its class, its module and its parameters."""
    if hasattr(item, "iter_markers"):
        return list(item.iter_markers(name))
    found = item.keywords.get(name)
    return list(getattr(found, "_marks", [] if found is None else [found]))


def hook_implementations(plugins: Any) -> "Iterator[Any]":
    """Yield the registered implementations of all hooks."""
    for caller in vars(plugins.hook).values():
        if hasattr(caller, "get_hookimpls"):
            yield from caller.get_hookimpls()
        elif hasattr(caller, "_nonwrappers"):  # pluggy before 0.8
            yield from caller._nonwrappers + caller._wrappers


def rewrite_asserts(tree: Any, text: bytes) -> None:
    """Make the assertions of a module show their values when they fail."""
    rewrite.rewrite_asserts(tree, text) if _REWRITES_SOURCE else rewrite.rewrite_asserts(tree)  # type: ignore


def set_root(workdir: str) -> "List[str]":
    """Return the arguments that make a directory the one to which test ids are relative."""
    if version() >= (3, 5) or HAS_PATHLIB:
        return ["--rootdir", workdir]
    import _pytest.config

    config: Any = _pytest.config
    find = config.determine_setup

    def determine_setup(*arguments: Any, **named: Any) -> Any:
        root, *rest = find(*arguments, **named)
        return (type(root)(workdir), *rest)

    config.determine_setup = determine_setup
    return []


def load_named_plugins_only() -> None:
    """Keep pytest from loading installed plugins that no argument names."""
    if not HAS_PATHLIB:
        import pluggy

        pluggy.PluginManager.load_setuptools_entrypoints = lambda *_, **__: 0  # type: ignore[method-assign]
