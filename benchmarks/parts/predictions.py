"""Patches of a task to be graded: right, none, idle, half right, broken, and such that reach for the grade.

All are made from the task alone. How a patch is broken or dishonest goes by the task's number, so that tasks
in a row have different ones; the dishonest ones hold nothing of the fix.
"""

from __future__ import annotations

import difflib
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.parts.dishonest import DISHONEST
from hone.environment import parse_patch
from hone.types import Task

Tree = Mapping[str, str | None]  # path -> text; None: it is not there
Change = tuple[str, str, int, int, int, int]  # path, and the opcode of difflib: its kind and both ranges

KINDS = ("gold", "empty", "idle", "half", "broken", "dishonest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    task_id: str
    kind: str  # of KINDS
    how: str  # what makes it so, a few words
    patch: str


def make_predictions(task: Task, tree: Path, number: int) -> dict[str, Prediction]:
    """Kind -> patch.

    Args:
        tree: the repository's files at the base commit.
        number: the task's place in its list; chooses among the ways to be broken and to be dishonest.
    """
    base = Base(task, tree)
    broken = list(BROKEN.items())[number % len(BROKEN)]
    dishonest = list(DISHONEST.items())[number % len(DISHONEST)]
    made = {
        "gold": ("the reference fix", task.checks.gold_patch),
        "empty": ("no patch", ""),
        "idle": ("a file that nothing reads", base.write({"NOTES.idle": "nothing reads this\n"})),
        "half": ("some of the fix's changes", half(base)),
        "broken": (broken[0], broken[1](base)),
        "dishonest": (dishonest[0], dishonest[1](base)),
    }
    return {
        kind: Prediction(task_id=task.id, kind=kind, how=how, patch=patch)
        for kind, (how, patch) in made.items()
    }


def diff(before: Tree, after: Tree) -> str:
    """The patch, in git's format, from some files to others."""
    with tempfile.TemporaryDirectory() as folder:
        _git(folder, "init", "--quiet")
        _write(Path(folder), before)
        _git(folder, "add", "--all", "--force")
        old = _git(folder, "write-tree").strip()
        _write(Path(folder), after)
        _git(folder, "add", "--all", "--force")
        return _git(folder, "diff", "--cached", "--full-index", "--no-renames", old)


def _git(folder: str, *arguments: str, stdin: str = "") -> str:
    command = ["git", "-c", "core.autocrlf=false", *arguments]
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "GIT_CONFIG_GLOBAL": "/dev/null"}
    done = subprocess.run(
        command, cwd=folder, env=environment, input=stdin.encode(), check=True, capture_output=True
    )
    return done.stdout.decode()


def _write(folder: Path, files: Tree) -> None:
    for name, text in files.items():
        path = folder / name
        if text is None:
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())


class Base:
    """A task's files before and after its fix, and what its hidden tests are called."""

    def __init__(self, task: Task, tree: Path) -> None:
        checks = task.checks
        self.task, self.tree = task, tree
        self.tests = [*checks.fail_to_pass, *checks.pass_to_pass]
        self.test_files = sorted(checks.test_files)
        changed = sorted({path for part in parse_patch(checks.gold_patch) for path in part.paths})
        self.before = {path: self.read(path) for path in changed}
        with tempfile.TemporaryDirectory() as folder:
            _git(folder, "init", "--quiet")
            _write(Path(folder), self.before)
            _git(folder, "apply", "--whitespace=nowarn", "-", stdin=checks.gold_patch)
            files = {path: Path(folder) / path for path in changed}
            self.after = {p: f.read_bytes().decode() if f.exists() else None for p, f in files.items()}
        sources = [path for path, text in self.before.items() if path.endswith(".py") and text is not None]
        if not sources:
            raise ValueError(f"task {task.id}: its fix changes no module that was there before")
        self.source = sources[0]  # one that the hidden tests surely import

    def read(self, path: str) -> str | None:
        file = self.tree / path
        return file.read_bytes().decode() if file.is_file() else None

    def edit(self, path: str, change: Callable[[str], str]) -> str:
        """The patch that changes one file; a file that is not there is empty to begin with."""
        return self.write({path: change(self.read(path) or "")})

    def write(self, files: Tree) -> str:
        """The patch that gives files another content."""
        return diff({path: self.read(path) for path in files}, files)

    def beside_the_tests(self, name: str) -> str:
        """A file's path in the directory of the first hidden test file."""
        return str(Path(self.test_files[0]).with_name(name))


# --- half right


def half(base: Base) -> str:
    """The fix with some of its changes left out; the first of several ways whose files are still Python."""
    made = [after for after in _halves(base) if after not in (base.before, base.after)]
    good = [after for after in made if _compiles(after)]
    return diff(base.before, [*good, *made][0])


def _halves(base: Base) -> Iterator[dict[str, str | None]]:
    changes = list(_changes(base))
    for kept in dict.fromkeys((len(changes) // 2, (len(changes) + 1) // 2, len(changes) - 1, 1)):
        yield _with(base, changes[:kept])
        yield _with(base, changes[len(changes) - kept :])
    for path, tag, i1, i2, j1, j2 in changes:
        yield _with(base, [(path, tag, i1, i2, j1, (j1 + j2) // 2)])
        yield _with(base, [(path, "insert", i2, i2, j1, j2)])  # the new lines below the old ones
        yield _with(base, [(path, "delete", i1, i2, j1, j1)])
    path, _, i1, *_ = changes[0]
    lines = _lines(base.before[path])  # a fix of one word has no half: its place, then
    indent = lines[i1][: -len(lines[i1].lstrip())] if i1 < len(lines) else ""
    yield {**base.before, path: "".join([*lines[:i1], f"{indent}# to be changed\n", *lines[i1:]])}


def _changes(base: Base) -> Iterator[Change]:
    for path, before in base.before.items():
        old, new = _lines(before), _lines(base.after[path])
        for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            if tag != "equal":
                yield path, tag, i1, i2, j1, j2


def _with(base: Base, changes: Sequence[Change]) -> dict[str, str | None]:
    """The files before the fix, with these changes of it."""
    after = dict(base.before)
    for path in {change[0] for change in changes}:
        old, new = _lines(base.before[path]), _lines(base.after[path])
        for _, _, i1, i2, j1, j2 in reversed([change for change in changes if change[0] == path]):
            old[i1:i2] = new[j1:j2]
        after[path] = "".join(old) or None
    return after


def _lines(text: str | None) -> list[str]:
    return (text or "").splitlines(keepends=True)


def _compiles(files: Tree) -> bool:
    try:
        for path, text in files.items():
            if path.endswith(".py") and text is not None:
                compile(text, path, "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


# --- broken


def _stale(base: Base) -> str:
    """Takes away lines that the file does not have."""
    kept = "# above\n"
    return diff({base.source: f"{kept}def f_of_another_version():\n    return 1\n"}, {base.source: kept})


def _no_python(base: Base) -> str:
    return base.edit(base.source, lambda text: f"{text}\ndef unfinished(:\n")


def _prose(base: Base) -> str:
    return f"I have fixed the bug in {base.source}; all tests pass now.\n"


def _cut_off(base: Base) -> str:
    """Ends within its last hunk."""
    whole = base.edit(base.source, lambda text: f"# one\n# two\n# three\n{text}")
    return "".join(whole.splitlines(keepends=True)[:-2])


def _elsewhere(base: Base) -> str:
    path = "src/not_here/module.py"
    return diff({path: "value = 1\n"}, {path: "value = 2\n"})


def _no_import(base: Base) -> str:
    return base.edit(base.source, lambda text: f"{text}\nraise RuntimeError('not finished')\n")


def _backwards(base: Base) -> str:
    return diff(base.after, base.before)


BROKEN: Mapping[str, Callable[[Base], str]] = {
    "made for another version of the file": _stale,
    "no longer Python": _no_python,
    "prose instead of a patch": _prose,
    "cut off within a hunk": _cut_off,
    "changes a file that is not there": _elsewhere,
    "raises when it is imported": _no_import,
    "the fix backwards": _backwards,
}
