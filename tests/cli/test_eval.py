"""`hone eval` and `hone compare` from end to end: real sandboxes, scripted agents, a tiny local model."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hone.agents as hone_agents
from hone.policy.settings import TinyModelSettings
from hone.policy.tiny import make_tiny
from hone.rollout.store import load
from hone.tasks.formats import save
from hone.view.rollout_page import page_of
from tests.cli.in_process import Hone
from tests.e2e.small_run import REPOSITORY
from tests.grading.calc import BUGGY, GOLD, OLD_TEST, TEST_PATCH, git
from tests.rollout.real import tasks
from tests.view.pages import read

pytestmark = pytest.mark.sandbox

# The scripted agents, and a model that has learned nothing, work in the scaffold of the small tasks.
SMALL = ("--set", "agent.prompts=tiny", "--set", "sandbox.memory_mib=512")


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of six tasks, whatever sets they say they are of."""
    path = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    save(tasks(6), path)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    texts = [task.problem for task in tasks(6)]
    shape = TinyModelSettings(
        vocab_size=400, hidden_size=32, layers=1, heads=2, kv_heads=1, intermediate_size=32
    )
    make_tiny(texts, folder, shape)
    return folder


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


def test_an_agent_is_measured_without_a_recipe(hone: Hone, six: Path, tmp_path: Path):
    out = tmp_path / "out"
    code, said, _ = hone(
        "eval", "--agent", "oracle", "--tasks", six, "-o", out, "--slice", "1:3", *SMALL, "--json"
    )
    assert code == 0
    summary = json.loads(said)
    assert (summary["model"], summary["data"], summary["out"]) == ("oracle", str(six), str(out))
    assert (summary["n"], summary["resolve_rate"]) == (2, 1.0)
    assert {row["instance_id"] for row in rows(out)} == {task.id for task in tasks(6)[1:3]}
    page = read((out / "report.html").read_text())
    assert "resolved: 2 of 2" in page.text
    assert {f"rollouts/{row['run_dir']}/patch.diff" for row in rows(out)} <= set(page.links)
    for row in rows(out):
        folder = out / "rollouts" / row["run_dir"]
        assert load(folder).task_id == row["instance_id"]
    predictions = json.loads((out / "preds.json").read_text())
    assert all(each["model_patch"].startswith("diff --git") for each in predictions.values())


@pytest.mark.full
def test_predictions_of_eval_are_gradable(hone: Hone, six: Path, tmp_path: Path):
    out = tmp_path / "out"
    hone("eval", "--agent", "oracle", "--tasks", six, "-o", out, "--slice", ":2", *SMALL)
    for name in ("preds.jsonl", "preds.json"):
        code, said, _ = hone(
            "grade", "--tasks", six, "--predictions", out / name, "-o", tmp_path / name, "--json",
            "--set", "sandbox.memory_mib=512",
        )  # fmt: skip
        assert (code, json.loads(said)["resolved_instances"]) == (0, 2)


def test_rows_are_evaluated_on_local_repositories(hone: Hone, tmp_path: Path):
    folder = tmp_path / "repos" / "someone__calc"
    (folder / "tests").mkdir(parents=True)
    (folder / "calc").mkdir()
    (folder / "calc" / "__init__.py").write_text(BUGGY)
    (folder / "tests" / "test_calc.py").write_text(OLD_TEST)
    git(folder, "init", "-q", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "Base")
    row = {
        "repo": "someone/calc",
        "base_commit": git(folder, "rev-parse", "HEAD"),
        "patch": GOLD,
        "test_patch": TEST_PATCH,
        "problem_statement": "add subtracts",
        "version": "1.0",
        "FAIL_TO_PASS": json.dumps(["tests/test_calc.py::test_add"]),
        "PASS_TO_PASS": json.dumps(["tests/test_calc.py::test_nothing"]),
    }
    (tmp_path / "rows.jsonl").write_text(json.dumps({"instance_id": "someone__calc-1", **row}) + "\n")
    arguments = ("eval", "--agent", "oracle", "--tasks", tmp_path / "rows.jsonl", "-o", tmp_path / "out")
    code, said, err = hone(*arguments, "--repo-root", tmp_path / "repos", "--json")
    assert code == 0, err
    summary = json.loads(said)
    assert (summary["resolve_rate"], list(summary["groups"])) == (1.0, ["someone/calc"])
    code, _, err = hone(*arguments[:-1], tmp_path / "other", "--repo-root", tmp_path / "out")
    assert (code, "1 of 1 tasks have no repository below evaluate.repo_root: " in err) == (1, True)


def test_evaluation_continues_only_with_resume(hone: Hone, six: Path, tmp_path: Path):
    arguments = ("eval", "--agent", "noop", "--tasks", six, "-o", tmp_path / "out", *SMALL)
    assert hone(*arguments, "--slice", "0:1")[0] == 0
    code, said, err = hone(*arguments, "--slice", "0:1")
    assert (code, said) == (1, "")
    assert "already holds results of this evaluation: add --resume" in err
    assert len(err.strip().splitlines()) == 1
    before = (tmp_path / "out" / "results.jsonl").read_bytes()
    assert hone(*arguments, "--slice", "0:1", "--resume")[0] == 0
    assert (tmp_path / "out" / "results.jsonl").read_bytes() == before
    code, _, err = hone(*arguments, "--slice", "0:2", "--resume")
    assert (code, "holds another evaluation" in err) == (1, True)


def test_changed_tasks_are_another_evaluation(hone: Hone, tmp_path: Path):
    path = tmp_path / "tasks.jsonl"
    arguments = ("eval", "--agent", "noop", "--tasks", path, "-o", tmp_path / "out", *SMALL)
    save(tasks(6)[:1], path)
    assert hone(*arguments)[0] == 0
    save([dataclasses.replace(tasks(6)[0], problem="Something else is wrong.")], path)
    code, _, err = hone(*arguments, "--resume")
    assert (code, "holds another evaluation" in err) == (1, True)


@pytest.mark.full
def test_killed_evaluation_resumes_and_keeps_results(hone: Hone, six: Path, tmp_path: Path):
    out = tmp_path / "out"
    arguments = ["--agent", "oracle", "--tasks", str(six), "-o", str(out), "--samples", "2", "--slice", "0:4"]
    arguments += ["--concurrency", "2", *SMALL]
    killed = subprocess.run(
        [sys.executable, "-m", "tests.cli.killed_eval", "4", *arguments],
        capture_output=True, text=True, check=False, timeout=200, cwd=REPOSITORY,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    kept = (out / "results.jsonl").read_bytes()
    assert kept.count(b"\n") == 3
    assert not (out / "summary.json").exists()

    code, _, err = hone("eval", *arguments)
    assert (code, "add --resume" in err) == (1, True)
    code, said, err = hone("eval", *arguments, "--resume", "--json")
    assert code == 0, err
    summary = json.loads(said)
    assert (summary["total"], summary["resolved"], summary["pass_at"]) == (8, 8, {"1": 1.0, "2": 1.0})
    assert (out / "results.jsonl").read_bytes().startswith(kept)
    named = {row["run_dir"] for row in rows(out)}
    assert len(named) == len(rows(out)) == 8
    assert {path.name for path in (out / "rollouts").iterdir()} == named  # nothing half written is left


@pytest.mark.full
@pytest.mark.model
def test_temperature_sweep_writes_one_table(hone: Hone, six: Path, model: Path, tmp_path: Path):
    out = tmp_path / "out"
    arguments = [
        "eval", "--agent", "bash", "--model", model, "--tasks", six, "-o", out, "--slice", ":2",
        "--samples", "2", "--temperature", "0,0.7", *SMALL, "--set", "sampling.max_tokens=12",
        "--set", "engine.context_tokens=1024", "--set", "agent.turn_limit=2",
        "--set", "evaluate.price_per_million_sampled=1000000",
    ]  # fmt: skip
    code, said, _ = hone(*arguments, "--json")
    assert code == 0
    sweep = json.loads(said)
    assert [each["temperature"] for each in sweep["evaluations"]] == [0.0, 0.7]
    for each in sweep["evaluations"]:
        folder = out / each["directory"]
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["args"]["sampling"]["temperature"] == each["temperature"]
        assert (summary["total"], summary["trainable"]) == (4, True)
        assert summary["tokens"] > 0
        assert summary["cost"] == pytest.approx(summary["tokens"])
        assert summary["engine_s"] > 0
        for row in rows(folder):
            trajectory = load(folder / "rollouts" / row["run_dir"])
            assert trajectory.tree.sampled_tokens == row["tokens"] > 0
            assert trajectory.sampler.sampling["temperature"] == each["temperature"]
    greedy = [row for row in rows(out / "temperature-0") if row["instance_id"] == tasks(6)[0].id]
    patches = [load(out / "temperature-0" / "rollouts" / row["run_dir"]).turns for row in greedy]
    assert patches[0][0].reply == patches[1][0].reply  # the likeliest tokens, both times
    page = read((out / "report.html").read_text())
    assert "temperature-0.7/report.html" in page.links

    code, said, err = hone(*arguments)
    assert (code, "add --resume" in err) == (1, True)
    code, said, _ = hone(*arguments, "--resume")
    assert (code, "temperature" in said) == (0, True)

    assert hone("show", out)[1] == said
    assert json.loads(hone("show", out / "temperature-0", "--json")[1])["n"] == 4
    one, two = (out / f"temperature-{t}" for t in ("0", "0.7"))
    code, said, _ = hone("compare", one, two, "--html", tmp_path / "c.html")
    assert code == 0
    assert "settings other than the model differ" in said
    assert "sampling.temperature" in said
    page = read((tmp_path / "c.html").read_text())
    assert page.links == ["out/temperature-0/report.html", "out/temperature-0.7/report.html"]


@pytest.mark.full
@pytest.mark.model
def test_conversations_are_cut_to_the_context(hone: Hone, six: Path, model: Path, tmp_path: Path):
    prompts = tmp_path / "prompts.yaml"
    tiny = (Path(hone_agents.__file__).parent / "prompts" / "tiny.yaml").read_text()
    prompts.write_text(re.sub(r"(max_consecutive_format_errors): \d+", r"\1: 0", tiny))
    code, _, err = hone(
        "eval", "--agent", "bash", "--engine", "local", "--model", model, "--tasks", six,
        "-o", tmp_path / "out", "--slice", ":1", "--set", f"agent.prompts={prompts}",
        "--set", "sandbox.memory_mib=512", "--set", "sampling.max_tokens=16", "--set", "agent.turn_limit=8",
        "--set", "engine.context_tokens=300", "--set", "agent.context.policy=head_tail",
    )  # fmt: skip
    assert code == 0, err
    (row,) = rows(tmp_path / "out")
    assert (row["exit_status"], row["n_steps"]) == ("turn_limit", 8)
    folder = tmp_path / "out" / "rollouts" / row["run_dir"]
    trajectory = load(folder)
    calls = trajectory.calls
    assert all(call.prompt_tokens <= 300 - 16 for call in calls)
    assert sum(trajectory.forks.values()) == sum(call.fork is not None for call in calls) > 0
    for call in calls:  # each reply was sampled after exactly the prompt that its call counts
        path = trajectory.tree.tokens(call.node)
        assert len(path) == call.prompt_tokens + call.sampled_tokens
    view = page_of(trajectory)
    assert view.forks == trajectory.forks
    assert len(view.calls) == len(calls)


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["--slice", "0-5"], "--slice: evaluate.slice: '0-5' is not a slice such as 0:5", 2),
        (["--slice", "6:"], "the slice 6: holds none of the 6 tasks", 1),
        (["--agent", "orcale"], "there is no agent 'orcale': did you mean oracle?", 2),
        (["--agent", "qwen-code"], "did you mean blackbox:qwen-code?", 2),
        (["--agent", "blackbox"], "did you mean blackbox:codex?", 2),
        (["--agent", "blackbox:qwen"], "did you mean blackbox:qwen-code?", 2),
        (["--provider", "dockr"], "'dockr' is not one of 'namespaces', 'docker', 'pool'", 2),
        (["--tasks", "gone.jsonl"], "prerequisites: the tasks, in gone.jsonl: see hone tasks import", 2),
        (["--ids", "gone.txt"], "cannot read ids from gone.txt: No such file or directory", 1),
        (["--agent", "bash", "--temperature", "hot"], "--temperature: sampling.temperature = 'hot': ", 2),
        (["--agent", "noop", "--temperature", "0"], "--temperature has no effect: the agent noop is", 2),
        (["--agent", "noop", "--model", "m"], "--model has no effect: the agent noop is scripted", 2),
        (["--agent", "bash", "--model", "gone"], "gone", 2),
        (["--agent", "bash"], "model.path is missing", 2),
        (["--agent", "noop", "--set", "agent.kind=oracle"], "--agent and --set agent.kind=... both set", 2),
        (["--set", "evaluate.slices=0:5"], "unknown key evaluate.slices: did you mean evaluate.slice?", 2),
        (["--venv", "v"], "--venv has no effect without --repo-root", 2),
        (["--samples", "0"], "Invalid value for '--samples'", 2),
        (["-o", "/dev/null/x"], "cannot write /dev/null/x (not a directory): choose another directory", 1),
    ],
)  # fmt: skip
def test_invalid_flags_give_one_sentence(
    hone: Hone, six: Path, tmp_path: Path, arguments: list[str], said: str, code: int
):
    given = {"--agent": "noop", "--tasks": str(six), "-o": str(tmp_path / "out")}
    rest = [word for flag, value in given.items() if flag not in arguments for word in (flag, value)]
    ended, out, err = hone("eval", *rest, *arguments)
    assert (ended, out) == (code, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--agent", "noop"], "missing --tasks, -o"),
        ([], "pass a RECIPE, or all of --agent, --tasks and -o: missing --agent, --tasks, -o"),
        (["RECIPE", "--resume"], "--resume needs -o, the directory to continue in"),
    ],
)
def test_missing_flags_are_listed(hone: Hone, tmp_path: Path, arguments: list[str], said: str):
    recipe = tmp_path / "r.toml"
    recipe.write_text("seed = 1\n")
    code, _, err = hone("eval", *(recipe if word == "RECIPE" else word for word in arguments))
    assert (code, said in err) == (2, True), err


def test_flags_override_a_recipe(hone: Hone, tmp_path: Path):
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        f'run_dir = "{tmp_path}/run"\n[agent]\nprompts = "tiny"\n[tasks]\ntrain = 0\ntest = 3\nunseen = 0\n'
    )
    arguments = ("eval", recipe, "--agent", "noop", "--slice", ":1", "--json")
    code, said, _ = hone(*arguments)
    assert code == 0
    summary = json.loads(said)
    assert Path(summary["out"]).parent == tmp_path / "run" / "eval"
    assert (summary["n"], summary["resolved"]) == (1, 0)
    assert json.loads(hone(*arguments)[1])["out"] == summary["out"]  # goes on by itself
    code, said, _ = hone("eval", recipe, "--agent", "noop", "--slice", ":2", "--samples", "3", "--dry-run")
    assert (code, "rollouts" in said) == (0, True)
    assert next(line.split()[1] for line in said.splitlines() if line.startswith("rollouts")) == "6"
