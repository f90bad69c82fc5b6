"""Detect, inside the test process, code under test that changes the framework or equals everything.

An attacker in the same interpreter who knows this file can undo it. It is the second line of defence; the
first requires a session that ran to its end, without contradictions, with its canaries failed.
"""

from __future__ import annotations

import builtins
import sys
import types
import unittest
from typing import Any, Callable, Iterator, Mapping, Tuple

EQUAL = "@hone_equal"  # no source text can spell this name

Entry = Tuple[str, Mapping[str, Any], str, Any, Any]  # owner, namespace, name, value, its code

_WRAPPER = type(object.__eq__)
_CORE = (
    "_pytest.runner",
    "_pytest.python",
    "_pytest.reports",
    "_pytest.outcomes",
    "_pytest.skipping",
    "pluggy",
)
_FRAMEWORK = (
    "_pytest",
    "pytest",
    "pluggy",
    "unittest",
    "hone_session",
    "hone_integrity",
    "hone_names",
    "hone_excuses",
)
_WATCHED = (types.FunctionType, types.BuiltinFunctionType, staticmethod, classmethod, property, type)


class Watch:
    """Record the test framework's functions, classes and hooks, and report changes."""

    def __init__(self, plugins: Any, helpers: list[Entry]) -> None:
        self.plugins, self.known = plugins, list(plugins.get_plugins())
        self.helpers = helpers  # functions of the tests; it grows
        self.core: list[Entry] = []
        self.rest: list[Entry] = [
            ("builtins", vars(builtins), name, value, code) for name, value, code in _watched(vars(builtins))
        ]
        for name, module in list(sys.modules.items()):
            if name.split(".")[0] in _FRAMEWORK:
                (self.core if name.startswith(_CORE) else self.rest).extend(_entries(name, module))
        callers = [caller for caller in vars(plugins.hook).values() if hasattr(caller, "get_hookimpls")]
        self.hooks = [(hook, hook.function) for caller in callers for hook in caller.get_hookimpls()]
        self.call = plugins._inner_hookexec

    def changed(self, *, thorough: bool) -> str | None:
        """Return the name of a replaced part, or None.

        Args:
            thorough: also check builtins, unittest and the set of plugins, which a test may patch while it
                runs and must restore.
        """
        for entries in (self.core, self.rest, self.helpers) if thorough else (self.core,):
            for where, namespace, name, value, code in entries:
                if namespace.get(name) is not value or (code is not None and value.__code__ is not code):
                    return f"{where}.{name}"
        if self.plugins._inner_hookexec is not self.call:
            return "the plugin manager's call"
        for hook, function in self.hooks:
            if hook.function is not function:
                return f"a hook of {hook.plugin_name}"
        return self.new_plugin() if thorough else None

    def new_plugin(self) -> str | None:
        known = set(map(id, self.known))
        for plugin in self.plugins.get_plugins():
            own = type(plugin).__module__.split(".")[0] == "_pytest"  # pytest adds some during the run
            if id(plugin) not in known and not own and not _is_conftest(plugin):
                return f"the set of plugins, by adding {type(plugin).__name__}"
        return None


def _entries(where: str, module: types.ModuleType) -> Iterator[Entry]:
    for name, value, code in _watched(vars(module)):
        yield where, vars(module), name, value, code
        if isinstance(value, type) and value.__module__ == where:
            for inner, method, inner_code in _watched(vars(value)):
                yield f"{where}.{name}", vars(value), inner, method, inner_code


def _watched(namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name, value in list(namespace.items()):
        if isinstance(value, _WATCHED):
            yield name, value, value.__code__ if isinstance(value, types.FunctionType) else None


def _is_conftest(plugin: object) -> bool:
    return isinstance(plugin, types.ModuleType) and str(getattr(plugin, "__file__", "")).endswith(
        "/conftest.py"
    )


def checked_equality(
    report: Callable[[str], None], is_honest: Callable[[type, str], bool]
) -> Callable[[Any, Any], Any]:
    """Return `a == b` for assertions; it calls `report` when one of the values equals everything.

    Args:
        is_honest: (class, file that its equality was compiled from) -> whether it may equal everything.
    """

    def equal(a: Any, b: Any) -> Any:
        result = a == b
        try:
            holds = bool(result)
        except Exception:
            return result  # an array has no truth value
        if holds:
            for liar in (_liar(a, b, 4), _liar(b, a, 4)):
                if liar is not None and not is_honest(liar, _file_of(liar)):
                    report(f"an object of class {liar.__name__} is equal to everything")
        return result

    return equal


def _liar(value: Any, other: Any, depth: int) -> type | None:
    """Return the class of an object in `value` whose own `__eq__` also accepts a value unlike `other`."""
    cls = type(value)
    if _own_equality(cls):
        for unlike in (_unlike(other), object()):
            try:
                accepted = bool(value == unlike)
            except Exception:
                return None  # it distinguishes values, by failing
            if not accepted:
                return None
        return cls
    if depth and isinstance(value, (list, tuple, set, frozenset, dict)):
        inside = value.values() if isinstance(value, dict) else value
        for _, element in zip(range(1000), inside):
            found = _liar(element, None, depth - 1)
            if found is not None:
                return found
    return None


def check_unittest(equality: Callable[[Any, Any], Any]) -> None:
    """Make unittest's `assertEqual` use the checked equality."""
    assert_equal = unittest.TestCase.assertEqual

    def assertEqual(self: Any, first: Any, second: Any, msg: Any = None) -> None:
        assert_equal(self, first, second, msg)
        equality(first, second)

    unittest.TestCase.assertEqual = assertEqual


def _file_of(cls: type) -> str:
    """Return the file that a class's equality was compiled from; "" for a built-in one."""
    for base in type.__getattribute__(cls, "__mro__"):
        found = type.__getattribute__(base, "__dict__").get("__eq__")
        if found is not None:
            return getattr(getattr(found, "__code__", None), "co_filename", "")
    return ""


def _own_equality(cls: type) -> bool:
    """Return whether a class defines its own equality; bypasses a metaclass that hides it."""
    for base in type.__getattribute__(cls, "__mro__"):
        found = type.__getattribute__(base, "__dict__").get("__eq__")
        if found is not None:
            return type(found) is not _WRAPPER or found.__name__ != "__eq__"
    return False


def _unlike(value: Any) -> Any:
    """Return a value that no honest object equals if it equals `value`."""
    if type(value) is bool:
        return not value
    if type(value) in (int, float, complex):
        return value + 1
    if type(value) is str:
        return value + "?"
    if type(value) in (list, tuple):
        return type(value)([*value, 0])
    return object()
