"""The commands as a user meets them: what they print, how they end."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from hone.cli import main, output
from hone.config import ConfigError
from tests.cli.fake_run import make_run

Hone = Callable[..., tuple[int, str, str]]
COMMANDS = [
    "doctor",
    "plan",
    "quickstart",
    "sft",
    "train",
    "eval",
    "replay",
    "export",
    "show",
    "compare",
    "grade",
]
TASKS = ["show", "generate", "import", "export", "validate", "mine", "mutate"]


@pytest.fixture
def hone(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Hone:
    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hone", *map(str, arguments)])
        monkeypatch.setattr(output, "PLAIN_WIDTH", 300)  # no path of a temporary folder breaks a line
        code = main()
        out, err = capfd.readouterr()
        return code, out, err

    return run


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text('[agent]\nprompts = "tiny"\n[tasks]\ntrain = 4\ntest = 2\nunseen = 1\n')
    return path


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return make_run(tmp_path / "runs" / "small")


def test_cli_import_loads_no_heavy_module():
    heavy = "torch transformers pyarrow pydantic numpy renderers rich.console sqlite3 asyncio"
    code = f"import sys, hone.cli; print([name for name in {heavy.split()} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", [[c] for c in COMMANDS] + [["tasks", c] for c in TASKS])
def test_every_command_help_has_an_example(hone: Hone, command: list[str]):
    code, out, _ = hone(*command, "--help")
    assert code == 0
    assert f"Example: hone {' '.join(command)}" in out


def test_help_config_lists_settings_with_descriptions(hone: Hone):
    code, out, _ = hone("train", "--help-config")
    assert code == 0
    assert "[train.loss]" in out
    assert "The probability ratio is clipped below 1 - clip_low." in out
    assert "'constant' | 'linear' | 'cosine'" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], "Did you mean 'train'?"),
        (["train"], "Missing argument 'RECIPE'"),
        (["train", "gone.toml"], "there is no recipe gone.toml"),
        (["train", "RECIPE", "--stepz", "3"], "No such option: --stepz"),
        (["train", "RECIPE"], "model.path is missing: set it in the recipe"),
        (["eval", "RECIPE", "--set", "agent.knid=noop"], "unknown key agent.knid: did you mean agent.kind?"),
        (
            ["quickstart", "RECIPE", "--set", "train.steps=x"],
            "train.steps = 'x': it should be a valid integer",
        ),
        (["quickstart", "RECIPE"], "set tasks.train above the 512 of demonstrations.rollouts"),
        (["tasks", "show", "RECIPE", "tset-0000"], "there is no task tset-0000: did you mean test-0000?"),
        (["tasks", "show", "RECIPE", "4"], "the set train has 4 tasks: pass an index from 0 to 3"),
        (["tasks", "show", "RECIPE", "0", "--split", "tets"], "'tets' is not one of 'train', 'validation'"),
        (["doctor", "--set", "train.steps=3"], "--set changes a recipe: pass one"),
        (["show", "nowhere"], "there is no run nowhere"),
        (["show", "nowhere/r1"], "there is no run nowhere/r1"),
        (["compare", "a", "b"], "a holds no evaluation"),
        (["replay", "a", "--out", "b"], "a holds no run"),
    ],
)
def test_misuse_is_one_sentence_and_exit_code_2(hone: Hone, recipe: Path, arguments: list[str], said: str):
    code, out, err = hone(*(recipe if word == "RECIPE" else word for word in arguments))
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1
    assert err.startswith("hone: ")


def test_a_failure_is_one_sentence_and_exit_code_1(hone: Hone, run_dir: Path):
    damaged = next((run_dir / "rollouts").iterdir())
    (damaged / "tokens.parquet").write_bytes(b"cut")
    code, out, err = hone("show", run_dir / damaged.name)
    assert (code, out, len(err.strip().splitlines())) == (1, "", 1)
    assert "is not a complete rollout" in err


@pytest.mark.parametrize("arguments", [["--debug", "train", "gone.toml"], ["train", "gone.toml", "--debug"]])
def test_debug_shows_where_an_error_comes_from(hone: Hone, arguments: list[str]):
    with pytest.raises(ConfigError):
        hone(*arguments)


def test_a_dry_run_prints_the_plan_and_starts_nothing(hone: Hone, recipe: Path, monkeypatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    code, out, _ = hone("quickstart", recipe, "--set", "train.steps=3", "--set", "sft.epochs=1", "--dry-run")
    assert code == 0
    assert {"steps", "rollouts", "tokens", "sandboxes", "memory"} <= {
        line.split()[0] for line in out.splitlines() if line.strip()
    }
    assert "Nothing was started" in out
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


def test_run_counts_as_json(hone: Hone, run_dir: Path):
    code, out, _ = hone("show", run_dir, "--json")
    assert code == 0
    shown = json.loads(out)
    steps = [(r["step"], r["rollouts"], r["reward"], r["resolve_rate"]) for r in shown.pop("curve")]
    assert steps == [(0, 2, 0.0, 0.5), (1, 3, pytest.approx(1 / 3), 1.0)]
    assert shown == {
        "dispatched": 7,
        "trained": 3,
        "masked": 1,
        "dropped": {"sandbox_error": 1, "no_tokens": 1},
        "in_flight": 1,
        "steps": 2,
        "outcomes": {"resolved": 3, "unresolved": 1, "turn_limit": 1, "sandbox_error": 1},
        "validations": [],
        "staleness": {"0": 5},
        "set_aside": {},
        "busy": {"engine": 0.25, "sandbox": 0.1, "trainer": 0.75},
        "parked": 0.25,
    }


def test_run_shows_in_one_line_what_it_waits_for(hone: Hone, run_dir: Path):
    _, out, _ = hone("show", run_dir)
    assert (
        "busiest: trainer 75 %; engine 25 %; sandbox 10 %; 25 % of the rollouts were parked; "
        "a step waited 2.0 s for its batch"
    ) in out


def test_a_runs_curve(hone: Hone, run_dir: Path):
    code, out, _ = hone("show", run_dir)
    assert code == 0
    rows = [line.split() for line in out.splitlines() if line.strip()[:1].isdigit()]
    assert [row[:4] for row in rows] == [["0", "2", "+0.000", "50.0"], ["1", "3", "+0.333", "100.0"]]
    assert out.count("█") == 10 + 20


def test_a_run_is_found_by_its_name_below_runs(hone: Hone, run_dir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(run_dir.parent.parent)
    assert hone("show", "small", "--json")[0] == 0
    assert "runs/ contains small" in hone("show", "smal")[2]


def test_a_rollout_turn_by_turn(hone: Hone, run_dir: Path):
    code, out, _ = hone("show", f"{run_dir}/train-0007__g0__i0")
    assert code == 0
    for part in (
        "You fix bugs.",
        "add is wrong",
        "turn 0",
        "sed -i s/-/+/ adder.py",
        "diff --git",
        "test_add",
        "resolved, reward +1",
    ):
        assert part in out


def test_a_rollout_as_json(hone: Hone, run_dir: Path):
    _, out, _ = hone("show", f"{run_dir}/train-0007__g0__i1", "--json")
    record = json.loads(out)
    assert (record["outcome"], record["reward"], record["resolved"]) == ("turn_limit", -1.0, False)


def test_rollout_prefix_must_match_exactly_one(hone: Hone, run_dir: Path):
    assert "5 rollouts start with 'train'" in hone("show", f"{run_dir}/train")[2]
    assert "no rollout whose name starts with 'xyz': 5 are stored" in hone("show", f"{run_dir}/xyz")[2]


def test_hidden_tests_are_shown_only_with_reveal(hone: Hone, recipe: Path):
    _, hidden, _ = hone("tasks", "show", recipe, "test-0000")
    _, shown, _ = hone("tasks", "show", recipe, "test-0000", "--checks")
    for secret in ("hidden: ", "gold patch ─", "fail to pass", "family"):
        assert secret not in hidden
        assert secret in shown
    _, out, _ = hone("tasks", "show", recipe, "0", "--split", "test", "--json")
    assert {"checks", "metadata"}.isdisjoint(json.loads(out))


def test_generated_tasks_are_the_recipes_tasks(hone: Hone, recipe: Path, tmp_path: Path):
    code, out, _ = hone("tasks", "generate", recipe, "--out", tmp_path / "tasks.jsonl")
    assert code == 0
    assert "4 train, 0 validation, 2 test, 1 test_unseen" in out
    _, again, _ = hone(
        "tasks", "show", recipe, "test-0001", "--set", f"tasks.source={tmp_path / 'tasks.jsonl'}"
    )
    assert again == hone("tasks", "show", recipe, "test-0001")[1]


def evaluation(folder: Path, resolved: list[bool]) -> Path:
    folder.mkdir()
    rows = [
        {
            "instance_id": f"t{i}",
            "sample": 0,
            "resolved": won,
            "exit_status": "resolved" if won else "unresolved",
            "run_dir": f"t{i}__1",
        }
        for i, won in enumerate(resolved)
    ]
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_import_and_export_round_trip_and_report_rejections(hone: Hone, tmp_path: Path):
    row = {
        "instance_id": "o__n-1",
        "repo": "o/n",
        "problem_statement": "Broken.",
        "FAIL_TO_PASS": '["t.py::a"]',
    }
    rows, tasks, out = (tmp_path / name for name in ("rows.jsonl", "tasks.jsonl", "out.jsonl"))
    rows.write_text(
        f"{json.dumps(row)}\n{json.dumps({**row, 'instance_id': 'o__n-2', 'FAIL_TO_PASS': []})}\n"
    )
    code, said, warned = hone("tasks", "import", rows, "--format", "swe-bench", "-o", tasks)
    assert (code, said) == (0, f"{tasks}: 1 tasks; 1 rows refused, 0 repeated.\n")
    assert warned == f"{rows}: row 2 (o__n-2): `FAIL_TO_PASS` names no test\n"
    lists = tmp_path / "lists"
    code, _, _ = hone("tasks", "export", tasks, "--format", "swe-bench", "-o", out, "--lists", lists)
    assert code == 0
    assert json.loads(out.read_text()) == row
    assert (lists / "instance_ids.txt").read_text() == "o__n-1\n"
    assert (lists / "docker_images.txt").read_text() == "swebench/sweb.eval.x86_64.o_1776_n-1:latest\n"
    code, _, said = hone("tasks", "import", rows, "--format", "kodcode", "-o", tmp_path / "none.jsonl")
    assert code == 1
    assert said.count("`question` is missing") == 2
    assert not (tmp_path / "none.jsonl").exists()
    code, _, said = hone("tasks", "export", tasks, "--format", "swebench", "-o", out)
    assert code == 2
    assert "'swebench' is not one of 'hone', 'swe-bench'" in said


def test_a_stored_log_is_graded_as_the_harness_does(hone: Hone, tmp_path: Path):
    row = {"instance_id": "o__n-1", "repo": "o/n", "problem_statement": "Wrong.", "FAIL_TO_PASS": ["t.py::a"]}
    rows, tasks, log = (tmp_path / name for name in ("rows.jsonl", "tasks.jsonl", "log"))
    rows.write_text(json.dumps({**row, "PASS_TO_PASS": ["t.py::b"]}) + "\n")
    hone("tasks", "import", rows, "--format", "swe-bench", "-o", tasks)
    log.write_text(">>>>> Start Test Output\nPASSED t.py::a\nFAILED t.py::b - no\n>>>>> End Test Output\n")
    arguments = ("grade", "--tasks", tasks, "--log", log, "--task")
    code, said, _ = hone(*arguments, "o__n-1")
    assert (code, said) == (0, "o__n-1: RESOLVED_NO: 1 of 1 tests fixed, 0 of 1 kept.\n  t.py::b\n")
    code, said, _ = hone(*arguments, "o__n-1", "--json")
    told = json.loads(said)["o__n-1"]
    assert (code, told["resolved"], told["patch_successfully_applied"]) == (0, False, True)
    assert told["tests_status"]["PASS_TO_PASS"] == {"success": [], "failure": ["t.py::b"]}
    log.write_text("PASSED t.py::a\n")
    _, said, _ = hone(*arguments, "o__n-1")
    assert said == "o__n-1: not resolved: the test output lacks its start or end marker.\n"
    assert hone(*arguments, "o__n-2")[0] == 2
    assert hone("grade", "--tasks", tasks, "--log", tmp_path / "none", "--task", "o__n-1")[0] == 2
    assert hone(*arguments, "o__n-1", "--edition", "3")[0] == 2


def test_listed_formats_are_the_implemented_ones():
    from hone.cli.tasks import RowFormat
    from hone.tasks.formats import FORMATS

    assert tuple(FORMATS) == get_args(RowFormat)


def test_compare_lists_changed_tasks(hone: Hone, tmp_path: Path):
    before = evaluation(tmp_path / "before", [False] * 9 + [True])
    after = evaluation(tmp_path / "after", [True] * 9 + [False])
    code, out, _ = hone("compare", before, after, "--json")
    paired = json.loads(out)["paired"]
    assert (code, paired["first_better"], paired["second_better"]) == (0, 1, 9)
    assert paired["p_value"] == pytest.approx(22 / 1024)
    assert "0.0215 (exact, two-sided)" in hone("compare", before, after)[1]


@pytest.mark.sandbox
def test_doctor_reports_ready_and_enforced_limits(hone: Hone):
    code, out, _ = hone("doctor")
    assert code == 0
    assert "Ready" in out
    assert "bubblewrap" in out


@pytest.mark.sandbox
def test_doctor_says_what_follows_from_each_check_as_json(hone: Hone):
    code, out, _ = hone("doctor", "--engine", "http://127.0.0.1:9", "--json")
    found = json.loads(out)
    assert (code, found["ready"], found["missing"]) == (1, False, ["engine"])
    checks = {check["name"]: check for check in found["checks"]}
    assert {"GPU", "torch", "memory", "disk: runs", "bubblewrap", "docker", "skopeo"} <= checks.keys()
    assert checks["engine"]["effect"] == "no run can sample from it"
    assert "the model server at http://127.0.0.1:9 does not answer" in checks["engine"]["detail"]
    assert all(check["effect"] or check["fix"] for check in checks.values() if check["state"] != "ok")


@pytest.mark.sandbox
def test_doctor_prints_missing_checks_and_fixes(hone: Hone, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    code, out, _ = hone("doctor")
    assert code == 1
    assert "fix it with: " in out
    assert "Not ready: bubblewrap" in out


@pytest.mark.sandbox
def test_validate_admits_tasks_in_the_sandbox(hone: Hone, recipe: Path):
    code, out, _ = hone("tasks", "validate", recipe, "--repeat", "1", "--limit", "1", "--split", "test")
    assert code == 0
    assert out.splitlines() == [
        "1 of 1 tasks admitted: gold 1 of 1, empty 0 of 1.",
        "7 of their 7 tests have a control.",
    ]


def test_doctor_shows_devices_and_the_plan_of_a_recipe(hone: Hone, recipe: Path):
    code, out, _ = hone("doctor", recipe, "--set", "train.batch.micro_batch_tokens=1000000000")
    assert "Devices: " in out
    assert "activations" in out
    assert code == 1
    assert "Not ready: the run does not fit" in " ".join(out.split())
    assert "train.batch.micro_batch_tokens = " in " ".join(out.split())


def test_resolved_rollouts_of_a_run_are_exported(hone: Hone, run_dir: Path, tmp_path: Path):
    out = tmp_path / "sft.parquet"
    assert hone("export", run_dir, "-o", out)[:2] == (0, f"{out}: 3 conversations.\n")
    code, _, err = hone("export", run_dir, "-o", tmp_path / "sft.jsonl")
    assert code == 2
    assert "must end in .parquet" in err
    assert "there is no run and no file nowhere" in hone("export", "nowhere", "-o", out)[2]


def test_run_directory_of_another_recipe_is_refused_before_models_load(recipe: Path, tmp_path: Path):
    run = tmp_path / "runs" / "mine"
    run.mkdir(parents=True)
    (run / "config.toml").write_text(f'run_dir = "{run}"\nseed = 7\n')
    for command in ("quickstart", "train"):
        sets = ["--set", f"run_dir={run}"]
        code = f"import sys; from hone.cli import main; sys.argv = {['hone', command, str(recipe), *sets]}; "
        code += "print(main(), 'torch' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["2", "False"], command
        assert "belongs to another recipe" in done.stderr


@pytest.mark.parametrize(
    ("setting", "refused"),
    [
        ("engine.context_tokens=99", True),
        ("train.validate.every=2", True),
        ("groups_per_step=3", True),
        ("rollout.rewards={resolved=2.0}", True),
        ("train.checkpoint.keep=3", False),
        ("judge.coefficient=0.5", False),
    ],
)
def test_replay_refuses_settings_without_effect(
    hone: Hone, run_dir: Path, recipe: Path, setting: str, refused: bool
):
    (run_dir / "config.toml").write_text(recipe.read_text())
    code, _, err = hone("replay", run_dir, "--out", run_dir, "--set", setting)
    assert code == 2
    assert (f"--set {setting.partition('=')[0]} has no effect on `hone replay`" in err) == refused
