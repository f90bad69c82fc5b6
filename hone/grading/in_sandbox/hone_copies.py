"""Watch each copy of unittest that a test process imports, without importing one.

pytest before 7.2 imports no unittest, so a process has none until a test needs it. Tests of pytest and of
its plug-ins run sessions in their own process, and unload what these import. A copy that the runner had
imported would stay for all of them, with everything that one session leaves in its classes.
"""

import importlib.util
import os
import sys
import types
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, Callable, Iterator, List, Optional, Tuple

from hone_integrity import Snapshot, snapshots  # beside this file

PARTS = frozenset(
    "unittest" + part
    for part in (
        "", ".async_case", ".case", ".loader", ".main", ".result", ".runner", ".signals", ".suite", ".util",
    )
)  # fmt: skip
_SPEC = importlib.util.find_spec("unittest")  # before any code of the repository runs
_FOLDER = os.path.dirname(os.path.dirname(_SPEC.origin)) if _SPEC is not None and _SPEC.origin else ""


class Copies:
    """A finder of unittest's own modules, from the standard library, whatever the repository holds.

    The `assertEqual` of each copy uses `equality`.
    """

    def __init__(self, equality: "Callable[[Any, Any], Any]") -> None:
        self.equality = equality
        self.found: List[Tuple[types.ModuleType, List[Snapshot]]] = []
        self.kept = 0  # of `found`: imported before the first test ran

    def install(self) -> None:
        """Check the copy that is imported, and those to come."""
        if "unittest.case" in sys.modules:
            self.check_equality(sys.modules["unittest.case"])
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> "Optional[ModuleSpec]":
        if name not in PARTS:
            return None
        spec = PathFinder.find_spec(name, [_FOLDER] if name == "unittest" else path)
        if spec is not None and spec.loader is not None:
            spec.loader = Loader(spec.loader, self)  # type: ignore[assignment]
        return spec

    def add(self, module: types.ModuleType) -> None:
        """Record a module that was imported."""
        if module.__name__ == "unittest.case":
            self.check_equality(module)
        self.found.append((module, list(snapshots(module.__name__, module))))

    def check_equality(self, module: Any) -> None:
        """Make the `assertEqual` of a copy of unittest.case use the checked equality."""
        assert_equal, equality = module.TestCase.assertEqual, self.equality

        def assertEqual(self: Any, first: Any, second: Any, msg: Any = None) -> None:
            assert_equal(self, first, second, msg)
            equality(first, second)

        module.TestCase.assertEqual = assertEqual

    def keep(self) -> None:
        """Watch the present copies until the end: the tests that were collected may use them."""
        self.kept = len(self.found)

    def snapshots(self) -> "Iterator[Snapshot]":
        """Yield the snapshots of all copies, except those that a test imported and unloaded again."""
        self.found[self.kept :] = [
            (module, found)
            for module, found in self.found[self.kept :]
            if sys.modules.get(module.__name__) is module
        ]
        for _, found in self.found:
            yield from found


class Loader:
    """Load a module with its own loader, and record it."""

    def __init__(self, loader: Any, copies: Copies) -> None:
        self.loader, self.copies = loader, copies

    def create_module(self, spec: ModuleSpec) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        self.copies.add(module)
