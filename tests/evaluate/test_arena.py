"""The arena: its trainings with stand-ins for them, and its page."""

from __future__ import annotations

import argparse
import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import arena
from benchmarks.parts.arena_page import section
from benchmarks.parts.arena_results import START, Key, Result, read_results, tables
from benchmarks.parts.arena_stages import STAGES
from tests.waiting import wait_until_async

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "CELL", Path(__file__).with_name("arena_cell.py"))


def options(tmp_path: Path, **values: object) -> argparse.Namespace:
    defaults = {
        "out": tmp_path / "out",
        "results": tmp_path / "arena.jsonl",
        "stage": None,
        "only": ["DAPO"],
        "seeds": 1,
        "jobs": 1,
        "budget_s": float("inf"),
        "set": [],
    }
    return argparse.Namespace(**(defaults | values))


def run(arguments: argparse.Namespace) -> dict[Key, Result]:
    """Run the arena as a new call does; return its results as the next call reads them."""
    asyncio.run(arena.run_missing(arguments, read_results(arguments.results)))
    return read_results(arguments.results)


def let(tmp_path: Path, cell: str, do: str) -> None:
    """Say what the stand-in of the training in the folder `cell` does."""
    path = tmp_path / "do" / f"{cell}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(do)


def events(tmp_path: Path) -> list[str]:
    return (tmp_path / "events").read_text().splitlines()


def test_each_curriculum_has_its_own_start_model(tmp_path: Path) -> None:
    results = run(options(tmp_path, set=["train.steps=3"]))
    by_stage = {result.stage: result for result in results.values() if result.stage != START}
    assert set(by_stage) == {"algorithms", "two_bugs", "more_files", "three_edits"}
    starts = {result.start: result for result in results.values() if result.stage == START}
    assert len(starts) == 4
    assert starts[by_stage["algorithms"].start].sets == ["train.steps=3", *STAGES["algorithms"].start.sets]
    for stage in ("two_bugs", "more_files", "three_edits"):
        shared = ["train.steps=3", *STAGES[stage].start.sets]
        assert f"tasks.curriculum={stage}" in shared
        assert starts[by_stage[stage].start].sets == shared
        assert by_stage[stage].sets == [*STAGES[stage].rows["DAPO"], "seed=0", *shared]


def test_finished_trainings_do_not_run_again(tmp_path: Path) -> None:
    first = run(options(tmp_path, stage="two_bugs"))
    assert events(tmp_path) == [
        f"{event} {cell}" for cell in ("start-two_bugs", "two_bugs/DAPO/0") for event in ("began", "ended")
    ]
    again = run(options(tmp_path, stage="two_bugs", seeds=2))
    assert events(tmp_path)[4:] == ["began two_bugs/DAPO/1", "ended two_bugs/DAPO/1"]
    assert {key: again[key] for key in first} == first


def test_failed_training_leaves_a_line_and_runs_again(tmp_path: Path) -> None:
    let(tmp_path, "two_bugs/DAPO/0", "fail")
    arguments = options(tmp_path, stage="two_bugs", seeds=2)
    results = run(arguments)
    failed = results["two_bugs", "DAPO", 0]
    assert (failed.error, failed.test, len(failed.start)) == ("out of memory", {}, 16)
    (table,) = tables(results.values(), STAGES)
    assert [len(row.seeds) for row in table.rows] == [1]  # the other seed
    assert "- DAPO, seed 0, failed: `out of memory`" in section([table])
    let(tmp_path, "two_bugs/DAPO/0", "")
    results = run(arguments)
    assert results["two_bugs", "DAPO", 0].test == {"task": True}
    (table,) = tables(results.values(), STAGES)
    assert [len(row.seeds) for row in table.rows] == [2]
    assert "failed" not in section([table])


def test_failed_start_model_fails_its_own_rows_only(tmp_path: Path) -> None:
    let(tmp_path, "start-two_bugs", "fail")
    results = run(options(tmp_path))
    assert results["two_bugs", "DAPO", 0].error == "the start model failed: out of memory"
    assert results["three_edits", "DAPO", 0].test == {"task": True}
    let(tmp_path, "start-two_bugs", "")
    assert run(options(tmp_path))["two_bugs", "DAPO", 0].error == ""


def test_jobs_bounds_the_trainings_at_a_time(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "meet")
    for seed in (0, 1):
        let(tmp_path, f"two_bugs/DAPO/{seed}", "wait")  # two run at a time, or none ends
    results = run(options(tmp_path, stage="two_bugs", seeds=6, jobs=2))
    assert len(results) == 7
    running = most = 0
    for event in events(tmp_path):
        running += 1 if event.startswith("began") else -1
        most = max(most, running)
    assert most == 2


def test_stopping_ends_the_running_trainings_and_keeps_results(tmp_path: Path) -> None:
    let(tmp_path, "two_bugs/DAPO/1", "hang")
    arguments = options(tmp_path, stage="two_bugs", seeds=3)

    async def scenario() -> None:
        running = asyncio.create_task(arena.run_missing(arguments, {}))
        await wait_until_async((tmp_path / "hanging").exists)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(scenario())
    assert events(tmp_path)[-2:] == ["began two_bugs/DAPO/1", "stopped two_bugs/DAPO/1"]
    assert ("two_bugs", "DAPO", 0) in read_results(arguments.results)
    let(tmp_path, "two_bugs/DAPO/1", "")
    assert len(run(arguments)) == 4


def test_nothing_begins_after_the_budget(tmp_path: Path) -> None:
    assert run(options(tmp_path, budget_s=0.0)) == {}
    assert not (tmp_path / "events").exists()


def test_results_of_other_settings_are_refused(tmp_path: Path) -> None:
    run(options(tmp_path, stage="two_bugs"))
    with pytest.raises(SystemExit, match="DAPO, seed 0, of two_bugs with other settings"):
        run(options(tmp_path, stage="two_bugs", set=["train.steps=5"]))


def test_page_tells_each_stage_its_start_model() -> None:
    def of(stage: str, start: str, *resolved: bool) -> Result:
        test = {f"task-{i}": value for i, value in enumerate(resolved)}
        return Result(
            stage=stage, name="GRPO", seed=0, start=start, sets=[], test=test, test_unseen=test, seconds=60
        )

    results = [
        replace(of(START, "a", False, True), name="a"),
        replace(of(START, "b", False, False), name="b"),
        of("algorithms", "a", True, True),
        of("two_bugs", "b", True, False),
    ]
    made = tables(results, STAGES)
    assert [(table.stage, table.before.rate) for table in made if table.before] == [
        ("algorithms", 0.5),
        ("two_bugs", 0.0),
    ]
    page = section(made)
    assert page.index("resolves 50.0 %") < page.index("## Two bugs at once") < page.index("resolves 0.0 %")


def test_page_tells_the_clearest_pair_and_whether_it_is_beyond_chance() -> None:
    def of(name: str, *resolved: bool) -> Result:
        test = {f"task-{i}": value for i, value in enumerate(resolved)}
        return Result(stage="algorithms", name=name, seed=0, start="a", sets=[], test=test, test_unseen=test)

    start = replace(of("a", *[False] * 12), stage=START)
    few = [start, of("GRPO", *[True] * 12), of("PPO", *[True] * 10, False, False), of("RLOO", *[True] * 12)]
    page = section(tables(few, STAGES))
    assert "the clearest of the 3 pairs of rows are GRPO and PPO: +16.7" in page
    assert "p = 0.5, times 3 pairs 1; no row is shown to be better than another." in page
    other_seed = replace(of("GRPO", *[False] * 12), seed=1)  # PPO has none of it, so it does not count
    many = [start, of("GRPO", *[True] * 12), other_seed, of("PPO", *[False] * 12)]
    page = section(tables(many, STAGES))
    assert "the clearest of the 1 pairs of rows are GRPO and PPO: +100.0" in page
    assert "p = 0.00049, times 1 pairs 0.00049.\n" in page


def test_table_of_a_stage_repeats_the_rows_beside_it() -> None:
    def of(stage: str, name: str) -> Result:
        return Result(stage=stage, name=name, seed=0, start="a", sets=[], test={"task": True}, seconds=60)

    results = [
        of(START, "a"),
        of("algorithms", "GRPO"),
        of("algorithms", "PPO"),
        of("adapters", "LoRA, rank 16"),
    ]
    made = {table.stage: {row.name for row in table.rows} for table in tables(results, STAGES)}
    assert made == {"algorithms": {"GRPO", "PPO"}, "adapters": {"LoRA, rank 16", "GRPO"}}


def test_kept_results_are_of_the_settings_of_their_rows(tmp_path: Path) -> None:
    kept = read_results(arena.KEPT)
    assert arena.missing(options(tmp_path, only=None, seeds=3), kept) is not None
    assert {result.start for result in kept.values()} == {key[1] for key in kept if key[0] == START}
