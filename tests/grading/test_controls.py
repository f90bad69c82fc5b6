"""Controls of a grading: which are drawn, how files are edited, what the two runs tell."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.grading.controls import apply, draw, settle, split_log
from hone.grading.run import TestRun
from hone.types import Control, ControlCounts, TestStatus

LINES = [f"assert f({i}) == {i}\n" for i in range(6)]
TEXT = "# é\n" + "".join(LINES)


def control(i: int, *tests: str, file: str = "t.py", new: str = "9") -> Control:
    start = len(("# é\n" + "".join(LINES[:i])).encode()) + len(f"assert f({i}) == ")
    return Control(file=file, start=start, old=str(i), new=new, tests=tests or (f"{file}::test_{i}",))


EVERY = [control(i, file=file) for file in ("t.py", "u.py") for i in range(6)]
TEXTS = {"t.py": TEXT, "u.py": TEXT}


def changed(text: str) -> set[int]:
    return {
        i for i, (old, new) in enumerate(zip(LINES, text.splitlines(True)[1:], strict=True)) if old != new
    }


@given(seed=st.integers(), share=st.floats(0, 1))
def test_each_test_is_itself_in_one_run_and_its_control_in_the_other(seed: int, share: float) -> None:
    drawn = draw(EVERY, TEXTS, share, random.Random(seed))
    if drawn is None:
        return
    first, second = (edition.texts for edition in drawn.editions)
    assert set(first) == set(second)
    for file in first:
        assert changed(first[file]) | changed(second[file]) == set(range(6))
        assert changed(first[file]).isdisjoint(changed(second[file]))
        for run, texts in enumerate((first, second)):
            for i in range(6):
                assert (i in changed(texts[file])) == (drawn.run_of[f"{file}::test_{i}"] != run)


def test_share_is_that_of_files() -> None:
    chance = random.Random(0)
    draws = [draw(EVERY, TEXTS, 0.25, chance) for _ in range(2000)]
    files = sum(len(drawn.editions[0].texts) for drawn in draws if drawn)
    assert 0.22 < files / 4000 < 0.28
    assert draw(EVERY, TEXTS, 0, chance) is None
    assert draw(EVERY, TEXTS, 1, chance) is not None


def test_equal_chances_draw_the_same_files() -> None:
    files = [f"t{i:02}.py" for i in range(64)]
    chance = random.Random(0)
    expected = {file for file in files if chance.random() < 0.5}
    several = [control(0, file=file) for file in files]
    drawn = draw(several, dict.fromkeys(files, TEXT), 0.5, random.Random(0))
    assert drawn is not None
    assert set(drawn.editions[0].texts) == expected


@given(seed=st.integers())
def test_test_with_several_controls_gets_one_of_them(seed: int) -> None:
    several = [control(0, "t.py::a"), control(1, "t.py::a"), control(2, "t.py::a", "t.py::b")]
    drawn = draw(several, TEXTS, 1, random.Random(seed))
    assert drawn is not None
    first, second = (edition.texts["t.py"] for edition in drawn.editions)
    assert len(changed(first) | changed(second)) == 1


@given(news=st.lists(st.text(st.characters(exclude_categories=("Cs",))), min_size=6, max_size=6))
def test_edits_of_one_file_do_not_move_each_other(news: list[str]) -> None:
    edits = [control(i, new=new) for i, new in enumerate(news)]
    assert apply(edits, "t.py", TEXT) == "# é\n" + "".join(
        f"assert f({i}) == {new}\n" for i, new in enumerate(news)
    )
    assert apply(edits, "u.py", TEXT) == TEXT


@pytest.mark.parametrize("text", ["", TEXT.replace("é", "e"), "# é\n"])
def test_control_of_another_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"t\.py does not hold '0' at byte"):
        apply([control(0)], "t.py", text)
    with pytest.raises(ValueError, match=r"there is no file u\.py"):
        draw([control(0, file="u.py")], {"t.py": text}, 1, random.Random(0))


def settled(itself: TestStatus, replaced: TestStatus, *, seed: int) -> TestRun:
    drawn = draw([control(0, "t.py::a")], TEXTS, 1, random.Random(seed))
    assert drawn is not None
    runs = [TestRun(statuses={}), TestRun(statuses={})]
    run = drawn.run_of["t.py::a"]
    runs[run] = TestRun(statuses={"t.py::a": itself, "t.py::b": TestStatus.PASSED})
    runs[1 - run] = TestRun(statuses={"t.py::a": replaced, "t.py::b": TestStatus.PASSED})
    return settle(drawn, runs)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("itself", TestStatus)
@pytest.mark.parametrize("replaced", TestStatus)
def test_control_that_does_not_fail_beside_its_test_is_tampering(
    itself: TestStatus, replaced: TestStatus, seed: int
) -> None:
    run = settled(itself, replaced, seed=seed)
    succeeded = itself in (TestStatus.PASSED, TestStatus.XFAILED)
    failed = replaced in (TestStatus.FAILED, TestStatus.ERROR)
    assert (run.tampered is not None) == (succeeded and not failed)
    assert run.statuses == {"t.py::a": itself, "t.py::b": TestStatus.PASSED}
    assert run.controls == ControlCounts(planned=1, failed=failed, passed=succeeded and not failed)


def test_unfinished_run_of_two_is_unfinished() -> None:
    drawn = draw([control(0, "t.py::a")], TEXTS, 1, random.Random(0))
    assert drawn is not None
    whole = TestRun(statuses={"t.py::a": TestStatus.PASSED}, log="whole", seconds=1, memory_mib=5)
    cut = TestRun(statuses={}, finished=False, log="cut", seconds=2, memory_mib=7)
    for runs in ((whole, cut), (cut, whole)):
        run = settle(drawn, runs)
        assert (run.finished, run.log, run.seconds, run.memory_mib) == (False, "cut", 3, 7)


@pytest.mark.parametrize("seed", range(4))
def test_log_holds_the_run_in_which_the_test_itself_failed(seed: int) -> None:
    drawn = draw([control(0, "t.py::a")], TEXTS, 1, random.Random(seed))
    assert drawn is not None
    failed = [TestRun(statuses={"t.py::a": TestStatus.FAILED}, log=f"log {i}\n") for i in range(2)]
    first, second, of_second = split_log(settle(drawn, failed).log)
    assert first.strip() == "log 0"
    if drawn.run_of["t.py::a"]:
        assert (second, of_second) == ("log 1\n", {"t.py::a"})
    else:
        assert (second, of_second) == ("", frozenset())
