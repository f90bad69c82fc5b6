"""Supervised training on a Parquet file of conversations."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hone.config import ConfigError, resolve
from hone.launch.reporter import Reporter
from hone.launch.sft import SftReport, sft
from hone.outcomes import Outcome
from hone.policy.tiny import make_tiny
from hone.rollout.conversations import write_conversations
from hone.rollout.demonstrations import Demonstration
from hone.rollout.store import Store
from hone.types import TokenTree, Verdict
from tests.train.trajectories import trajectory

pytestmark = [pytest.mark.model, pytest.mark.full]

MESSAGES = (
    {"role": "system", "content": "You fix bugs."},
    {"role": "user", "content": "add is wrong"},
    {"role": "assistant", "content": "```bash\nsed -i s/-/+/ a.py\n```"},
)
SAID = Demonstration(task_id="t", rollout_id="t-0", messages=MESSAGES)


def train(tmp_path: Path, *sets: str) -> SftReport:
    paths = {"run_dir": "run", "model.path": "model", "demonstrations.path": "sft.parquet"}
    given = [f"{name}={tmp_path / path}" for name, path in paths.items()]
    small = ["sft.epochs=1", "sft.batch_size=2", "engine.context_tokens=256"]
    return sft(resolve(None, [*given, *small, *sets]), Reporter(Console(file=io.StringIO())))


def test_conversations_of_a_parquet_file_are_trained_on(tmp_path: Path) -> None:
    make_tiny([str(message["content"]) for message in MESSAGES] * 2, tmp_path / "model")
    write_conversations([SAID] * 4, tmp_path / "sft.parquet")
    report = train(tmp_path, "model.thinking=false")
    assert report.demonstrations == 4
    assert report.loss is not None
    assert (report.checkpoint / "model.safetensors").is_file()


def test_resolved_rollouts_of_several_evaluations_are_trained_on(tmp_path: Path) -> None:
    """A text-only teacher (no tokens), and one whose tokenizer is another one."""
    make_tiny([str(message["content"]) for message in MESSAGES] * 2, tmp_path / "model")
    for name, tree in (("text", TokenTree()), ("foreign", None)):
        store = Store(tmp_path / name / "rollouts")
        for task, outcome in (("a", Outcome.RESOLVED), ("b", Outcome.UNRESOLVED)):
            said = (*MESSAGES[:2], {"role": "assistant", "content": f"fix {name} {task}"})
            made = replace(
                trajectory(f"{task}-0", outcome=outcome),
                task_id=task,
                messages=said,
                verdict=Verdict(resolved=task == "a", tests={}, score=0.0),
            )
            store.save_sample(made if tree is None else replace(made, tree=tree), index=0, meta={})
    sources = f'["{tmp_path / "text"}", "{tmp_path / "foreign"}"]'
    report = train(tmp_path, f"demonstrations.path={sources}")
    assert report.demonstrations == 2
    choices = [json.loads(line) for line in (tmp_path / "run" / "selection.jsonl").read_text().splitlines()]
    assert [choice["decision"] for choice in choices] == ["kept", "unresolved"] * 2


def test_source_without_a_resolved_rollout_is_refused(tmp_path: Path) -> None:
    make_tiny([], tmp_path / "model")
    store = Store(tmp_path / "teacher" / "rollouts")
    store.save_sample(trajectory("a-0", outcome=Outcome.NO_PATCH), index=0, meta={})
    with pytest.raises(ConfigError, match=r"none of the 1 conversations of demonstrations\.path is left"):
        train(tmp_path, f"demonstrations.path={tmp_path / 'teacher'}")
