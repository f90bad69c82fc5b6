"""Bugs in statements: one is missing or misplaced, a branch is wrong, an exception is not handled."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from hone.curate.mutation.sites import Site, last_name
from hone.curate.mutation.source import Bug, Edit

_LEAVES = (cst.Return, cst.Continue, cst.Break, cst.Raise)
_EXCEPTIONS = {
    "ValueError": "TypeError",
    "TypeError": "ValueError",
    "KeyError": "IndexError",
    "IndexError": "KeyError",
    "AttributeError": "KeyError",
    "StopIteration": "GeneratorExit",
    "NotImplementedError": "ValueError",
    "RuntimeError": "ValueError",
    "OSError": "ValueError",
    "ImportError": "AttributeError",
    "LookupError": "ValueError",
    "ZeroDivisionError": "ValueError",
    "OverflowError": "ValueError",
    "UnicodeDecodeError": "KeyError",
    "Exception": "ValueError",
}


def bugs(site: Site) -> Iterator[Bug]:
    """Yield the bugs of a statement, a condition or a handler."""
    node = site.node
    yield from _removed_lines(site)
    match node:
        case cst.If():
            yield from _negated_condition(site, node.test)
            yield from _other_branches(site, node)
        case cst.While(test=test) | cst.IfExp(test=test):
            yield from _negated_condition(site, test)
        case cst.Break() | cst.Continue():
            yield "loop_control", site.replace(node, "continue" if isinstance(node, cst.Break) else "break")
            yield "loop_control", site.replace(node, "pass")
        case cst.Expr(value=cst.Yield()) if site.statement and site.inside(cst.For, cst.While):
            yield "stopped_early", (_line_after(site, site.statement.node, site.statement.node, "break"),)
        case cst.Raise():
            yield "removed_raise", site.replace(node, "pass")
            yield from _other_class(site, node.exc.func if isinstance(node.exc, cst.Call) else node.exc)
        case cst.ExceptHandler():
            yield from _other_class(site, node.type)
            yield from _other_handlers(site, node)
    if isinstance(node, cst.For | cst.While):
        yield from _statement_into_loop(site, node)


def _removed_lines(site: Site) -> Iterator[Bug]:
    """Yield the removal of an assignment to something that has a value, and of a call without a result."""
    line, target = site.statement, None
    if line is None:
        return
    if isinstance(site.node, cst.Assign):
        target = site.node.targets[0].target
    start = site.source.span(site.node)[0]
    match site.node:
        case cst.Assign() if (
            site.scope.name.endswith("__init__")
            and isinstance(target, cst.Attribute)
            and last_name(target.value) == "self"
        ):
            operator = "removed_initialisation"
        case cst.Assign() | cst.AugAssign():
            if isinstance(target, cst.Name) and not any(
                name == target.value and at < start for name, at in site.scope.bound
            ):
                return  # the first binding: the name would be undefined
            operator = "removed_assignment"
        case cst.Expr(value=cst.Call(func=cst.Attribute(value=base))) if last_name(base) == "super":
            operator = "dropped_super"
        case cst.Expr(value=cst.Call() | cst.Yield() | cst.Await() as value):
            if isinstance(value, cst.Call) and "super" in site.code(value.func):
                return
            operator = "removed_call"
        case _:
            return
    yield operator, line.remove()


def _negated_condition(site: Site, test: cst.BaseExpression) -> Iterator[Bug]:
    """Yield the negation of a condition that is not a comparison, see `comparison_inverse`."""
    match test:
        case cst.Comparison(comparisons=[_]):
            return
        case cst.UnaryOperation(operator=cst.Not()):
            yield "negated_condition", site.replace_inner(test, site.code(test.expression))
        case cst.Name() | cst.Attribute() | cst.Call() | cst.Subscript():
            yield "negated_condition", site.replace(test, f"not {site.code(test)}")
        case _:
            code = site.code(test)
            yield "negated_condition", site.replace(test, f"not {code if test.lpar else f'({code})'}")


def _other_branches(site: Site, node: cst.If) -> Iterator[Bug]:
    """Yield the bugs in the branches of an `if`: one runs always or never, or two change places."""
    branch, body = node.orelse, node.body
    if branch is None:
        yield "removed_condition", site.replace(node.test, "True")
        last = body.body[-1]
        last = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
        if isinstance(last, _LEAVES) and not site.code(node).startswith("elif"):
            yield "removed_guard", site.remove()
        return
    start, end = site.source.lines(branch)
    if isinstance(branch, cst.If) and branch.orelse is not None:
        end = site.source.lines(branch.orelse)[0]
    if isinstance(branch.body, cst.IndentedBlock) or isinstance(branch, cst.If):
        yield "dropped_branch", (Edit(start, end, ""),)
    blocks = isinstance(body, cst.IndentedBlock) and isinstance(branch.body, cst.IndentedBlock)
    if isinstance(branch, cst.Else) and blocks:
        yield "swapped_branches", site.source.swap(body, branch.body)


def _statement_into_loop(site: Site, node: cst.For | cst.While) -> Iterator[Bug]:
    """Yield the loop with the line after it at its end."""
    siblings = list(site.siblings)
    following = siblings[siblings.index(node) + 1 :][:1]
    if node.orelse or not isinstance(node.body, cst.IndentedBlock) or not following:
        return
    code = site.code(following[0])
    if isinstance(following[0], cst.SimpleStatementLine) and "\n" not in code:
        added = _line_after(site, node, node.body.body[-1], code)
        yield "statement_into_loop", (added, site.source.remove_statement(following[0], siblings))


def _line_after(site: Site, node: cst.CSTNode, neighbour: cst.CSTNode, code: str) -> Edit:
    """Return the edit that adds a line after `node`, indented as its `neighbour`."""
    end = site.source.span(node)[1]
    return Edit(end, end, f"{site.source.newline}{site.source.indentation(neighbour)}{code}")


def _other_class(site: Site, named: cst.CSTNode | None) -> Iterator[Bug]:
    """Yield the bugs that raise or catch an exception of another class."""
    if isinstance(named, cst.Name) and named.value in _EXCEPTIONS:
        yield "wrong_exception", site.replace(named, _EXCEPTIONS[named.value])


def _other_handlers(site: Site, node: cst.ExceptHandler) -> Iterator[Bug]:
    """Yield the handlers that catch everything, catch one class less, or do nothing."""
    if node.type is not None and last_name(node.type) not in ("Exception", "BaseException"):
        yield "widened_handler", site.replace(node.type, "Exception")
    if isinstance(node.type, cst.Tuple) and len(node.type.elements) > 1:
        codes = [site.code(element.value) for element in node.type.elements]
        for at in range(len(codes)):
            rest = codes[:at] + codes[at + 1 :]
            yield "narrowed_handler", site.replace(node.type, f"({', '.join(rest)},)")
    if isinstance(node.body, cst.IndentedBlock) and site.code(node.body) != "pass":
        yield "swallowed_error", site.replace(node.body, "pass")
