"""`hone eval --engine`: what a server at an address is, and what of it can be trained on."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from hone.agents.blackbox import presets
from hone.cli.errors import UsageError
from hone.cli.evaluate import AGENTS, PROGRAMS, parse_agent
from hone.config import RunSettings, walk
from hone.launch.evaluate_engine import engine_settings
from hone.policy.engine import EngineError
from hone.rollout.store import load
from hone.tasks.formats import save
from tests.cli.endpoint import endpoint
from tests.cli.in_process import Hone
from tests.cli.test_eval import SMALL, rows
from tests.rollout.real import SCAFFOLD, gold, tasks
from tests.view.pages import read

TEXT = {"id": "big-model", "object": "model", "owned_by": "unknown"}


def solve_in_two_turns(messages: list[dict[str, Any]]) -> str:
    """Applies the gold patch in the first turn and hands it in with the second."""
    if any(message["role"] == "assistant" for message in messages):
        return SCAFFOLD.reply("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    text = "\n".join(message["content"] for message in messages)
    (task,) = [task for task in tasks(4) if task.problem in text]
    return SCAFFOLD.reply(gold(task))


@pytest.fixture
def three(tmp_path: Path) -> Path:
    save(tasks(4)[:3], tmp_path / "tasks.jsonl")
    return tmp_path / "tasks.jsonl"


@pytest.mark.sandbox
def test_text_endpoint_results_are_marked_untrainable(
    hone: Hone, three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SECRET_OF_THE_ENDPOINT", "s3cret")
    out = tmp_path / "out"
    with endpoint(solve_in_two_turns, TEXT) as served:
        arguments = [
            "eval", "--agent", "bash", "--engine", served.url, "--tasks", three, "-o", out, "--slice", "0:2",
            "--temperature", "0.5", *SMALL, "--set", "engine.api_key_env=SECRET_OF_THE_ENDPOINT",
            "--set", "evaluate.price_per_million_prompt=1000", "--set", "sampling.max_tokens=77",
        ]  # fmt: skip
        code, said, err = hone(*arguments)
        assert code == 0, err
        sent = served.requests[0]
        assert (sent["model"], sent["temperature"], sent["max_tokens"]) == ("big-model", 0.5, 77)
        assert set(served.headers) == {"Bearer s3cret"}
    assert "not usable for training" in said
    assert "resolved 2" in said
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["model"], summary["trainable"], summary["resolve_rate"]) == ("big-model", False, 1.0)
    assert (summary["prompt_tokens"], summary["tokens"]) == (400, 40)
    assert summary["cost"] == pytest.approx(0.4)
    assert "never trained on" in read((out / "report.html").read_text()).text
    for row in rows(out):
        trajectory = load(out / "rollouts" / row["run_dir"])
        assert trajectory.tree.nodes == []
        meta = json.loads((out / "rollouts" / row["run_dir"] / "meta.json").read_text())
        assert (meta["model"], meta["max_tokens"]) == ("big-model", 77)
        assert meta["api_base"] == f"{served.url}/v1"
    for path in out.rglob("*"):
        assert not path.is_file() or b"s3cret" not in path.read_bytes()


@pytest.mark.sandbox
def test_unreachable_engine_fails_before_any_task(hone: Hone, three: Path, tmp_path: Path):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # a port on which nobody listens
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        code, out, err = hone(
            "eval", "--agent", "bash", "--engine", url, "--tasks", three, "-o", tmp_path / "o"
        )
    assert (code, out, len(err.strip().splitlines())) == (1, "", 1)
    assert f"the model server at {url} does not answer" in err
    assert not (tmp_path / "o" / "results.jsonl").exists()


def settings_of(
    engine: str | None, model: str | None = None, kind: str | None = None, *, no_recipe: bool = True
) -> tuple[dict[str, Any], list[str]]:
    given, lengths = engine_settings(engine, kind, model, key_env=None, no_recipe=no_recipe)
    return {name: value for name, (_, value) in given.items()}, lengths


@pytest.mark.slow
def test_server_kind_is_detected(tmp_path: Path):
    def silent(messages: object) -> str:
        raise AssertionError("nothing is sampled to find out what a server is")

    card = {"id": "m", "root": str(tmp_path), "max_model_len": 8192}
    with endpoint(silent, {**card, "owned_by": "sglang"}) as served:
        given, lengths = settings_of(served.url + "/v1/")
        assert given == {"engine.kind": "sglang", "engine.urls": [served.url], "model.path": str(tmp_path)}
        assert lengths == ["engine.context_tokens=8185", "sampling.max_tokens=2046"]
        given, lengths = settings_of(served.url, no_recipe=False)  # a recipe says the model and the lengths
        assert (given, lengths) == ({"engine.kind": "sglang", "engine.urls": [served.url]}, [])
        given, _ = settings_of(served.url, kind="openai")
        assert given["engine.urls"] == [served.url + "/v1"]
        assert given["engine.model_name"] == "m"
    with endpoint(silent, {**card, "owned_by": "sglang", "max_model_len": 100_007}) as served:
        assert settings_of(served.url)[1] == ["engine.context_tokens=100000", "sampling.max_tokens=4096"]
    with (
        endpoint(silent, {**card, "owned_by": "vllm"}) as served,
        pytest.raises(EngineError, match="lacks the routes for token ids: start it with `hone engine"),
    ):
        settings_of(served.url)
    with endpoint(silent, TEXT) as served:
        given, lengths = settings_of(served.url)
        assert given["engine.kind"] == "openai"
        assert lengths == ["engine.context_tokens=32768", "sampling.max_tokens=4096"]


@pytest.mark.slow
def test_model_must_be_served(tmp_path: Path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    cards = [{"id": name, "owned_by": "sglang", "root": str(tmp_path / name)} for name in ("one", "far")]
    with endpoint(lambda _: "", *cards) as served:
        with pytest.raises(UsageError, match=r"serves one, far: name one with --model"):
            settings_of(served.url)
        with pytest.raises(UsageError, match=r"there is no model at .* called 'on': did you mean one"):
            settings_of(served.url, "on")
        assert settings_of(served.url, "one")[0]["model.path"] == str(tmp_path / "one")
        with pytest.raises(UsageError, match="needs the tokenizer of far on this machine"):
            settings_of(served.url, "far")
        assert settings_of(served.url, str(tmp_path / "two"))[0]["model.path"] == str(tmp_path / "two")
    with endpoint(lambda _: "", cards[0]) as served:
        assert settings_of(served.url, str(tmp_path / "one"))[0]["model.path"] == str(tmp_path / "one")
        with pytest.raises(UsageError, match=r"serves the model in .*one, not the one in .*two"):
            settings_of(served.url, str(tmp_path / "two"))


@pytest.mark.parametrize(
    ("engine", "kind", "said"),
    [
        ("localhost:8000", None, "engine localhost:8000 is neither `local` nor an address such as"),
        (None, "vllm", "--engine-kind needs the address of a server: add --engine URL"),
        ("local", "vllm", "--engine-kind needs the address of a server: add --engine URL"),
    ],
)
def test_invalid_engine_flags_are_an_error(engine: str | None, kind: str | None, said: str):
    with pytest.raises(UsageError, match=said):
        settings_of(engine, kind=kind)


def test_listed_agents_are_the_implemented_ones():
    by_path = {setting.path: setting for setting in walk(RunSettings)}
    kinds = re.findall("'([^']+)'", by_path["agent.kind"].type_name)
    assert {parse_agent(name)[0] for name in (*AGENTS, "blackbox:qwen-code")} == set(kinds)
    assert set(PROGRAMS) == {f"blackbox:{name}" for name in presets()}
    assert parse_agent("blackbox:mine.toml") == ("blackbox", "mine.toml")


def test_flags_replace_agent_and_engine_of_a_recipe(hone: Hone, tmp_path: Path):
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        '[agent]\nkind = "debugger"\npdb = false\n[agent.context]\npolicy = "drop_thinking"\n'
        '[engine]\nkind = "vllm"\ncontext_tokens = 4096\ntensor_parallel = 4\n'
        "[tasks]\ntrain = 0\ntest = 2\nunseen = 0\n"
    )
    with endpoint(solve_in_two_turns, TEXT) as served:
        code, said, err = hone("eval", recipe, "--agent", "bash", "--engine", served.url, "--dry-run")
        assert code == 0, err
        assert f"big-model at {served.url}/v1" in said
    code, said, err = hone("eval", recipe, "--agent", "oracle", "--dry-run")
    assert (code, "none: the agent is oracle" in said) == (0, True), err
