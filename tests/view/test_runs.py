"""Runs below a directory, their pages and their rollouts, also while they are written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from hone.config import dump, resolve
from hone.outcomes import Outcome
from hone.rollout.ledger import Ledger
from hone.rollout.store import Store
from hone.view.errors import NotFound
from hone.view.library import Library
from hone.view.reader import RunReader
from hone.view.records import EvaluationPage, Filter, RunKind, RunPage, RunState
from hone.view.rollout_page import page_of
from hone.view.rollouts import rollout_table
from hone.view.runs import find_runs
from hone.view.values import json_ready
from hone.view.web.server import LOOPBACK_HOSTS, make_view_app
from tests.cli.fake_run import make_run, trajectory


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "all" / "run")


def library_of(run: Path) -> Library:
    return Library([run.parent])


def make_evaluation(folder: Path) -> Path:
    """Two samples of one task, and one that met a fault."""
    store = Store(folder / "rollouts")
    rows: list[dict[str, object]] = []
    for sample, outcome in enumerate((Outcome.RESOLVED, Outcome.UNRESOLVED, Outcome.SANDBOX_ERROR)):
        made = trajectory(f"train-0007-{sample}", outcome)
        name = store.save_sample(made, index=sample, meta={})
        rows.append(
            {"instance_id": "train-0007", "sample": sample, "resolved": outcome is Outcome.RESOLVED}
            | {"exit_status": outcome.value, "patch_source": None, "n_steps": 1, "error": None}
            | {"elapsed": 2.0, "run_dir": name, "score": 0.5, "reward": made.reward, "prompt_tokens": 5}
            | {"tokens": 2, "engine_s": 1.0, "command_timeouts": 0, "group": None}
        )
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_every_run_has_a_name_of_its_own(run: Path, tmp_path: Path) -> None:
    make_evaluation(run.parent / "deep" / "run")
    (run.parent / "empty").mkdir()
    found = find_runs([run.parent, run, tmp_path / "all" / "deep"])

    assert {name: path.relative_to(tmp_path) for name, path in found.items()} == {
        "run": Path("all/run"),
        "deep-run": Path("all/deep/run"),
    }
    lines = {line.name: line for line in library_of(run).runs()}
    assert [lines[name].kind for name in ("run", "deep-run")] == [RunKind.TRAINING, RunKind.EVALUATION]
    assert (lines["run"].step, lines["run"].rollouts, lines["run"].resolve_rate) == (2, 7, 1.0)
    assert (lines["deep-run"].rollouts, lines["deep-run"].resolve_rate) == (3, 0.5)


def test_run_is_running_while_a_process_holds_its_lock(run: Path) -> None:
    library = library_of(run)
    assert library.runs()[0].state is RunState.STOPPED
    with Ledger.open(run):
        assert library.runs()[0].state is RunState.RUNNING
    assert library.runs()[0].state is RunState.STOPPED


def test_reading_leaves_no_trace(run: Path) -> None:
    before = sorted(path.relative_to(run) for path in run.rglob("*"))
    library = library_of(run)
    row = library.rollouts("run", Filter()).rows[-1]
    library.run("run")
    library.rollout("run", row.directory or "")
    library.tokens("run", row.directory or "")
    assert sorted(path.relative_to(run) for path in run.rglob("*")) == before


def test_page_of_a_run_tells_what_happened(run: Path) -> None:
    with Ledger.open(run) as ledger:  # ends the rollout of the killed process
        ledger.set_aside("bad", [], group_id="g9", until=9, reason="only faults")
        ledger.dispatch("r21", group_id="g2", index=1, position=2, task_id="t", sampled_version=2)
        page = library_of(run).run("run")
    assert isinstance(page, RunPage)

    assert page.counts["dropped"] == {"interrupted": 1, "no_tokens": 1, "sandbox_error": 1}
    assert [each.rollout_id for each in page.running] == ["r21"]
    assert page.set_aside == {"bad": "only faults"}
    assert {event.kind for event in page.events} == {"started", "resumed", "fault", "set aside"}
    assert [event.at for event in page.events] == sorted((e.at for e in page.events), reverse=True)
    rate, reward = page.panels[0].series[0], page.panels[1].series[0]
    assert [(p.step, p.value) for p in reward.points] == [(0, 0.0), (1, pytest.approx(1 / 3))]
    assert all(p.low is not None and p.high is not None and p.low < p.value for p in rate.points)
    assert {(o.outcome, o.total, o.counts.get(1, 0)) for o in page.outcomes} >= {("resolved", 3, 2)}
    busy = next(panel for panel in page.panels if panel.title == "Busy")
    assert [(s.title, s.points[1].value) for s in busy.series] == [
        ("engine", 0.5),
        ("sandbox", 0.1),
        ("trainer", 0.75),
    ]
    assert page.bottleneck.startswith("busiest: trainer 75 %")


def test_table_knows_the_ledger_at_once_and_stored_files_later(run: Path) -> None:
    reader = RunReader("run", run)
    first = rollout_table(reader, Filter(sort="rollout_id"), read_s=0.0)
    assert (first.complete, first.total, first.rows[-1].turns) == (False, 7, None)
    assert [row.rollout_id for row in first.rows][:2] == ["broken", "flat"]
    later = rollout_table(reader, Filter(sort="rollout_id"), read_s=None)
    assert (later.complete, later.rows[-2].turns, later.rows[-2].sampled_tokens) == (True, 1, 2)

    for path in (run / "rollouts").glob("*/meta.json"):
        path.unlink()  # each was read, and is not read again
    assert rollout_table(reader, Filter(sort="rollout_id")).rows == later.rows
    with Ledger.open(run) as ledger:
        ledger.dispatch("new", group_id="g5", index=0, position=5, task_id="t", sampled_version=2)
    again = rollout_table(reader, Filter(sort="-dispatched_at"))
    assert (again.total, again.rows[0].rollout_id) == (8, "new")


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        (Filter(outcome="resolved"), 3),
        (Filter(disposition="masked"), 1),
        (Filter(step=1, min_reward=0.0), 2),
        (Filter(group="g0"), 3),
        (Filter(min_tokens=1, max_tokens=5), 5),
        (Filter(tampered=True), 0),
        (Filter(forks=False, signals=False), 7),
        (Filter(task="0007"), 7),
        (Filter(task="0008"), 0),
    ],
)
def test_filters_choose_rollouts(run: Path, chosen: Filter, found: int) -> None:
    table = library_of(run).rollouts("run", chosen, 0, 2)
    assert (table.found, table.total, len(table.rows)) == (found, 7, min(found, 2))


def test_page_of_a_rollout_holds_its_neighbours_and_its_group(run: Path) -> None:
    library = library_of(run)
    rows = {row.rollout_id: row for row in library.rollouts("run", Filter()).rows}
    page = library.rollout("run", rows["r11"].directory or "")

    assert (page.previous, page.next) == (rows["r10"].directory, rows["flat"].directory)
    assert [row.rollout_id for row in page.group] == ["r10", "r11", "flat"]
    assert (page.row.step, page.row.staleness, page.row.disposition) == (1, 0, "trained")
    assert [lane.name for lane in page.lanes] == ["agent", "grade"]
    assert page.lanes[1].begins == 0.5
    assert {line.kind for line in page.patch} == {"file"}
    group = library.group("run", "g1")
    assert [len(turns) for turns in group.turns] == [3, 3, 3]
    alone = page_of(trajectory("r11", Outcome.RESOLVED))
    assert alone.turns == page.turns


@pytest.mark.parametrize("name", ["gone", "../run", "..", ""])
def test_what_does_not_exist_is_not_found(run: Path, name: str) -> None:
    library = library_of(run)
    for ask in (library.rollout, library.tokens, library.group, library.task):
        with pytest.raises(NotFound):
            ask("run", name)
    with pytest.raises(NotFound, match="there is no run 'other': there are run"):
        library.run("other")
    with pytest.raises(NotFound, match="compare two to 6"):
        library.compare(["run"])


def test_tokens_bear_advantages_and_the_reason_of_their_weight(run: Path) -> None:
    library = library_of(run)
    rows = {row.rollout_id: row for row in library.rollouts("run", Filter()).rows}
    page = library.tokens("run", rows["r00"].directory or "")

    prompt, reply = page.nodes
    assert (page.tokens, page.sampled, page.trained, page.source) == (4, 2, 2, "")
    assert (prompt.why, reply.why) == ("rendered, not sampled", "trained by step 0")
    assert (reply.logprobs, reply.weights) == ((-0.5, -0.25), (1.0, 1.0))
    assert reply.trainer_logprobs == (None, None)
    masked = library.tokens("run", rows["r01"].directory or "").nodes[1]
    assert masked.weights == (0.0, 0.0)
    assert masked.why == "masked: the recipe trains no rollout that ended as turn_limit"
    dropped = library.tokens("run", rows["flat"].directory or "").nodes[1]
    assert dropped.why == "in a dropped rollout: no_tokens"


def test_evaluation_is_shown_before_it_has_ended(tmp_path: Path) -> None:
    library = Library([make_evaluation(tmp_path / "test")])
    page = library.run("test")
    assert isinstance(page, EvaluationPage)

    assert (page.line.state, page.summary["n"], page.summary["resolved"]) == (RunState.STOPPED, 2, 1)
    assert {each.outcome: each.total for each in page.outcomes} == {
        "resolved": 1,
        "unresolved": 1,
        "sandbox_error": 1,
    }
    (task,) = page.tasks
    assert (task.id, task.resolved, task.samples, len(task.rollouts)) == ("train-0007", 1, 2, 3)
    assert page.notes[0].startswith("1 of 3 samples ended in an infrastructure fault.")
    table = library.rollouts("test", Filter(outcome="resolved"))
    assert library.rollout("test", table.rows[0].directory or "").row.resolved is True


def test_files_of_a_run_are_those_that_pages_name(tmp_path: Path) -> None:
    folder = make_evaluation(tmp_path / "test")
    (folder / "secret.txt").touch()
    library = Library([folder])
    rollout = library.rollouts("test", Filter()).rows[0].directory
    assert library.file("test", "results.jsonl") == folder / "results.jsonl"
    assert library.file("test", f"rollouts/{rollout}/patch.diff").is_file()
    for path in (
        "summary.json",  # not there yet
        "secret.txt",
        "../test/results.jsonl",
        "rollouts/../results.jsonl",
        f"rollouts/{rollout}/../../results.jsonl",
        f"rollouts/{rollout}",
        "",
    ):
        with pytest.raises(NotFound, match=r"no file|no stored rollout"):
            library.file("test", path)


def test_comparison_has_one_series_per_run(run: Path) -> None:
    make_run(run.parent / "other")
    (run / "config.toml").write_text("groups_per_step = 3\n")
    page = library_of(run).compare(["run", "other"])

    charts = dict(page.panels)
    assert [series.title for series in charts["Reward"]] == ["run", "other"]
    assert page.differences == (("groups_per_step", ("3", "8")),)


def test_numbers_that_are_not_finite_become_null() -> None:
    values = {"a": float("nan"), "b": (1.0, float("inf")), "c": Outcome.RESOLVED, "d": Path("x")}
    assert json_ready(values) == {"a": None, "b": [1.0, None], "c": "resolved", "d": "x"}
    json.dumps(json_ready(values), allow_nan=False)
    with pytest.raises(TypeError, match="has no JSON form"):
        json_ready(object())


def test_recipe_is_compared_with_its_parent(run: Path, tmp_path: Path) -> None:
    base, own = tmp_path / "base.toml", tmp_path / "own.toml"
    base.write_text('groups_per_step = 3\n[tasks]\ntrain = 9\n[model]\npath = "m"\n')
    own.write_text('extends = "base.toml"\n[tasks]\ntrain = 7\n')
    (run / "config.toml").write_text(dump(resolve(own, ["groups_per_step=8"])))
    page = library_of(run).run("run")
    assert isinstance(page, RunPage)
    assert page.parent == str(base)
    found = {each.key: (each.value, each.other) for each in page.differences}
    assert found == {
        "run_dir": ('"runs/own"', ""),
        "tasks.train": ("7", "9"),
        "groups_per_step": ("8", "3"),
    }

    base.unlink()
    without = library_of(run).run("run")
    assert isinstance(without, RunPage)
    assert without.parent == ""
    assert "model.path" in {each.key for each in without.differences}


def test_sft_is_a_training_without_rollouts(tmp_path: Path) -> None:
    folder = tmp_path / "all" / "sft"
    folder.mkdir(parents=True)
    records = [{"kind": "sft", "step": step, "time": 0.0, "loss": 3.0 - step} for step in range(2)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    library = Library([tmp_path / "all"])
    (line,) = library.runs()
    assert (line.name, line.kind, line.state, line.step) == ("sft", RunKind.TRAINING, RunState.STOPPED, 2)
    assert not line.samples
    assert replace(line, kind=RunKind.EVALUATION).samples  # an evaluation before its first result
    page = library.run("sft")
    assert isinstance(page, RunPage)
    assert [(panel.title, len(panel.series[0].points)) for panel in page.panels] == [("Loss", 2)]

    app = make_view_app(library, token="", hosts=LOOPBACK_HOSTS)
    shown = TestClient(app, base_url="http://localhost").get("/runs/sft").text
    assert "Loss" in shown
    assert not any(word in shown for word in ("Rollouts", "In flight", "Running now"))

    (folder / "checkpoints" / "step-000001").mkdir(parents=True)
    assert [line.state for line in library.runs()] == [RunState.FINISHED]
