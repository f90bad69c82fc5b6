"""Find the lines of a file where a breakpoint can stop a program, by its syntax tree."""

import ast


def breakpoint_error(source: str, line: int) -> "str | None":
    """Return why no breakpoint can stop at a line, and a line to take instead; None if one can."""
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
                kind = "class" if isinstance(node, ast.ClassDef) else "function"
                better = first_of(node.body)
                return (
                    f"Line {line} is a {kind} definition: {text!r}. It runs when the {kind} is defined, not "
                    f"when it is called. Try line {better} instead, the first statement inside it."
                )
        return None
    later = sorted(
        {node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt) and node.lineno > line}
    )
    hint = f" Try line {later[0]} instead, the next statement." if later else ""
    return f"Line {line} is a {'comment' if text else 'blank line'}.{hint}"


def first_statement(source: str, name: str, line: int = 0) -> "int | None":
    """Return the first line inside the function `name`, which begins at `line` (0: anywhere)."""
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


def first_of(body: "list[ast.stmt]") -> int:
    """Return the line of the first statement after the docstring."""
    kind = type(getattr(body[0], "value", None)).__name__
    documented = isinstance(body[0], ast.Expr) and kind in ("Constant", "Str")  # Str: before Python 3.8
    return body[1].lineno if documented and len(body) > 1 else body[0].lineno
