"""Claims: single assertions of tests as programs of their own, which people can read and run.

def test_words(self):                          from slugify import slugify
    text = "a b"
    self.assertEqual(slugify("c"), "c")   ->   text = "a b"
    self.assertEqual(slugify(text), "a-b")     assert slugify(text) == "a-b"
"""

from __future__ import annotations

import ast
import contextlib
import copy
import dataclasses
import itertools
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hone.curate.examples import helpers_of, imports_of, names_of, parse_module, source_text
from hone.curate.mining.assertions import checking_functions, is_assertion, plain_statements

TEST = "test_example"
_SETS = 120  # parameter sets of a test
_CLAIM = 1200  # characters of a claim's code
_BUILT_IN = {
    *("capfd", "caplog", "capsys", "monkeypatch", "recwarn", "request", "tmp_path", "tmp_path_factory"),
    "tmpdir",
}  # fixtures of pytest
_SET_UP = ("setUp", "setup_method", "setup")
_Function = ast.FunctionDef
Place = tuple[int, int]  # of a statement: its set of parameters, and its number in the test


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One assertion of a test, or several, with everything that they need."""

    test: str  # id of the test function, without parameters
    imports: tuple[str, ...]
    definitions: tuple[str, ...]  # helpers and fixtures
    arguments: tuple[str, ...]  # fixtures
    statements: Mapping[Place, str]
    places: tuple[Place, ...]  # of the assertions among the statements

    @property
    def code(self) -> str:
        """The program: statements, or a test function where it needs fixtures."""
        body = "\n".join(self.statements[place] for place in sorted(self.statements))
        if self.arguments:
            body = f"def {TEST}({', '.join(self.arguments)}):\n{textwrap.indent(body, '    ')}"
        return "\n\n".join(filter(None, ["\n".join(self.imports), *self.definitions, body]))


def join(claims: Sequence[Claim]) -> Claim:
    """Return one claim for several of one test."""
    first = claims[0]
    return Claim(
        test=first.test,
        imports=_merged(line for claim in claims for line in claim.imports),
        definitions=tuple(dict.fromkeys(text for claim in claims for text in claim.definitions)),
        arguments=first.arguments,
        statements={place: text for claim in claims for place, text in claim.statements.items()},
        places=tuple(sorted(place for claim in claims for place in claim.places)),
    )


def _merged(imports: Iterable[str]) -> tuple[str, ...]:
    """Return each import once, and what is imported from one module on one line."""
    names: dict[str, dict[str, None]] = {}  # in the order of their first mention
    for line in imports:
        module, _, imported = line.partition(" import ")  # of `import module` the first is all
        names.setdefault(module, {}).update(dict.fromkeys(filter(None, imported.split(", "))))
    return tuple(f"{module} import {', '.join(own)}" if own else module for module, own in names.items())


def find_claims(
    sources: Mapping[str, str], tests: Iterable[str], fixtures: Mapping[str, str]
) -> dict[str, list[Claim]]:
    """Return test function -> its claims; none where it cannot be written without its class or project.

    Args:
        sources: path -> text of the test files.
        tests: ids of tests.
        fixtures: path -> text of the `conftest.py` files.
    """
    modules = parse_modules({**fixtures, **sources})
    found: dict[str, list[Claim]] = {}
    for test in dict.fromkeys(each.partition("[")[0] for each in tests):
        file = test.partition("::")[0]
        if file in modules:
            shared = [modules[path] for path in fixtures if path in modules and _above(path, file)]
            found[test] = list(_claims(test, modules[file], sources[file], shared))
    return found


def parse_modules(texts: Mapping[str, str]) -> dict[str, ast.Module]:
    """Return path -> syntax tree of the Python files that this version of Python can parse."""
    found: dict[str, ast.Module] = {}
    for path, text in texts.items():
        if path.endswith(".py"):
            with contextlib.suppress(SyntaxError):
                found[path] = parse_module(text)
    return found


def _above(conftest: str, file: str) -> bool:
    return file.startswith(conftest.removesuffix("conftest.py"))


def _claims(test: str, tree: ast.Module, source: str, shared: Sequence[ast.Module]) -> Iterator[Claim]:
    function, around = find_function(tree, test)
    if function is None:
        return
    before = plain_statements(_set_up(around))
    own = plain_statements(function.body)
    body = [*before, *own]
    marks = [*function.decorator_list, *(mark for each in around for mark in each.decorator_list)]
    sets = list(_parameter_sets(marks, tree))
    parameters = {name for each in sets for name in each}
    arguments = [each.arg for each in function.args.args if each.arg not in {"self", *parameters}]
    fixtures = list(_fixtures(arguments, [tree, *shared]))
    unknown = set(arguments) - _BUILT_IN - {each.name for each in fixtures}
    if unknown or not sets or _needs_class(function, body):
        return
    checks = checking_functions([*tree.body, *body])
    for number, given in enumerate(sets[:_SETS]):
        statements = [_with_values(each, given) for each in body]
        asserts = [is_assertion(each, checks) for each in statements]
        for place in (place for place, each in enumerate(asserts) if each):
            needed = sorted({place, *_needed(statements, place, asserts, set(arguments))})
            claim = Claim(
                test=test,
                imports=(),
                definitions=(),
                arguments=tuple(arguments),
                statements={(number, each): _text(statements[each], source) for each in needed},
                places=((number, place),),
            )
            claim = _complete(claim, [statements[each] for each in needed], fixtures, tree, source, shared)
            if len(claim.code) <= _CLAIM:
                yield claim


def _needs_class(function: _Function, body: Sequence[ast.stmt]) -> bool:
    """Return whether a test uses more of its class than assertions and what is set before it."""
    nodes = list(_outside_classes(function))
    selves = {id(n.value) for n in nodes if isinstance(n, ast.Attribute)}
    used = {n.attr for n in nodes if isinstance(n, ast.Attribute) and _is_self(n.value)}
    known = set[str]().union(*map(_bound, body))
    assertions = {name for name in used if name.lower().startswith("assert") or name == "subTest"}
    bare = any(_is_self(n) and id(n) not in selves for n in nodes)
    return bare or not used <= known | assertions


def _outside_classes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and those in it, without classes, whose `self` is another."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.ClassDef):
            yield from _outside_classes(child)


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _complete(
    claim: Claim,
    statements: Sequence[ast.stmt],
    fixtures: Sequence[_Function],
    tree: ast.Module,
    source: str,
    shared: Sequence[ast.Module],
) -> Claim:
    """Return the claim with the imports and definitions that its statements and fixtures need."""
    names = names_of([*statements, *fixtures])
    helpers = [each for each in helpers_of(tree, names) if each not in fixtures]
    names |= names_of(helpers)
    imports = [line for module in (tree, *shared) for line in map(ast.unparse, imports_of(module, names))]
    if "pytest" in names and "import pytest" not in imports:
        imports.insert(0, "import pytest")
    definitions = [_text(each, source) for each in helpers]
    definitions += [ast.unparse(each) for each in fixtures]
    return dataclasses.replace(
        claim,
        imports=tuple(dict.fromkeys(line for line in imports if "__future__" not in line)),
        definitions=tuple(definitions),
    )


def find_function(tree: ast.Module, test: str) -> tuple[_Function | None, list[ast.ClassDef]]:
    """Return the function of a test id and the classes around it; None where there is none."""
    body, around = tree.body, list[ast.ClassDef]()
    *classes, name = test.partition("[")[0].split("::")[1:]
    for each in classes:
        found = next((n for n in body if isinstance(n, ast.ClassDef) and n.name == each), None)
        if found is None:
            return None, around
        around.append(found)
        body = found.body
    functions = [node for node in body if isinstance(node, _Function) and node.name == name]
    return (functions[-1] if functions else None), around


def _set_up(around: Sequence[ast.ClassDef]) -> list[ast.stmt]:
    """Return the constants of the classes and the statements that run before each test."""
    found: list[ast.stmt] = []
    for node in (each for around_one in around for each in around_one.body):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            found.append(node)
        elif isinstance(node, _Function) and node.name in _SET_UP:
            found += node.body
    return found


def _parameter_sets(marks: Iterable[ast.expr], tree: ast.Module) -> Iterator[dict[str, ast.expr]]:
    """Yield the values of each set of parameters, one without any for a plain test.

    Yields nothing when the values are not in the file.
    """
    choices: list[list[dict[str, ast.expr]]] = []
    for mark in marks:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith("parametrize") and mark.args:
            choices.append(list(_values(mark, tree)))
    for combination in itertools.product(*choices):
        yield {name: value for each in combination for name, value in each.items()}


def _values(mark: ast.Call, tree: ast.Module) -> Iterator[dict[str, ast.expr]]:
    given = [*mark.args, *(each.value for each in mark.keywords if each.arg == "argvalues")]
    try:
        names = ast.literal_eval(given[0])
    except (ValueError, TypeError, SyntaxError):
        return
    names = [name.strip() for name in (names.split(",") if isinstance(names, str) else names)]
    values = given[1] if len(given) > 1 else None
    if isinstance(values, ast.Name):
        values = next((n.value for n in tree.body if _assigns(n, values.id)), None)  # type: ignore[union-attr]
    if not isinstance(values, ast.List | ast.Tuple):
        return
    for value in values.elts:
        if isinstance(value, ast.Call) and ast.unparse(value.func) in ("pytest.param", "param"):
            parts = value.args
        elif len(names) == 1:
            parts = [value]
        else:
            parts = value.elts if isinstance(value, ast.Tuple | ast.List) else []
        if len(parts) == len(names):
            yield dict(zip(names, parts, strict=True))


def _assigns(node: ast.stmt, name: str) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def _fixtures(arguments: Sequence[str], modules: Sequence[ast.Module]) -> Iterator[_Function]:
    """Yield the definitions of fixtures, those that they need first."""
    for name in arguments:
        options = [
            n for module in modules for n in module.body if isinstance(n, _Function) and n.name == name
        ]
        fixture = next(
            (n for n in options if any("fixture" in ast.unparse(d) for d in n.decorator_list)), None
        )
        if fixture is not None:
            yield from _fixtures([each.arg for each in fixture.args.args], modules)
            yield fixture


def _with_values(node: ast.stmt, values: Mapping[str, ast.expr]) -> ast.stmt:
    """Return the statement with the values of parameters in the place of their names."""
    if not values:
        return node
    return ast.fix_missing_locations(_Values(values).visit(copy.deepcopy(node)))


class _Values(ast.NodeTransformer):
    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self._values = values

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        arguments: list[ast.expr] = []
        for given in node.args:
            inner = given.value if isinstance(given, ast.Starred) else None
            arguments += inner.elts if isinstance(inner, ast.List | ast.Tuple) else [given]
        node.args = arguments
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = self._values.get(node.id) if isinstance(node.ctx, ast.Load) else None
        return node if value is None else copy.deepcopy(value)


def _needed(
    statements: Sequence[ast.stmt], place: int, asserts: Sequence[bool], local: Collection[str]
) -> Iterator[int]:
    """Yield the earlier statements that make or change what a statement uses."""
    own = set(local).union(*map(_bound, statements))
    wanted = names_of([statements[place]]) & own
    for number in reversed(range(place)):
        node = statements[number]
        bound, used = _bound(node), names_of([node]) & own
        if isinstance(node, ast.Import | ast.ImportFrom):
            used = bound
        if bound & wanted or (_touched(node) & wanted and not asserts[number]):
            yield number
            if isinstance(node, ast.Assign) and all(isinstance(each, ast.Name) for each in node.targets):
                wanted -= bound  # earlier values of these names are not used
                used = names_of([node.value]) & own
            wanted |= used


def _touched(node: ast.stmt) -> set[str]:
    """Return the names whose values a statement may change, besides those that it binds.

    Of an assignment only those whose methods it calls, and iterators that it advances.
    """
    if not isinstance(node, ast.Assign):
        return names_of([node])
    touched: set[str] = set()
    for call in (each for each in ast.walk(node.value) if isinstance(each, ast.Call)):
        if isinstance(call.func, ast.Attribute):
            touched |= names_of([call.func.value])
        elif isinstance(call.func, ast.Name) and call.func.id == "next":
            touched |= names_of(call.args)
    return touched


def _bound(node: ast.stmt) -> set[str]:
    found = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    found |= {n.name for n in ast.walk(node) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    for each in ast.walk(node):
        if isinstance(each, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.partition(".")[0] for alias in each.names}
    return found


def _text(node: ast.stmt, source: str) -> str:
    """Return the statement as it is written in the file, or as Python writes it where it was changed."""
    unlike = any(
        isinstance(each, ast.Constant | ast.JoinedStr) and each.lineno != each.end_lineno
        for each in ast.walk(node)
    )  # lines of a string have no indent of their own
    plain = ast.unparse(node)
    if unlike:
        return plain
    written = source_text(source, node)
    try:
        same = ast.unparse(ast.parse(written)) == plain
    except SyntaxError:
        return plain
    return written if same else plain
