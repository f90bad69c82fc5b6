"""Reading what an agent wrote takes time that grows with its size, whatever it wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.parts.costly_patches import COMMANDS, PATCHES, REPLIES, edited, task
from benchmarks.patch_scan import read_commands, read_patch, read_reply
from hone.environment import PatchRefused, filter_patch, parse_patch
from hone.grading.integrity import scan_patch
from hone.grading.integrity.patterns import BLOCK, MAX_MATCH, compile_search, find_all
from tests.fuzz.bounds import steps

REPOSITORY = Path(__file__).parents[2]


CASES = [
    *((read_patch, PATCHES, name) for name in PATCHES),
    *((read_commands, COMMANDS, name) for name in COMMANDS),
    *((read_reply, REPLIES, name) for name in REPLIES),
]


LINES_PER_CHARACTER = 25
GLOB_LINES_PER_CHARACTER = 300  # of a word that is a glob, which is compiled; their number has a limit
GLOBS = {
    "globs of options", "folders of an option", "patterns of an option", "functions of an option",
    "test paths of an option", "ignored, many files",
}  # fmt: skip


@pytest.mark.parametrize(
    "size", [4000, pytest.param(1 << 16, marks=[pytest.mark.full, pytest.mark.timeout(900)])]
)
def test_steps_grow_with_the_size_of_the_input(size: int) -> None:
    for read, makers, name in CASES:
        read(makers[name](1))  # compiles the patterns
        grown = steps(read, makers[name](size)) - steps(read, makers[name](1))
        most = GLOB_LINES_PER_CHARACTER if name in GLOBS else LINES_PER_CHARACTER
        assert grown <= most * size, name


@pytest.mark.parametrize("distance", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + MAX_MATCH])
def test_search_in_blocks_finds_what_one_search_finds(distance: int) -> None:
    pattern = compile_search(r"\bfirst[^!]{0,20000}last\b|^second$|\bthird\b")
    text = f"{'x ' * (distance // 2)}first{'y' * 20_000}last second\nthird\nsecond\nathird\n" * 3
    assert [match.span() for match in find_all(pattern, text)] == [
        match.span() for match in pattern.finditer(text)
    ]


def test_match_of_no_character_between_two_blocks_is_found_once() -> None:
    text = f"{' ' * BLOCK}x"
    assert [match.span() for match in find_all(compile_search("(?=x)"), text)] == [(BLOCK, BLOCK)]


def test_code_that_moves_is_not_new_however_often_it_does() -> None:
    lines = [f"a = '_pytest.m{i}'" for i in range(2000)]
    assert scan_patch(parse_patch(edited("x.py", lines, lines)), task()) is None
    tampering = scan_patch(parse_patch(edited("x.py", [*lines, "a = '_pytest.new'"], lines)), task())
    assert tampering is not None
    assert "_pytest.new" in tampering.evidence


def test_patch_with_too_much_to_compare_is_refused() -> None:
    globs = [f"    a{i}*b*c" for i in range(20_000)]
    patch = edited("pytest.ini", ["[pytest]", "norecursedirs =", *globs])
    with pytest.raises(PatchRefused, match="too many patterns"):
        scan_patch(parse_patch(patch), task())
    few = edited("pytest.ini", ["[pytest]", "norecursedirs =", *globs[:50]])
    assert scan_patch(parse_patch(few), task()) is None


@pytest.mark.parametrize("name", ["one long path", "an escape for every byte", "a link with many lines"])
def test_path_that_no_file_can_have_is_refused(name: str) -> None:
    with pytest.raises(PatchRefused) as refusal:
        filter_patch(PATCHES[name](100_000), [])
    assert len(str(refusal.value)) < 300


@pytest.mark.full
def test_benchmark_of_the_scan_runs_at_a_small_size() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.patch_scan", "--kib", "4"],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
    )
    metrics = json.loads(ran.stdout.splitlines()[-1])["metrics"]
    assert metrics["patches_inputs"] == len(PATCHES)
    assert metrics["patches_worst_s_per_mib"] > 0
