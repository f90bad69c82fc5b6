"""Where in a file a breakpoint can stop a program, as its syntax tree tells."""

from __future__ import annotations

import ast


def unbreakable(source: str, line: int) -> str | None:
    """Why no breakpoint can stop at a line, with one that can; None: it can, or the source cannot be read."""
    lines = source.split("\n")
    if not 1 <= line <= len(lines):
        return f"Line {line} is out of range: the file has {len(lines)} lines."
    text = lines[line - 1].strip()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    if text and not text.startswith("#"):
        for node in ast.walk(tree):
            if (
                isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
                and node.lineno == line
            ):
                what = "class" if isinstance(node, ast.ClassDef) else "function"
                better = first_of(node.body)
                return (
                    f"Line {line} is a {what} definition: {text!r}. It runs when the {what} is defined, not "
                    f"when it is called. Try line {better} instead, the first statement inside it."
                )
        return None
    later = sorted(
        {node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt) and node.lineno > line}
    )
    hint = f" Try line {later[0]} instead, the next statement." if later else ""
    return f"Line {line} is a {'comment' if text else 'blank line'}.{hint}"


def first_statement(source: str, name: str, line: int = 0) -> int | None:
    """The first line inside the function `name` (of the one at `line`, decorators included, where given)."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name.split(".")[-1]:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if not line or line in (first, node.lineno):
                return first_of(node.body)
    return None


def first_of(body: list[ast.stmt]) -> int:
    """The line of the first statement that is no docstring, where there is one."""
    documented = isinstance(body[0], ast.Expr) and isinstance(getattr(body[0], "value", None), ast.Constant)
    return body[1].lineno if documented and len(body) > 1 else body[0].lineno
