"""The whole main job, from nothing to a report, through the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hone.train.metrics import read_metrics
from tests.e2e.small_run import RECIPE, REPOSITORY, TIMEOUT_S, hone, sets

sys.path.insert(0, str(REPOSITORY / "scripts" / "site"))
import metric_names  # pyright: ignore[reportMissingImports]

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]


def test_report_names_its_measurements(finished: Path) -> None:
    report = json.loads((finished / "report.json").read_text())
    pairs = (report, report["unseen_families"])
    for pair, n in zip(pairs, (6, 2), strict=True):
        for when in ("before", "after"):
            rate = pair[when]
            assert rate["n"] == n
            assert 0 <= rate["low"] <= rate["resolve_rate"] <= rate["high"] <= 1
    assert report["seconds"] > 0
    assert 0 < report["peak_memory_gib"] < 6
    assert Path(report["checkpoint"]).is_dir()
    taught = report["demonstrations"]
    assert taught["recorded"] == 40
    assert 0.25 <= taught["right"] <= 0.55  # drawn with probability 0.4


def test_every_rollout_is_accounted_for(finished: Path) -> None:
    shown = json.loads(hone("show", str(finished), "--json").stdout)
    assert shown["steps"] == 3
    assert shown["in_flight"] == 0
    assert shown["dispatched"] >= 3 * 2 * 4
    assert shown["dispatched"] == shown["trained"] + shown["masked"] + sum(shown["dropped"].values())


def test_plain_transformers_loads_the_result_and_answers_as_an_agent(finished: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    checkpoint = json.loads((finished / "report.json").read_text())["checkpoint"]
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    messages = [
        {"role": "user", "content": "The function area in bonus.py is wrong. Now it gives nothing back."}
    ]
    prompt = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    reply = model.generate(**prompt, max_new_tokens=16, do_sample=False)
    assert "```bash" in tokenizer.decode(reply[0, prompt["input_ids"].shape[1] :])
    assert sum(p.numel() for p in model.parameters()) <= 3_000_000


def test_training_changes_the_weights_and_no_demonstration(finished: Path) -> None:
    from transformers import AutoModelForCausalLM

    before, after = (AutoModelForCausalLM.from_pretrained(finished / name) for name in ("start", "final"))
    moved = [not torch.equal(p, q) for p, q in zip(before.parameters(), after.parameters(), strict=True)]
    assert any(moved)
    demonstrations = finished / "demonstrations.jsonl"
    assert len(demonstrations.read_bytes().splitlines()) == 40
    assert demonstrations.stat().st_mtime < (finished / "ledger.sqlite").stat().st_mtime


def test_reference_of_metrics_explains_each(finished: Path) -> None:
    records = map(json.loads, (finished / "metrics.jsonl").read_text().splitlines())
    names = {name for record in records for name in record}
    assert [name for name in sorted(names) if not metric_names.is_known(name)] == []


def test_training_uses_tasks_without_demonstrations(finished: Path) -> None:
    lines = (finished / "demonstrations.jsonl").read_text().splitlines()
    demonstrated = {json.loads(line)["task_id"] for line in lines}
    metas = (finished / "rollouts").glob("*/meta.json")
    practised = {json.loads(meta.read_text())["instance_id"] for meta in metas}
    assert len(demonstrated) == 40
    assert len(practised) == 6  # three steps of two groups
    assert not demonstrated & practised


@pytest.mark.full
def test_engine_and_trainer_agree_on_every_sampled_token_of_real_rollouts(finished: Path) -> None:
    """Independent of the trainer's code: plain forward passes over the stored conversations."""
    script = REPOSITORY / "benchmarks" / "exactness.py"
    done = subprocess.run(
        [sys.executable, script, finished], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    measured = json.loads(done.stdout.splitlines()[-1])["metrics"]
    assert measured["logp_gap_max"] <= 1e-4
    assert measured["first_ratio_max_deviation_any_step"] <= 1e-4
    assert measured["tokens"] >= 1000
    assert measured["turns"] > measured["rollouts"]  # conversations of several turns


@pytest.mark.full
def test_running_the_command_again_does_nothing_new(finished: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in (finished / "checkpoints").rglob("*") if p.is_file()}
    again = hone("quickstart", str(RECIPE), *sets(finished))
    assert "Resolve rate" in again.stdout
    assert {p: p.stat().st_mtime_ns for p in before} == before


@pytest.mark.full
def test_a_run_directory_of_another_recipe_is_refused_and_left_alone(finished: Path) -> None:
    before = (finished / "config.toml").read_bytes()
    refused = hone("quickstart", str(RECIPE), *sets(finished, train__loss__clip_high=0.5), check=False)
    assert refused.returncode in (1, 2)
    assert "belongs to another recipe" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert (finished / "config.toml").read_bytes() == before


@pytest.mark.full
def test_a_run_can_be_trained_again_offline_with_another_setting(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "replayed"
    hone("replay", str(finished), "--out", str(out), "--set", "train.loss.clip_high=0.5")
    assert len(read_metrics(out)) == 3
    assert next((out / "checkpoints").glob("*/model.safetensors")).stat().st_size > 0


def test_a_rollout_can_be_read_turn_by_turn(finished: Path) -> None:
    name = sorted(path.name for path in (finished / "rollouts").iterdir())[0]
    shown = hone("show", f"{finished}/{name}").stdout
    assert "cat -n" in shown or "```" in shown or "bash" in shown
    assert "reward" in shown


@pytest.mark.full
def test_evaluating_the_result_again_gives_an_interval(finished: Path, tmp_path: Path) -> None:
    arguments = [
        "eval",
        str(RECIPE),
        *sets(tmp_path, model__path=finished / "final", tasks__test=6),
        "--json",
    ]
    summary = json.loads(hone(*arguments).stdout)
    assert summary["n"] == 6
    assert 0 <= summary["low"] <= summary["resolve_rate"] <= summary["high"] <= 1
    assert sum(summary["outcomes"].values()) == 6
    assert json.loads(hone(*arguments).stdout)["resolve_rate"] == summary["resolve_rate"]
