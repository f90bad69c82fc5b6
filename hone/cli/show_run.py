"""Print a run, its counts and learning curve, or a rollout turn by turn."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.rule import Rule
from rich.syntax import Syntax
from rich.text import Text

from hone.cli.output import console, print_fields, print_json, print_table
from hone.cli.summary import rate
from hone.outcomes import OUTCOME_RULES, Outcome
from hone.rollout.ledger import Entry, Ledger
from hone.rollout.store import Store, load
from hone.train.metrics import read_metrics
from hone.types import Judgement, JudgementStatus, TestStatus, Trajectory, Turn, TurnProgress
from hone.utils.text import visible

ROWS = 20  # maximum steps printed, evenly spaced
BAR = 20  # columns of a full bar
BLOCKS = " ▏▎▍▌▋▊▉█"
SHOWN_LINES = 40  # of one reply or observation


def print_run(run: Path, *, as_json: bool) -> None:
    """Print a run. Raises LedgerError if the counts of the ledger do not balance."""
    with Ledger.read(run) as ledger:
        balance, entries, asides = ledger.balance(), ledger.entries(), ledger.tasks_set_aside()
    metrics = read_metrics(run)
    counts = {
        "dispatched": balance.dispatched,
        "trained": balance.trained,
        "masked": balance.masked,
        "dropped": dict(balance.dropped),
        "in_flight": balance.in_flight,
        "steps": balance.steps,
        "staleness": staleness(entries),
        "set_aside": {aside.task_id: aside.reason for aside in asides},
        "busy": busy(metrics),
        "parked": round(_mean(metrics, "parked"), 3),
    }
    if as_json:
        print_json(counts)
        return
    print_fields({"run": run, **counts})
    if shares := counts["busy"]:
        console().print(bottleneck(shares, metrics), markup=False)
    rows = curve(entries, metrics)
    if not rows:
        console().print("No step is finished.")
        return
    headers = ["step", "rollouts", "reward", "resolved", "", "turns", "loss", "entropy", "grad norm"]
    print_table(headers, [_step_row(rows[i]) for i in _spread(len(rows))])
    _print_validations(read_metrics(run, "validation"))
    console().print(f"To print one rollout: hone show {run}/{_example(entries)}", markup=False)


def print_stored(run: Path, *, as_json: bool) -> None:
    """Print the outcomes of a run whose steps another trainer keeps, so that it has no ledger."""
    store = Store(run / "rollouts")
    endings = store.endings()
    rewards = [reward for _, reward in endings if reward is not None]
    counts = {
        "rollouts": len(endings),
        "reward": round(sum(rewards) / len(rewards), 3) if rewards else None,
        "outcomes": dict(Counter(outcome.value for outcome, _ in endings).most_common()),
    }
    if as_json:
        print_json(counts)
        return
    print_fields({"run": run, **counts})
    if names := store.names():
        console().print(f"To print one rollout: hone show {run}/{names[-1]}", markup=False)


def staleness(entries: Iterable[Entry]) -> dict[str, int]:
    """Return the number of consumed rollouts by their staleness, in steps, as text for JSON."""
    ages = Counter(entry.staleness for entry in entries if entry.staleness is not None)
    return {str(age): ages[age] for age in sorted(ages)}


def busy(metrics: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean share of time that engine, sandboxes and trainer were busy; {}: no step yet."""
    shares = [
        {part: record[f"busy/{part}"] for part in ("engine", "sandbox", "trainer")}
        for record in metrics
        if "busy/engine" in record
    ]
    if not shares:
        return {}
    return {part: round(sum(share[part] for share in shares) / len(shares), 3) for part in shares[0]}


def bottleneck(shares: Mapping[str, float], metrics: Sequence[Mapping[str, Any]]) -> str:
    """Return what a run waits for, in one line: "busiest: engine 97 %; trainer 34 %; sandbox 18 %; ..."."""
    parts = sorted(shares, key=lambda part: -shares[part])
    parked = _mean(metrics, "parked")
    parking = f"; {100 * parked:.0f} % of the rollouts were parked" if parked else ""
    waited = any("wait_s" in record for record in metrics)
    wait = f"; a step waited {_mean(metrics, 'wait_s'):.1f} s for its batch" if waited else ""
    return "busiest: " + "; ".join(f"{part} {100 * shares[part]:.0f} %" for part in parts) + parking + wait


def _mean(metrics: Iterable[Mapping[str, Any]], name: str) -> float:
    """Return the mean of a metric over the steps that have it; 0 if none has."""
    values = [record[name] for record in metrics if name in record]
    return sum(values) / len(values) if values else 0.0


def curve(entries: list[Entry], metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one record per step with rewards, from the ledger and the metrics."""
    by_step: dict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        if (
            entry.step is not None
            and entry.outcome is not None
            and OUTCOME_RULES[entry.outcome].in_baseline
            and entry.reward is not None
        ):
            by_step[entry.step].append(entry)
    measured = {record["step"]: record for record in metrics}
    return [
        {
            **measured.get(step, {}),
            "step": step,
            "rollouts": len(ended),
            "reward": sum(entry.reward or 0.0 for entry in ended) / len(ended),
            "resolve_rate": measured.get(step, {}).get(
                "resolve_rate", sum(entry.outcome is Outcome.RESOLVED for entry in ended) / len(ended)
            ),
        }
        for step, ended in sorted(by_step.items())
    ]


def bar(fraction: float) -> str:
    """Return a bar of up to `BAR` columns, rounded to an eighth of a column."""
    eighths = round(max(0.0, min(1.0, fraction)) * BAR * 8)
    return "█" * (eighths // 8) + (BLOCKS[eighths % 8] if eighths % 8 else "")


def _print_validations(records: list[dict[str, Any]]) -> None:
    if records:
        rows = [
            (str(r["step"]), rate(r), str(r["n"]), bar(r["resolve_rate"]))
            for r in (records[i] for i in _spread(len(records)))
        ]
        print_table(["after step", "resolved", "n", ""], rows, title="Validation (95 % interval)")


def _step_row(record: dict[str, Any]) -> list[str]:
    def number(name: str, form: str) -> str:
        return format(record[name], form) if record.get(name) is not None else "-"

    return [
        str(record["step"]),
        str(record["rollouts"]),
        number("reward", "+.3f"),
        f"{100 * record['resolve_rate']:.1f} %",
        bar(record["resolve_rate"]),
        number("turns", ".1f"),
        number("loss", ".4f"),
        number("entropy", ".3f"),
        number("grad_norm", ".3f"),
    ]


def _spread(count: int) -> list[int]:
    if count <= ROWS:
        return list(range(count))
    return sorted({round(i * (count - 1) / (ROWS - 1)) for i in range(ROWS)})


def _example(entries: list[Entry]) -> str:
    stored = [entry.directory for entry in entries if entry.directory]
    return stored[-1] if stored else "ROLLOUT"


def print_rollout(directory: Path, *, as_json: bool) -> None:
    """Raises StoreError when the rollout is damaged."""
    trajectory = load(directory)
    if as_json:
        print_json(_record(trajectory))
        return
    out = console()
    print_fields(_fields(trajectory))
    for message in itertools.takewhile(lambda m: m["role"] != "assistant", trajectory.messages):
        out.print(Rule(Text(str(message["role"])), align="left", style="dim"))
        out.print(_cut(str(message["content"])))
    scores = turn_scores(trajectory)
    for turn in trajectory.turns:
        _print_turn(turn, scores.get(turn.index, ""))
    if trajectory.patch.strip():
        out.print(Rule("patch", align="left", style="dim"))
        out.print(Syntax(trajectory.patch.rstrip("\n"), "diff", theme="ansi_dark"))
    _print_verdict(trajectory)


def turn_scores(trajectory: Trajectory) -> dict[int, str]:
    """Return turn index -> judge score, progress of the hidden tests and turn reward; only scored turns.

    Example: "judge +0.33 (3 of 3 votes)  progress 0.50  reward +0.83".
    """
    scores = trajectory.scores
    words: dict[int, list[str]] = {}
    for judgement in scores.judgements or ():
        words.setdefault(judgement.step_index, []).append(_judgement_text(judgement))
    for step in scores.progress.steps if scores.progress else ():
        words.setdefault(step.step_index, []).append(_progress_text(step))
    for index, reward in trajectory.turn_rewards.items():
        words.setdefault(index, []).append(f"reward {reward:+.2f}")
    return {index: "  ".join(texts) for index, texts in sorted(words.items())}


def _judgement_text(judgement: Judgement) -> str:
    votes = f"{len(judgement.valid_scores)} of {len(judgement.votes)} votes"
    if judgement.status is not JudgementStatus.OK:
        return f"judge {judgement.status} ({votes})"
    return f"judge {judgement.score:+.2f} ({votes})"


def _progress_text(step: TurnProgress) -> str:
    return f"progress {step.status}" if step.score is None else f"progress {step.score:.2f}"


def _print_turn(turn: Turn, scores: str) -> None:
    out = console()
    ending = "no action" if turn.action is None else f"exit {turn.exit_code}"
    title = f"turn {turn.index}  {ending}  {turn.seconds:.2f} s  {scores}".rstrip()
    out.print(Rule(Text(title), align="left", style="cyan"))
    out.print(_cut(turn.reply), style="bold")
    if turn.observation:
        out.print(_cut(turn.observation), style="dim")


def _print_verdict(trajectory: Trajectory) -> None:
    out = console()
    out.print(Rule("verdict", align="left", style="dim"))
    if trajectory.verdict is None:
        out.print("none: nothing was graded")
        return
    marks = {TestStatus.PASSED: "green", TestStatus.SKIPPED: "yellow", TestStatus.XFAILED: "yellow"}
    for name, status in trajectory.verdict.tests.items():
        out.print(Text.assemble((f"{status.value:<8} ", marks.get(status, "red")), name))
    for signal in trajectory.signals:
        out.print(Text(f"turn {signal.turn}: {signal.kind}: {signal.command}", style="yellow"))
    controls = trajectory.verdict.controls
    if controls.planned:
        out.print(f"controls: {controls.failed} of {controls.planned} failed, as each must")
    if trajectory.verdict.tampered:
        out.print(Text(f"tampered: {trajectory.verdict.tampered}", style="red"))
    out.print(Text(f"{trajectory.outcome.value}, reward {_reward(trajectory)}", style="bold"))


def _fields(trajectory: Trajectory) -> dict[str, object]:
    stages = {stage: f"{seconds:.2f} s" for stage, seconds in trajectory.timings.items()}
    return {
        "rollout": trajectory.rollout_id,
        "task": trajectory.task_id,
        "outcome": trajectory.outcome.value,
        "reward": _reward(trajectory),
        "final score": _final(trajectory),
        "turns": len(trajectory.turns),
        "sampled tokens": trajectory.tree.sampled_tokens,
        "branches": len(trajectory.tree.leaves()) or None,
        "times": stages,
        "error": trajectory.error,
    }


def _record(trajectory: Trajectory) -> dict[str, object]:
    verdict = trajectory.verdict
    tests = {} if verdict is None else dict(Counter(status.value for status in verdict.tests.values()))
    return {
        "rollout_id": trajectory.rollout_id,
        "task_id": trajectory.task_id,
        "outcome": trajectory.outcome.value,
        "reward": trajectory.reward,
        "resolved": None if verdict is None else verdict.resolved,
        "tests": tests,
        "tampered": None if verdict is None else verdict.tampered,
        "signals": [asdict(signal) for signal in trajectory.signals],
        "turns": len(trajectory.turns),
        "turn_rewards": {str(index): reward for index, reward in trajectory.turn_rewards.items()},
        "scores": {} if trajectory.scores.final is None else asdict(trajectory.scores.final),
        "sampled_tokens": trajectory.tree.sampled_tokens,
        "error": trajectory.error,
        "timings": dict(trajectory.timings),
        "patch": trajectory.patch,
    }


def _reward(trajectory: Trajectory) -> str:
    return "none" if trajectory.reward is None else f"{trajectory.reward:+g}"


def _final(trajectory: Trajectory) -> str | None:
    final = trajectory.scores.final
    return None if final is None else f"{final.score:+.2f}"


def _cut(text: str) -> Text:
    lines = visible(text.replace("\r\n", "\n")).rstrip("\n").split("\n")
    if len(lines) > SHOWN_LINES:
        half = SHOWN_LINES // 2
        lines = [*lines[:half], f"... {len(lines) - 2 * half} lines ...", *lines[-half:]]
    return Text("\n".join(lines))
