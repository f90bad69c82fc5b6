"""Which stored rollouts supervised training imitates, and why not the others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hone.outcomes import Outcome
from hone.rollout.conversations import write_conversations
from hone.rollout.demonstrations import Demonstration
from hone.rollout.errors import StoreError
from hone.rollout.selection import select
from hone.rollout.store import Store
from hone.types import Trajectory, Verdict
from tests.train.trajectories import trajectory


def rollout(
    rollout_id: str, reply: str | None, outcome: Outcome = Outcome.RESOLVED, task: str = "t"
) -> Trajectory:
    said = [{"role": "user", "content": "fix it"}]
    said += [] if reply is None else [{"role": "assistant", "content": reply}]
    verdict = Verdict(resolved=outcome is Outcome.RESOLVED, tests={}, score=0.0)
    return replace(
        trajectory(rollout_id, outcome=outcome), task_id=task, messages=tuple(said), verdict=verdict
    )


def saved(run: Path, *rollouts: Trajectory) -> Path:
    store = Store(run / "rollouts")
    for index, each in enumerate(rollouts):
        store.save(each, group=0, index=index)
    return run


def decisions(paths: list[Path], **options: object) -> dict[str, str]:
    selection = select(paths, **options)  # type: ignore[arg-type]
    kept = {example.rollout_id.rpartition(":")[2] for example in selection.examples}
    found = {choice.rollout_id: choice.decision.value for choice in selection.choices}
    assert kept == {name for name, decision in found.items() if decision == "kept"}
    return found


def test_only_resolved_rollouts_are_kept(tmp_path: Path):
    run = saved(
        tmp_path / "run",
        rollout("good", "a"),
        rollout("late", "b", Outcome.TURN_LIMIT),
        rollout("bad", "c", Outcome.UNRESOLVED),
        rollout("cheat", "d", Outcome.TAMPERED),
        rollout("lost", "e", Outcome.SANDBOX_ERROR),
        rollout("mute", None),
    )
    expected = {
        "good": "kept",
        "late": "unresolved",
        "bad": "unresolved",
        "cheat": "unresolved",
        "lost": "infrastructure_fault",
        "mute": "no_reply",
    }
    assert decisions([run]) == expected
    every = decisions([run], only_resolved=False)
    assert every == {**expected, "late": "kept", "bad": "kept", "cheat": "kept"}


def test_the_shortest_rollouts_of_a_task_are_kept(tmp_path: Path):
    lengths = {"a": 9, "b": 3, "c": 5, "d": 7}
    run = saved(tmp_path / "run", *(rollout(name, "x" * n) for name, n in lengths.items()))
    other = saved(tmp_path / "other", rollout("e", "y" * 4), rollout("f", "z" * 99, task="u"))
    found = decisions([run, other], per_task=2)
    assert [name for name, decision in found.items() if decision == "kept"] == ["b", "e", "f"]
    assert found["a"] == "surplus"


def test_equal_conversations_are_kept_once(tmp_path: Path):
    one = saved(tmp_path / "one", rollout("a", "same"), rollout("b", "same"), rollout("c", "same", task="u"))
    two = saved(tmp_path / "two", rollout("d", "same"))
    assert decisions([one, two]) == {"a": "kept", "b": "repeated", "c": "kept", "d": "repeated"}


def test_ids_of_several_sources_stay_distinct(tmp_path: Path):
    """Trajectories of one id would be trained as one."""
    paths = [saved(tmp_path / name, rollout("s0g0-0", name)) for name in ("one", "two")]
    assert len({example.rollout_id for example in select(paths).examples}) == 2
    assert [example.rollout_id for example in select(paths[:1]).examples] == ["s0g0-0"]


def test_files_and_directories_are_combined(tmp_path: Path):
    run = saved(tmp_path / "run", rollout("a", "x"), rollout("b", "y", Outcome.UNRESOLVED))
    messages = ({"role": "user", "content": "?"}, {"role": "assistant", "content": "!"})
    write_conversations(
        [Demonstration(task_id="v", rollout_id="v", messages=messages)], tmp_path / "a.parquet"
    )
    selection = select([run, tmp_path / "a.parquet"])
    assert len(selection.examples) == 2
    header, *rows = [line.split() for line in selection.table()]
    assert header == [
        "source",
        "examples",
        "kept",
        "infrastructure_fault",
        "unresolved",
        "no_reply",
        "repeated",
        "surplus",
    ]
    assert [row[1:] for row in rows] == [
        ["2", "1", "0", "1", "0", "0", "0"],
        ["1", "1", "0", "0", "0", "0", "0"],
    ]
    selection.write(tmp_path / "selection.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "selection.jsonl").read_text().splitlines()]
    assert [(line["rollout_id"], line["decision"]) for line in lines[:2]] == [
        ("a", "kept"),
        ("b", "unresolved"),
    ]


def test_directory_without_rollouts_is_refused(tmp_path: Path):
    with pytest.raises(StoreError, match="has no folder rollouts: name the directory of a run"):
        select([tmp_path])
