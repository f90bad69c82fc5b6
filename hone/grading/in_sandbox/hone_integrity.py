"""Detect, inside the test process, code under test that changes the framework or equals everything.

An attacker in the same interpreter who knows this file can undo it. It is the second line of defence; the
first requires a session that ran to its end, without contradictions, with its canaries failed.
"""

import builtins
import types
from operator import attrgetter, is_
from typing import Any, Callable, ContextManager, Iterable, Iterator, Mapping, Sequence

EQUAL = "@hone_equal"  # no source text can spell this name

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
    "hone_trusted",
    "hone_suites",
    "hone_unittest",
    "hone_sympy",
    "hone_pytest",
    "hone_integrity",
    "hone_copies",
    "hone_names",
    "hone_excuses",
)
_code_of = attrgetter("__code__")
_WATCHED = (types.FunctionType, types.BuiltinFunctionType, staticmethod, classmethod, property, type)


class Snapshot:
    """Values in a namespace, and the code of those that are functions, as they are now."""

    def __init__(self, owner: str, namespace: "Mapping[str, Any]", values: "Mapping[str, Any]") -> None:
        self.owner, self.namespace = owner, namespace
        self.names, self.values = tuple(values), tuple(values.values())
        self.functions = [value for value in self.values if type(value) is types.FunctionType]
        self.codes = [function.__code__ for function in self.functions]

    def changed(self) -> "str | None":
        """Return the name of a value that was replaced, or None."""
        found = map(self.namespace.get, self.names)
        if all(map(is_, found, self.values)) and all(map(is_, map(_code_of, self.functions), self.codes)):
            return None
        for name, value in zip(self.names, self.values):
            if self.namespace.get(name) is not value:
                return f"{self.owner}.{name}"
        return f"the code of a function in {self.owner}"


class Watch:
    """Record the test framework's functions, classes and hooks, and report changes.

    Args:
        plugins: pytest's plugin manager; None without pytest.
        hooks: the implementations that are registered.
        helpers: snapshots of the modules of the tests; it grows.
        copies: yields those of unittest's modules that were imported since; see `hone_copies`.
        modules: by name; those of the framework are recorded.
        core: beginnings of those that no test may change, not even while it runs.
    """

    def __init__(
        self,
        plugins: Any,
        hooks: "Iterable[Any]",
        helpers: "Mapping[int, Snapshot]",
        copies: "Callable[[], Iterable[Snapshot]]",
        modules: "Mapping[str, types.ModuleType]",
        core: "Sequence[str]" = _CORE,
    ) -> None:
        self.plugins, self.known = plugins, list(plugins.get_plugins()) if plugins else []
        self.helpers, self.copies = helpers, copies
        self.core: list[Snapshot] = []
        self.rest = [Snapshot("builtins", vars(builtins), _watched(vars(builtins)))]
        for name, module in modules.items():
            if name.split(".")[0] in _FRAMEWORK:
                (self.core if name.startswith(tuple(core)) else self.rest).extend(snapshots(name, module))
        self.hooks = [(hook, hook.function) for hook in hooks]
        self.call = plugins._inner_hookexec if plugins else None

    def changed(self, *, thorough: bool) -> "str | None":
        """Return the name of a replaced part, or None.

        Args:
            thorough: also check builtins, unittest and the set of plugins, which a test may patch while it
                runs and must restore.
        """
        every = (self.core, self.rest, self.helpers.values(), self.copies()) if thorough else (self.core,)
        for part in every:
            for snapshot in part:
                changed = snapshot.changed()
                if changed is not None:
                    return changed
        if self.plugins is None:
            return None
        if self.plugins._inner_hookexec is not self.call:
            return "the plugin manager's call"
        for hook, function in self.hooks:
            if hook.function is not function:
                return f"a hook of {hook.plugin_name}"
        return self.new_plugin() if thorough else None

    def new_plugin(self) -> "str | None":
        known = set(map(id, self.known))
        for plugin in self.plugins.get_plugins():
            own = type(plugin).__module__.split(".")[0] == "_pytest"  # pytest adds some during the run
            if id(plugin) not in known and not own and not _is_conftest(plugin):
                return f"the set of plugins, by adding {type(plugin).__name__}"
        return None


def snapshots(where: str, module: types.ModuleType) -> "Iterator[Snapshot]":
    """Yield snapshots of a module and of its classes."""
    watched = _watched(vars(module))
    yield Snapshot(where, vars(module), watched)
    for name, value in watched.items():
        if isinstance(value, type) and value.__module__ == where:
            yield Snapshot(f"{where}.{name}", vars(value), _watched(vars(value)))


def _watched(namespace: "Mapping[str, Any]") -> "dict[str, Any]":
    return {name: value for name, value in list(namespace.items()) if isinstance(value, _WATCHED)}


def _is_conftest(plugin: object) -> bool:
    return isinstance(plugin, types.ModuleType) and str(getattr(plugin, "__file__", "")).endswith(
        "/conftest.py"
    )


def checked_equality(
    report: "Callable[[str], None]",
    is_honest: "Callable[[type, str], bool]",
    own_code: "Callable[[], ContextManager[None]]",
) -> "Callable[[Any, Any], Any]":
    """Return `a == b` for assertions; it calls `report` when one of the values equals everything.

    Args:
        is_honest: (class, file that its equality was compiled from) -> whether it may equal everything.
        own_code: a context for code of the runner.
    """

    def equal(a: Any, b: Any) -> Any:
        result = a == b
        try:
            holds = bool(result)
        except Exception:
            return result  # an array has no truth value
        if holds:
            with own_code():
                for liar in (_liar(a, b, 4), _liar(b, a, 4)):
                    if liar is not None and not is_honest(liar, _file_of(liar)):
                        report(f"an object of class {liar.__name__} is equal to everything")
        return result

    return equal


def _liar(value: Any, other: Any, depth: int) -> "type | None":
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
