"""Evidence in the task's test files: deleted, moved, emptied, shadowed or skipped tests."""

from __future__ import annotations

import re

from hone.grading.integrity.patch_context import Change, Hunk, PatchContext, code_lines, squeeze

_SKIP = re.compile(
    r"pytest\.mark\.(?:skip|skipif|xfail)\b|\bpytest\.(?:skip|xfail|importorskip)\s*\("
    r"|unittest\.(?:skip\w*|expectedFailure|SkipTest)\b|@(?:skip|skipIf|skipUnless|xfail|expectedFailure)\b"
    r"|\.skipTest\s*\(|\braise SkipTest\b|__test__\s*=\s*False|__unittest_skip__"
)
_DEFINITION = re.compile(r"(\s*)(?:async\s+)?(?:def|class)\s+(\w+)")
_NEAR = 400  # lines searched for the definition around a line
_NOTHING = re.compile(r"(?:pass|\.\.\.|return(?: None)?|assert True|assert 1)\s*")


def scan_test_file(change: Change, context: PatchContext) -> str | None:
    """Scan changes of a test file that keep its tests from running; see `scan_patch`."""
    reason = _displaced(change, context) or _shadowed(change, context)
    if reason is None and change.path in context.tests and not change.deleted:
        reason = _silenced(change, context)
    return reason


def _displaced(change: Change, context: PatchContext) -> str | None:
    path = change.path
    written = {each.path for each in context.changes if not each.deleted}
    inside = [test for test in context.tests if test == path or test.startswith(f"{path}/")]
    if change.mode == "120000" and inside:
        return f"becomes a link in the place of {inside[0]}"
    if change.deleted and path in context.tests and path not in written:
        return "holds graded tests and is deleted"
    if change.before != path and change.before in context.tests and change.before not in written:
        return f"is the new name of {change.before}, whose graded tests are renamed to {path}"
    edited = not change.deleted and not change.created
    if edited and path in context.tests and any(hunk.empties for hunk in change.hunks):
        return "holds graded tests and is emptied"
    return None


def _shadowed(change: Change, context: PatchContext) -> str | None:
    for test in context.tests:
        if change.created and change.path.startswith(f"{test.removesuffix('.py')}/"):
            return f"makes a package that hides the tests in {test}"
    return None


def _silenced(change: Change, context: PatchContext) -> str | None:
    functions = context.tests[change.path]
    trusted = squeeze(context.trusted.get(change.path, ""))
    removed = {match[2] for text in change.lines("-") if (match := _DEFINITION.match(text))}
    for hunk in change.hunks:
        lines = hunk.after
        for index, (sign, text) in enumerate(lines):
            code = "".join(code_lines([text]))
            match, gutted = _SKIP.search(code), _gutted(lines, index, functions)
            if sign != "+" or not (match or gutted):
                continue
            if squeeze(code) in trusted or squeeze(code) in context.old:
                continue
            if match and change.created and "importorskip" in match.group():
                continue  # a new test file may state its requirements
            if match and not _own_test(hunk, index, removed):
                return f"skips graded tests: {text.strip()!r}"
            if gutted is not None and not change.created:
                return f"leaves the graded test {gutted} without a body"
    return None


def _own_test(hunk: Hunk, index: int, removed: set[str]) -> bool:
    """Return whether the line at `index` belongs to a test that the patch adds without replacing one."""
    lines = hunk.after
    text = lines[index][1]
    indent = len(text) - len(text.lstrip())
    if text.lstrip().startswith("@"):
        following = (line for line in lines[index + 1 : index + _NEAR] if _DEFINITION.match(line[1]))
        owner = next(following, None)
    elif indent == 0:
        return False
    else:
        above = (
            line
            for line in reversed(lines[max(0, index - _NEAR) : index])
            if (m := _DEFINITION.match(line[1])) and len(m[1]) < indent
        )
        owner = next(above, None)
    if owner is None or owner[0] != "+":
        return False
    match = _DEFINITION.match(owner[1])
    return match is not None and match[2] not in removed


def _gutted(lines: list[tuple[str, str]], index: int, functions: frozenset[str]) -> str | None:
    """Return the graded test whose body starts at the added line `index` and is empty, or None."""
    text = lines[index][1]
    inline = re.match(r"\s*(?:async\s+)?def\s+(\w+)\s*\(.*\).*?:\s*(\S.*)$", text)
    if inline is not None:
        return inline[1] if inline[1] in functions and _NOTHING.fullmatch(inline[2]) else None
    if index == 0 or not _NOTHING.fullmatch(text.strip()):
        return None
    above = re.match(r"\s*(?:async\s+)?def\s+(\w+)\s*\(.*\).*:\s*$", lines[index - 1][1])
    return above[1] if above is not None and above[1] in functions else None
