"""Print a rollout turn by turn with the reasons of its verdict, its tokens, its group or its task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.rule import Rule
from rich.syntax import Syntax
from rich.text import Text

from hone.cli.output import console, print_fields, print_json, print_table
from hone.cli.show_run import print_rows
from hone.evaluate.words import percent
from hone.types import TestStatus
from hone.utils.text import visible
from hone.view.group_page import group_page
from hone.view.reader import RunReader
from hone.view.reasons import PASSED
from hone.view.records import NodeTokens, RolloutPage, TestLine, TurnView, VerdictView
from hone.view.rollout_page import rollout_page
from hone.view.tasks import task_page
from hone.view.tokens import token_page
from hone.view.turns import score_text
from hone.view.values import json_ready

SHOWN_LINES = 40  # of one reply or observation
LOG_LINES = 20  # of the log about the first failed test
_INDENT = 9  # of a reason below its test
_MARKS = {TestStatus.PASSED: "green", TestStatus.SKIPPED: "yellow", TestStatus.XFAILED: "yellow"}


def print_rollout(reader: RunReader, name: str, *, as_json: bool) -> None:
    """Print the rollout in the directory `name`. Raises StoreError when it is damaged."""
    print_page(rollout_page(reader, name, with_task=False), as_json=as_json)


def print_page(page: RolloutPage, *, as_json: bool) -> None:
    """Print a rollout."""
    if as_json:
        print_json(json_ready(_record(page)))
        return
    out = console()
    print_fields(_fields(page))
    for view in page.turns:
        if view.role not in ("assistant", "turn"):
            if view.answers is not None:
                continue  # printed with the turn
            out.print(Rule(Text(view.role), align="left", style="dim"))
            out.print(_cut(view.text))
        elif view.index is not None:
            _print_turn(view)
        elif view.text:
            out.print(Rule(Text(view.role), align="left", style="dim"))
            out.print(_cut(view.text))
    if page.patch:
        out.print(Rule("patch", align="left", style="dim"))
        patch = "\n".join(line.text for line in page.patch)
        out.print(Syntax(patch.rstrip("\n"), "diff", theme="ansi_dark"))
    _print_verdict(page)


def print_tokens(reader: RunReader, name: str, *, as_json: bool) -> None:
    """Print each token of a rollout with the numbers of engine, trainer and algorithm."""
    page = token_page(reader, name)
    if as_json:
        print_json(json_ready(page))
        return
    print_fields(
        {
            "rollout": page.rollout,
            "tokens": f"{page.tokens} in {len(page.nodes)} nodes and {len(page.branches)} branches",
            "sampled": page.sampled,
            "trained": page.trained,
            "tokenizer": page.tokenizer or "not at hand",
            "trainer's numbers": page.source or "not recorded",
        }
    )
    out = console()
    for node in page.nodes:
        title = f"node {node.node}  after {node.parent}  turn {node.turn}  {node.why}"
        out.print(Rule(Text(title), align="left", style="cyan" if node.sampled else "dim"))
        if not node.sampled:
            out.print(_cut("".join(node.texts or (f"{len(node.ids)} tokens",))), style="dim")
            continue
        headers = ["id", "text", "engine", "trainer", "entropy", "advantage", "weight", "version"]
        print_table(headers, _token_rows(node))


def print_group(reader: RunReader, group_id: str, *, as_json: bool) -> None:
    """Print the rollouts of one task that share a baseline."""
    page = group_page(reader, group_id)
    if as_json:
        print_json(json_ready(page))
        return
    print_fields({"group": page.group_id, "task": page.task_id, "rollouts": len(page.rows)})
    more = {
        "advantage": [_number(value, "+.3f") for value in page.advantages],
        "parts at": [_number(turn, "d") for turn in page.parts_at],
    }
    print_rows(page.rows, more)


def print_task(reader: RunReader, task_id: str, *, as_json: bool) -> None:
    """Print a task, its resolve rate over the steps and its rollouts."""
    page = task_page(reader, task_id)
    if as_json:
        print_json(json_ready(page))
        return
    print_fields({"task": page.task_id, "rollouts": len(page.rows), "set aside": page.set_aside})
    out = console()
    if page.problem:
        out.print(Rule("problem", align="left", style="dim"))
        out.print(_cut(page.problem))
    if page.rates:
        rates = [(str(p.step), percent(p.value)) for p in page.rates]
        print_table(["step", "resolved"], rates)
    print_rows(page.rows)


def _token_rows(node: NodeTokens) -> Iterable[list[str]]:
    for i, token in enumerate(node.ids):
        yield [
            str(token),
            "" if node.texts is None else repr(node.texts[i]),
            _number(node.logprobs[i], ".4f"),
            _number(node.trainer_logprobs[i], ".4f"),
            _number(node.entropies[i], ".3f"),
            _number(node.advantages[i], "+.3f"),
            f"{node.weights[i]:g}",
            _number(node.versions[i], "d"),
        ]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _print_turn(view: TurnView) -> None:
    out = console()
    ending = "no action" if view.action is None else f"exit {view.exit_code}"
    title = f"turn {view.index}  {ending}  {view.seconds or 0.0:.2f} s  {score_text(view)}".rstrip()
    out.print(Rule(Text(title), align="left", style="cyan"))
    out.print(_cut(view.reply), style="bold")
    if view.observation:
        out.print(_cut(view.observation), style="dim")


def _print_verdict(page: RolloutPage) -> None:
    out = console()
    out.print(Rule("verdict", align="left", style="dim"))
    if page.verdict is None:
        out.print("none: nothing was graded")
        return
    _print_tests(page.verdict)
    for signal in page.signals:
        out.print(Text(f"turn {signal.turn}: {signal.kind}: {signal.command}", style="yellow"))
    controls = page.verdict.controls
    if controls["planned"]:
        out.print(f"controls: {controls['failed']} of {controls['planned']} failed, as each must")
    if page.verdict.tampered:
        out.print(Text(f"tampered: {page.verdict.tampered}", style="red"))
    _print_log(page.verdict)
    out.print(Text(f"{page.row.outcome}, reward {_reward(page)}", style="bold"))


def _print_tests(verdict: VerdictView) -> None:
    """Print each test, and below it why it failed; a reason that many share is printed once."""
    out, said = console(), ""
    for test in verdict.tests:
        out.print(Text.assemble((f"{test.status.value:<8} ", _MARKS.get(test.status, "red")), test.name))
        if test.why and test.why != said:
            out.print(Text(" " * _INDENT + visible(test.why), style="dim"))
        said = test.why


def _print_log(verdict: VerdictView) -> None:
    """Print the last lines of the log about the first failed test, or of the whole log."""
    failed = [test for test in verdict.tests if test.status not in PASSED]
    if verdict.resolved or not verdict.log.strip():
        return
    about: TestLine | None = next((test for test in failed if test.excerpt), None)
    title, text = ("log", verdict.log) if about is None else (f"log of {about.name}", about.excerpt)
    out = console()
    out.print(Rule(Text(title), align="left", style="dim"))
    out.print(Text(visible("\n".join(text.strip("\n").split("\n")[-LOG_LINES:]))), style="dim")


def _fields(page: RolloutPage) -> dict[str, object]:
    stages = {stage: f"{seconds:.2f} s" for stage, seconds in page.timings.items()}
    return {
        "rollout": page.row.rollout_id,
        "task": page.row.task_id,
        "outcome": page.row.outcome,
        "reward": _reward(page),
        "advantage": None if page.advantage is None else f"{page.advantage:+.3f}",
        "final score": None if page.score is None else f"{page.score.score:+.2f}",
        "turns": page.row.turns,
        "sampled tokens": page.row.sampled_tokens,
        "branches": page.branches or None,
        "times": stages,
        "error": page.error,
    }


def _record(page: RolloutPage) -> Mapping[str, Any]:
    """Return everything about a rollout, with the fields of its row at the top."""
    verdict = page.verdict
    own = {name: getattr(page, name) for name in page.__dataclass_fields__}
    row = {name: getattr(page.row, name) for name in page.row.__dataclass_fields__}
    return {
        **row,
        **{name: own[name] for name in own if name not in ("row", "group", "verdict", "patch", "score")},
        "resolved": None if verdict is None else verdict.resolved,
        "tests": () if verdict is None else verdict.tests,
        "tampered": None if verdict is None else verdict.tampered,
        "controls": {} if verdict is None else verdict.controls,
        "log": "" if verdict is None else verdict.log,
        "patch": "".join(f"{line.text}\n" for line in page.patch),
        "turn_rewards": {str(t.index): t.reward for t in page.turns if t.reward is not None},
        "scores": page.score or {},
        "group": [member.directory for member in page.group],
    }


def _reward(page: RolloutPage) -> str:
    return "none" if page.row.reward is None else f"{page.row.reward:+g}"


def _cut(text: str) -> Text:
    lines = visible(text.replace("\r\n", "\n")).rstrip("\n").split("\n")
    if len(lines) > SHOWN_LINES:
        half = SHOWN_LINES // 2
        lines = [*lines[:half], f"... {len(lines) - 2 * half} lines ...", *lines[-half:]]
    return Text("\n".join(lines))
