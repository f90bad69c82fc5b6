"""Mutants of Hone itself, drawn from the operators that seed bugs into tasks, and named ones."""

from __future__ import annotations

import ast
import difflib
import hashlib
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from hone.curate.mutation.candidates import Module, Mutation, combine  # noqa: E402

NAMED = ROOT / "tests" / "mutants_named.toml"
EQUIVALENT = ROOT / "tests" / "mutants_equivalent.toml"
SLOW = ROOT / "tests" / "mutants_slow.toml"
ROOMS = ("train", "rollout", "grading", "environment", "tasks")
# The code of graders in sandboxes runs in processes of its own: the attacks of `make test` judge it.
EXCLUDED = ("hone/grading/in_sandbox/",)
# Of a room's mutants, no file has more than this share, and no operator.
_MAX_FILE_SHARE, _MAX_OPERATOR_SHARE = 0.2, 0.12


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change of one file."""

    file: str
    operator: str  # "named" for one of NAMED
    place: str  # function, or the sentence of a named mutant
    line: str  # first line that it removes, without indentation; "" when it only adds
    becomes: str  # lines that it adds, without indentation
    lines: tuple[int, ...]  # numbers of the lines of the changed statement
    text: str  # whole new file

    @property
    def key(self) -> str:
        """A hash that stays when the code around the mutant changes; 12 hex digits."""
        parts = (self.operator, self.place, self.line, self.becomes)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]

    @property
    def signature(self) -> tuple[str, str, str, str]:
        """The identity in EQUIVALENT: file, operator, line, and the line that it becomes."""
        return self.file, self.operator, self.line, self.becomes

    def describe(self) -> str:
        new = self.becomes.replace("\n", "\n      + ") or "(removed)"
        head = f"{self.key} {self.file}:{self.lines[0]} {self.operator}"
        return f"{head}\n      - {self.line}\n      + {new}"


def draw(count: int, seed: int) -> list[Mutant]:
    """Return the named mutants and `count` others, as many of each room.

    The rank of a mutation is a hash of its texts and the seed: an edit elsewhere does not change the draw.
    """
    drawn = list(named_mutants())
    for room in ROOMS:
        drawn += _draw_of(room, count // len(ROOMS), seed)
    return drawn


def _draw_of(room: str, count: int, seed: int) -> list[Mutant]:
    files: Counter[str] = Counter()
    operators: Counter[str] = Counter()
    chosen: dict[str, Mutant] = {}
    for _, module, mutation in sorted(_ranked(room, seed), key=lambda each: each[0]):
        if len(chosen) == count:
            break
        in_file, by_operator = files[mutation.path], operators[mutation.operator]
        if in_file >= _MAX_FILE_SHARE * count or by_operator >= _MAX_OPERATOR_SHARE * count:
            continue
        mutant = _mutant(module, mutation)
        if mutant is not None and mutant.key not in chosen:
            chosen[mutant.key] = mutant
            files[mutation.path] += 1
            operators[mutation.operator] += 1
    return list(chosen.values())


def _ranked(room: str, seed: int) -> Iterator[tuple[str, Module, Mutation]]:
    """Yield every mutation of a room's files, without those of declared settings, and its rank."""
    for path in sorted((ROOT / "hone" / room).rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        if file.startswith(EXCLUDED):
            continue
        module = Module(file, path.read_text())
        data, lines = module.source.data, module.source.text.split("\n")
        for mutation in module.mutations():
            if mutation.block is None and path.name == "settings.py":
                continue
            old = [data[edit.start : edit.end].decode() for edit in mutation.change]
            new = [edit.new for edit in mutation.change]
            line = lines[mutation.line - 1].strip()
            parts = (str(seed), mutation.operator, mutation.function, line, *old, *new)
            yield hashlib.sha256("\0".join(parts).encode()).hexdigest(), module, mutation


def _mutant(module: Module, mutation: Mutation) -> Mutant | None:
    """Return the mutant; None when it changes nothing or does not compile."""
    file = module.source.path
    candidate = combine({file: module}, [mutation])
    if candidate is None:
        return None
    before, after = module.source.text, candidate.after[file]
    return _as_mutant(file, before, after, mutation.operator, mutation.function)


def _as_mutant(file: str, before: str, after: str, operator: str, place: str) -> Mutant:
    old, new = before.splitlines(), after.splitlines()
    changes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    blocks = [block for block in changes if block[0] != "equal"]
    removed = [number for _, start, end, _, _ in blocks for number in range(start, end)]
    added = [new[number].strip() for _, _, _, start, end in blocks for number in range(start, end)]
    touched = removed or [blocks[0][1]]
    statements = _statements(before)
    return Mutant(
        file=file,
        operator=operator,
        place=place,
        line=old[removed[0]].strip() if removed else "",
        becomes="\n".join(added),
        lines=tuple(dict.fromkeys(line for number in touched for line in statements.get(number + 1, ()))),
        text=after,
    )


def _statements(text: str) -> dict[int, tuple[int, ...]]:
    """Return each line's statement: the lines of a simple one, or of the head of a compound one."""
    found: dict[int, tuple[int, ...]] = {}
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt | ast.ExceptHandler)]
    for node in sorted(nodes, key=lambda node: (node.lineno, -(node.end_lineno or 0))):
        body = getattr(node, "body", None)
        end = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno
        span = tuple(range(node.lineno, end + 1))
        found.update(dict.fromkeys(span, span))
    return found


def named_mutants() -> Iterator[Mutant]:
    """Yield the mutants of NAMED. Raises SystemExit when one's text is not in its file exactly once."""
    for entry in tomllib.loads(NAMED.read_text())["mutant"]:
        text = (ROOT / entry["file"]).read_text()
        if text.count(entry["text"]) != 1:
            raise SystemExit(
                f"{NAMED.name}: {entry['text']!r} is in {entry['file']} {text.count(entry['text'])} times. "
                f"Give the mutant {entry['name']!r} the line's new text."
            )
        after = text.replace(entry["text"], entry["becomes"])
        yield _as_mutant(entry["file"], text, after, "named", entry["name"])


def known_equivalents() -> dict[tuple[str, str, str, str], str]:
    """Return the reason of each accepted survivor."""
    entries = tomllib.loads(EQUIVALENT.read_text()).get("mutant", []) if EQUIVALENT.exists() else []
    return {
        (each["file"], each["operator"], each["line"], each["becomes"]): each["reason"] for each in entries
    }


def slow_tests() -> dict[str, list[str]]:
    """Return the tests outside of the fast tier that also judge a file's mutants."""
    return tomllib.loads(SLOW.read_text())["tests"]
