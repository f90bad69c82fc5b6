"""The nodes of a file that operators may change.

Excluded: annotations, docstrings, decorators, imports, assertions, messages of errors and logs, `__repr__`,
`if TYPE_CHECKING`, the block of a script, dunder constants, overloads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import libcst as cst
from libcst import matchers as m

from hone.curate.mutation.source import Change, Source, is_text

_SILENT_FUNCTIONS = {"__repr__", "__del__", "__getstate__", "__sizeof__"}
_SILENT_CALLS = {"print", "warn", "debug", "info", "warning", "exception", "log", "getLogger"}
_TYPING_CALLS = {"TypeVar", "NewType", "ParamSpec", "cast", "overload"}
_OPAQUE = (
    cst.Annotation,
    cst.Decorator,
    cst.Import,
    cst.ImportFrom,
    cst.Assert,
    cst.Global,
    cst.Nonlocal,
    cst.Del,
    cst.BaseParenthesizableWhitespace,
    cst.TypeAlias,
)
_OUTSIDE = (  # nodes outside of functions that may contain functions
    cst.ClassDef,
    cst.If,
    cst.Else,
    cst.Try,
    cst.ExceptHandler,
    cst.Finally,
    cst.IndentedBlock,
    cst.SimpleStatementLine,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """A function, or a constant outside of functions."""

    name: str  # qualified, such as "Parser.parse"
    function: cst.FunctionDef | None  # None: a constant
    bound: tuple[tuple[str, int], ...] = ()  # local names, each with the offset where it is bound
    attributes: tuple[str, ...] = ()  # that the class assigns to `self`


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Site:
    """A node in its context."""

    node: cst.CSTNode
    parent: Site | None
    scope: Scope
    block: int | None  # number of the innermost block of a function; None outside of functions
    source: Source

    @property
    def parent_node(self) -> cst.CSTNode | None:
        return self.parent.node if self.parent else None

    def code(self, node: cst.CSTNode) -> str:
        """Return the source text of a node with its parentheses."""
        return self.source.code(node)

    def replace(self, node: cst.CSTNode, text: str) -> Change:
        """Return the change of a node's text."""
        return (self.source.replace(node, text),)

    def replace_inner(self, node: cst.BaseExpression, text: str) -> Change:
        """Return the change of an expression's text; its own parentheses stay."""
        return self.replace(node, f"({text})" if node.lpar else text)

    def remove(self) -> Change:
        """Return the removal of this statement's lines."""
        return (self.source.remove_statement(self.node, self.siblings),)

    def inside(self, *kinds: type[cst.CSTNode]) -> Site | None:
        """Return the nearest enclosing site of these kinds in the same function, or None."""
        site = self.parent
        while site is not None and not isinstance(site.node, kinds):
            if isinstance(site.node, cst.FunctionDef | cst.Lambda):
                return None
            site = site.parent
        return site

    @property
    def siblings(self) -> Sequence[cst.CSTNode]:
        """The statements of the block that holds this statement."""
        block = self.parent_node
        return block.body if isinstance(block, cst.IndentedBlock) else [self.node]

    @property
    def statement(self) -> Site | None:
        """The line of this small statement; None where it shares the line with another."""
        line = self.parent
        if line is None or not isinstance(line.node, cst.SimpleStatementLine) or len(line.node.body) != 1:
            return None
        return line


class SiteFinder:
    """Finds the sites and blocks of a file in one pass."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.blocks: list[cst.BaseSuite] = []  # of functions, by number
        self.sites: list[Site] = []
        self._outside(source.module, "", ())

    def _outside(self, node: cst.CSTNode, prefix: str, attributes: tuple[str, ...]) -> None:
        for child in node.children:
            if isinstance(child, cst.FunctionDef):
                self._function(child, prefix, attributes)
            elif isinstance(child, cst.ClassDef):
                self._outside(child.body, f"{prefix}{child.name.value}.", self_attributes(child))
            elif isinstance(child, cst.If) and _is_guard(child):
                continue
            elif isinstance(child, cst.Assign | cst.AnnAssign):
                self._constant(child, prefix)
            elif isinstance(child, _OUTSIDE):
                self._outside(child, prefix, attributes)

    def _constant(self, node: cst.Assign | cst.AnnAssign, prefix: str) -> None:
        target = node.targets[0].target if isinstance(node, cst.Assign) else node.target
        if isinstance(target, cst.Name) and not target.value.startswith("__") and node.value is not None:
            scope = Scope(name=prefix + target.value, function=None)
            self._walk(node.value, None, scope, None)

    def _function(self, node: cst.FunctionDef, prefix: str, attributes: tuple[str, ...]) -> None:
        name = prefix + node.name.value
        decorators = {last_name(d.decorator) for d in node.decorators}
        if node.name.value in _SILENT_FUNCTIONS or "overload" in decorators:
            return
        scope = Scope(name=name, function=node, bound=_bindings(node, self.source), attributes=attributes)
        top = Site(node=node, parent=None, scope=scope, block=len(self.blocks), source=self.source)
        self.sites.append(top)
        for parameter in parameters(node.params):
            self._walk(parameter, top, scope, len(self.blocks))
        self._walk(node.body, top, scope, None)

    def _walk(self, node: cst.CSTNode, parent: Site | None, scope: Scope, block: int | None) -> None:
        if isinstance(node, _OPAQUE) or is_text(node) or (isinstance(node, cst.If) and _is_guard(node)):
            return
        if isinstance(node, cst.FunctionDef):
            self._function(node, f"{scope.name}.", scope.attributes)
            return
        if isinstance(node, cst.ClassDef):
            self._outside(node.body, f"{scope.name}.{node.name.value}.", self_attributes(node))
            return
        called = node.value if isinstance(node, cst.Expr) else node
        if isinstance(called, cst.Call) and last_name(called.func) in _SILENT_CALLS | _TYPING_CALLS:
            return
        if isinstance(node, cst.BaseSuite) and scope.function is not None:
            block = len(self.blocks)
            self.blocks.append(node)
        site = Site(node=node, parent=parent, scope=scope, block=block, source=self.source)
        self.sites.append(site)
        for child in _evaluated_children(node):
            self._walk(child, site, scope, block)


def _evaluated_children(node: cst.CSTNode) -> Sequence[cst.CSTNode]:
    """Return the children that are evaluated with the node, without names that are only bound."""
    match node:
        case cst.Attribute():
            return [node.value]
        case cst.Param():
            return [node.default] if node.default else []
        case cst.Arg():
            return [node.value]
        case cst.Raise() | cst.Name():
            return []
        case cst.AssignTarget():
            return node.target.children if isinstance(node.target, cst.Subscript | cst.Attribute) else []
        case cst.AugAssign() | cst.AnnAssign() | cst.NamedExpr():
            return [node.value] if node.value else []
        case cst.For():
            return [part for part in (node.iter, node.body, node.orelse) if part is not None]
        case cst.CompFor():
            return [part for part in (node.iter, *node.ifs, node.inner_for_in) if part is not None]
        case cst.ExceptHandler():
            return [node.body]
        case cst.WithItem():
            return [node.item]
        case cst.Lambda():
            return [node.body]
        case _:
            return node.children


def _is_guard(node: cst.If) -> bool:
    """Return whether the node is `if TYPE_CHECKING:` or `if __name__ == "__main__":`."""
    test = node.test
    if isinstance(test, cst.Comparison):
        test = test.left
    return last_name(test) in ("TYPE_CHECKING", "__name__")


def last_name(node: cst.CSTNode) -> str:
    """Return the last name of an expression, "name" of `a.b.name(...)`; "" if it has none."""
    if isinstance(node, cst.Call):
        return last_name(node.func)
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def parameters(given: cst.Parameters) -> list[cst.Param]:
    """Return the parameters of a function without `*args` and `**kwargs`."""
    return [*given.posonly_params, *given.params, *given.kwonly_params]


def _bindings(function: cst.FunctionDef, source: Source) -> tuple[tuple[str, int], ...]:
    """Return the names that a function binds, each with the end offset of the first binding."""
    given = parameters(function.params)
    given += [p for p in (function.params.star_arg, function.params.star_kwarg) if isinstance(p, cst.Param)]
    start = source.span(function)[0]
    found = {parameter.name.value: start for parameter in given}
    hidden = {"self", "cls", "_"}
    for node in _own_nodes(function.body):
        match node:
            case cst.Global(names=names) | cst.Nonlocal(names=names):
                hidden.update(item.name.value for item in names)
            case cst.Assign(targets=targets):
                _bind(found, [target.target for target in targets], source.span(node)[1])
            case cst.AnnAssign(target=target) | cst.AsName(name=cst.Name() as target):
                _bind(found, [target], source.span(node)[1])
            case cst.For(target=target, iter=iterable):
                _bind(found, [target], source.span(iterable)[1])
    return tuple((name, at) for name, at in found.items() if name not in hidden)


def _own_nodes(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the nodes below a function's body, without those of nested scopes."""
    for child in node.children:
        if not isinstance(child, cst.FunctionDef | cst.ClassDef | cst.Lambda | cst.CompFor):
            yield child
            yield from _own_nodes(child)


def _bind(found: dict[str, int], targets: Iterable[cst.CSTNode], at: int) -> None:
    for target in targets:
        if isinstance(target, cst.Name):
            found.setdefault(target.value, at)
        elif isinstance(target, cst.Tuple | cst.List):
            _bind(found, [element.value for element in target.elements], at)


def self_attributes(node: cst.ClassDef) -> tuple[str, ...]:
    """Return the attributes that the class assigns to `self`."""
    assigned = m.findall(node, m.AssignTarget(target=m.Attribute(value=m.Name("self"))))
    return tuple(dict.fromkeys(last_name(target.children[0]) for target in assigned))
