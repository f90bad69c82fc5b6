"""Detects, from within the test process, code under test that changes the test framework or answers to everything.

An attacker in the same interpreter who knows this file can undo it. It is the second line: the first is that results
need a session that ran to its end, without contradictions, with its canaries failed.
"""

import builtins
import sys
import types

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
_FRAMEWORK = ("_pytest", "pytest", "pluggy", "unittest", "hone_session", "hone_integrity")
_WATCHED = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    staticmethod,
    classmethod,
    property,
)


class Watch:
    """Remembers the functions, classes and hooks of the test framework, and tells what has changed."""

    def __init__(self, plugins):
        self.plugins, self.known = plugins, set(map(id, plugins.get_plugins()))
        self.kept = list(plugins.get_plugins())  # so that no id is used again
        self.core, self.rest = [], []
        for name, module in list(sys.modules.items()):
            if name.split(".")[0] in _FRAMEWORK:
                entries = list(_entries(name, module))
                (self.core if name.startswith(_CORE) else self.rest).extend(entries)
        self.rest += [("builtins", vars(builtins), *item) for item in _watched(vars(builtins))]
        self.hooks = []
        for impl_owner in vars(plugins.hook).values():
            if hasattr(impl_owner, "get_hookimpls"):
                self.hooks += [(impl, impl.function) for impl in impl_owner.get_hookimpls()]
        self.exec = plugins._inner_hookexec

    def changed(self, thorough):
        """The name of something that was replaced, or None. `thorough` looks at builtins and unittest, too, which

        a test may well patch while it runs and must have restored when it is over.
        """
        for entries in (self.core, self.rest) if thorough else (self.core,):
            for where, namespace, name, value, code in entries:
                if namespace.get(name) is not value or (code and value.__code__ is not code):
                    return "%s.%s" % (where, name)
        if self.plugins._inner_hookexec is not self.exec:
            return "the plugin manager's call"
        for impl, function in self.hooks:
            if impl.function is not function:
                return "the hook %s" % impl.plugin_name
        if thorough:
            for plugin in self.plugins.get_plugins():
                if id(plugin) not in self.known and not _is_conftest(plugin) and not _is_internal(plugin):
                    return "the set of plugins, by adding %s" % type(plugin).__name__
        return None


def _entries(where, module):
    for name, value, code in _watched(vars(module)):
        yield where, vars(module), name, value, code
        if isinstance(value, type) and value.__module__ == where:
            for inner, method, inner_code in _watched(vars(value)):
                yield "%s.%s" % (where, name), vars(value), inner, method, inner_code


def _watched(namespace):
    for name, value in list(namespace.items()):
        if isinstance(value, (type, *_WATCHED)):
            yield name, value, value.__code__ if isinstance(value, types.FunctionType) else None


def _is_conftest(plugin):
    return isinstance(plugin, types.ModuleType) and str(getattr(plugin, "__file__", "")).endswith(
        "/conftest.py"
    )


def _is_internal(plugin):
    """pytest itself registers objects while it runs (a session's fixture manager, a reporter)."""
    return type(plugin).__module__.split(".")[0] == "_pytest"


def checked_equality(report):
    """`a == b` for assertions. Calls `report` when it holds only because one of them is equal to everything."""

    def equal(a, b):
        result = a == b
        try:
            if not result:
                return result
        except Exception:
            return result  # an array: it has no truth value as a whole
        for one, other in ((a, b), (b, a)):
            liar = _liar(one, other, 4)
            if liar is not None:
                report("an object of class %s is equal to everything" % liar)
        return result

    return equal


def _liar(value, other, depth):
    """The class of an object within `value` whose own `__eq__` also accepts something unlike `other`."""
    cls = type(value)
    if _own_equality(cls):
        for unlike in (_unlike(other), object()):
            try:
                accepted = bool(value == unlike)
            except Exception:
                return None  # it tells values apart, if only by failing
            if not accepted:
                return None
        return cls.__name__
    if depth and isinstance(value, (list, tuple, set, frozenset, dict)):
        inside = value.values() if isinstance(value, dict) else value
        for _, element in zip(range(1000), inside):
            found = _liar(element, None, depth - 1)
            if found is not None:
                return found
    return None


def _own_equality(cls):
    for base in type.__getattribute__(cls, "__mro__"):
        found = type.__getattribute__(base, "__dict__").get("__eq__")
        if found is not None:
            return type(found) is not _WRAPPER or found.__name__ != "__eq__"
    return False


def _unlike(value):
    if type(value) is bool:
        return not value
    if type(value) in (int, float, complex):
        return value + 1
    if type(value) is str:
        return value + "?"
    if type(value) in (list, tuple):
        return type(value)([*value, 0])
    return object()
