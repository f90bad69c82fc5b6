"""Records made by hand: a library of two trainings and two evaluations, in which every text is hostile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hone.evaluate.comparison import Changed, RunComparison
from hone.evaluate.results import summarise
from hone.evaluate.settings import EvaluateSettings
from hone.evaluate.statistics import compare, resolve_rate
from hone.types import Call, FinalScore, Judgement, Signal, TestStatus, Vote
from hone.view.distributions import distributions
from hone.view.errors import NotFound
from hone.view.library import Library
from hone.view.records import (
    ComparisonPage,
    Difference,
    DiffLine,
    EvaluationPage,
    Event,
    Filter,
    GroupPage,
    Lane,
    NodeTokens,
    OutcomeSteps,
    Panel,
    Point,
    RolloutPage,
    RolloutRow,
    RolloutTable,
    RunKind,
    RunLine,
    Running,
    RunPage,
    RunState,
    Series,
    TaskLine,
    TaskPage,
    TestLine,
    TokenPage,
    TurnView,
    VerdictView,
)
from hone.view.runs import outcome_totals

SCRIPT = "<script>alert(1)</script>"
EVIL = f"{SCRIPT}\"'><img src=x onerror=alert(2)>\u202e\x1b[31m</script>]]>{{{{ 7*7 }}}}"
TEXT = f"{EVIL}\udc80"  # of a program, whose bytes are no UTF-8
"""A text that tries to leave every context: element, attribute, data block, template, terminal."""
TASK = f"owner/name #1 {EVIL}"


def line(name: str, kind: RunKind = RunKind.TRAINING, state: RunState = RunState.FINISHED) -> RunLine:
    return RunLine(
        name=name,
        directory=f"runs/{EVIL}",
        kind=kind,
        state=state,
        step=3,
        steps=4,
        rollouts=24,
        resolve_rate=0.5,
        updated_at=1.7e9,
    )


def row(index: int = 0, *, outcome: str | None = "unresolved", directory: str | None = "r-0") -> RolloutRow:
    return RolloutRow(
        directory=directory,
        rollout_id=f"r-{index}-{EVIL}",
        task_id=TASK,
        group_id=f"group/{EVIL}",
        index=index,
        step=2,
        sampled_version=1,
        staleness=1,
        outcome=outcome,
        fault=EVIL,
        reward=-1.0,
        resolved=False,
        disposition=EVIL,
        reason=EVIL,
        tampered=True,
        signals=2,
        forks=1,
        turns=3,
        sampled_tokens=120,
        seconds=4.2,
        dispatched_at=1.7e9,
    )


def series(name: str, count: int = 12) -> Series:
    points = tuple(Point(step=i, value=i / 20, low=i / 25, high=i / 15) for i in range(count))
    return Series(name=name, title=f"{name} {EVIL}", unit="%", points=points)


def turn(index: int) -> TurnView:
    return TurnView(
        role="assistant",
        text=TEXT,
        reasoning=TEXT,
        calls=(EVIL,),
        index=index,
        action=TEXT,
        exit_code=1,
        observation=TEXT,
        begins=0.1,
        seconds=0.5,
        tokens=40,
        node=1,
        judgement=Judgement(
            step_index=index, votes=(Vote(score=1.0, latency_ms=3.0, raw_text=TEXT, ok=True),)
        ),
        reward=0.5,
        signals=(EVIL,),
    )


def node(index: int, parent: int | None, *, sampled: bool, texts: tuple[str, ...]) -> NodeTokens:
    count = len(texts)
    known = tuple(-0.1 * i for i in range(count)) if sampled else (None,) * count
    return NodeTokens(
        node=index,
        parent=parent,
        turn=index,
        sampled=sampled,
        branch=0,
        ids=tuple(range(count)),
        texts=texts,
        bytes_hex=tuple(text.encode().hex() for text in texts),
        logprobs=known,
        versions=(1 if sampled else None,) * count,
        trainer_logprobs=known,
        entropies=known,
        advantages=known,
        weights=(1.0 if sampled else 0.0,) * count,
        why=EVIL,
    )


def evaluation(shown: RunLine) -> EvaluationPage:
    result = {"instance_id": TASK, "sample": 0, "resolved": True, "exit_status": "resolved", "group": EVIL}
    result |= {"patch_source": None, "n_steps": 3, "error": TEXT, "elapsed": 2.0, "run_dir": "r-0"}
    result |= {"score": 0.5, "prompt_tokens": 5, "tokens": 2, "engine_s": 1.0, "command_timeouts": 0}
    rows = [result, {**result, "sample": 1, "resolved": False, "exit_status": "unresolved"}]
    prices = EvaluateSettings(price_per_million_prompt=1.0)
    return EvaluationPage(
        line=shown,
        summary=summarise(rows, prices, model=EVIL, data=EVIL, trainable=False, args={EVIL: EVIL}),
        notes=(EVIL,),
        outcomes=outcome_totals(["resolved", "unresolved"]),
        tasks=(
            TaskLine(
                id=TASK,
                group=EVIL,
                solved="sometimes",
                resolved=1,
                samples=2,
                score=0.5,
                outcomes={"resolved": 1},
                rollouts=("r-0",),
            ),
        ),
        samples=(),
        distributions=tuple(distributions(rows, prices)),
        files=("summary.json",),
    )


def paired() -> RunComparison:
    one, two = {TASK: [True], "same": [True]}, {TASK: [False], "same": [True]}
    return RunComparison(
        names=(EVIL, EVIL),
        models=(EVIL, EVIL),
        first=resolve_rate(one),
        second=resolve_rate(two),
        paired=compare(one, two),
        meaning=EVIL,
        changed=(Changed(id=TASK, first=(1, 1), second=(0, 1), rollouts=(("r-0",), ("r-0",))),),
        unpaired=((EVIL,), ()),
        outcomes={"resolved": (2, 1), "engine_error": (0, 1)},
        figures={EVIL: (1.0, 2.0)},
        settings={EVIL: (EVIL, {EVIL: EVIL})},
    )


class HandMade(Library):
    """Runs: `first` (running), `second`, and the evaluations `evaluated` and `again`."""

    def __init__(self, rollouts: int = 3) -> None:
        self.state = RunState.RUNNING
        self.table = [row(i, directory=f"r-{i}") for i in range(rollouts)]
        self.missing: set[str] = set()  # directories whose files are gone
        self.asked: list[tuple[Filter, int, int]] = []

    def runs(self) -> Sequence[RunLine]:
        return (
            line("first", state=self.state),
            line("second"),
            line("evaluated", RunKind.EVALUATION),
            line("again", RunKind.EVALUATION),
        )

    def run(self, name: str) -> RunPage | EvaluationPage:
        found = self._line(name)
        if found.kind is RunKind.EVALUATION:
            return evaluation(found)
        return RunPage(
            line=found,
            counts={"dispatched": 9, "trained": 3, "masked": 1, "dropped": {EVIL: 2}, "in_flight": 1},
            panels=(Panel(title=EVIL, note=EVIL, series=(series("reward"), series("resolve_rate"))),),
            validations=(Point(step=1, value=0.5, low=0.4, high=0.6),),
            outcomes=(
                OutcomeSteps(outcome="resolved", fault="none", counts={0: 3, 1: 4}, total=7),
                OutcomeSteps(outcome=EVIL, fault="policy", counts={0: 1}, total=1),
            ),
            events=(Event(at=1.7e9, kind="fault", text=TEXT, rollout="r-0", step=1),),
            running=(Running(rollout_id=EVIL, task_id=TASK, group_id=f"group/{EVIL}", since=1.7e9),),
            set_aside={TASK: EVIL},
            bottleneck=EVIL,
            recipe=EVIL,
            parent=EVIL,
            differences=(Difference(key=EVIL, value=EVIL, other=""),),
        )

    def rollouts(self, name: str, chosen: Filter, first: int, count: int) -> RolloutTable:
        self._line(name)
        self.asked.append((chosen, first, count))
        return RolloutTable(
            rows=tuple(self.table[first : first + count]),
            first=first,
            found=len(self.table),
            total=len(self.table),
            outcomes={"unresolved": len(self.table), EVIL: 1},
            complete=False,
        )

    def rollout(self, name: str, directory: str) -> RolloutPage:
        self._known(name, directory)
        tests = (
            TestLine(name=EVIL, status=TestStatus.FAILED, kind="fail_to_pass", why=EVIL, excerpt=TEXT),
            TestLine(name="test_ok", status=TestStatus.PASSED, kind="", why="", excerpt=""),
        )
        return RolloutPage(
            row=row(directory=directory),
            error=TEXT,
            turns=(TurnView(role=EVIL, text=TEXT), turn(0), replace(turn(1), action=None)),
            patch=(DiffLine(kind="file", text=TEXT), DiffLine(kind="added", text="+" + TEXT)),
            verdict=VerdictView(
                resolved=False,
                applied=False,
                score=0.5,
                tampered=EVIL,
                tests=tests,
                controls={"planned": 2, "failed": 1, "passed": 1},
                log=TEXT,
                seconds=1.5,
            ),
            lanes=(
                Lane(name=EVIL, begins=0.0, seconds=1.0),
                Lane(name="exec", begins=1.0, seconds=0.5, turn=1),
            ),
            timings={EVIL: 1.0},
            score=FinalScore(
                score=1,
                acc=1,
                outcome_reward=1,
                prm_step_mean=0.5,
                prm_step_coef=0.1,
                progress_sum=0.1,
                progress_coef=0.1,
            ),
            agent=EVIL,
            engine=EVIL,
            sampling={EVIL: EVIL},
            seed=3,
            calls=(
                Call(
                    index=0, node=1, purpose=EVIL, fork=EVIL, prompt_tokens=3, sampled_tokens=4, seconds=0.1
                ),
            ),
            forks={EVIL: 1},
            signals=(Signal(turn=0, kind=EVIL, command=EVIL),),
            branches=2,
            advantage=-0.5,
            group=(row(0), row(1, directory=None)),
            previous="r-1",
            next="r-2",
            limits={EVIL: EVIL},
            notes={EVIL: EVIL},
            files=(EVIL,),
        )

    def tokens(self, name: str, directory: str) -> TokenPage:
        self._known(name, directory)
        nodes = (
            node(0, None, sampled=False, texts=("fix", EVIL, "\n")),
            node(1, 0, sampled=True, texts=("a", "é", "</script>")),
            node(2, 0, sampled=True, texts=("b",)),
        )
        return TokenPage(
            rollout=directory,
            nodes=nodes,
            branches=((0, 1), (0, 2)),
            tokens=7,
            sampled=4,
            trained=4,
            tokenizer=EVIL,
            source=EVIL,
        )

    def group(self, name: str, group_id: str) -> GroupPage:
        self._line(name)
        if not group_id.startswith("group/"):
            raise NotFound(f"the run {name} has no group {group_id!r}")
        return GroupPage(
            group_id=group_id,
            task_id=TASK,
            rows=(row(0), row(1, directory="r-1")),
            advantages=(0.5, None),
            parts_at=(None, 1),
            turns=((turn(0), turn(1)), (turn(0), turn(1))),
        )

    def task(self, name: str, task_id: str) -> TaskPage:
        self._line(name)
        if task_id != TASK:
            raise NotFound(f"the run {name} has no task {task_id!r}")
        return TaskPage(
            task_id=task_id,
            problem=EVIL,
            environment={EVIL: EVIL},
            checks={"fail_to_pass": (EVIL,), "test_files": {EVIL: EVIL}, "gold_patch": EVIL},
            rates=series("rate").points,
            rows=(row(0),),
            set_aside=EVIL,
            found=False,
        )

    def compare(self, names: Sequence[str]) -> ComparisonPage:
        lines = tuple(self._line(name) for name in names)
        return ComparisonPage(
            runs=lines,
            panels=((EVIL, tuple(series(name) for name in names)),),
            differences=((EVIL, (EVIL,) * len(names)),),
            paired=paired() if {line.kind for line in lines} == {RunKind.EVALUATION} else None,
            unpaired="",
        )

    def file(self, name: str, path: str) -> Path:
        self._line(name)
        return Path(__file__)

    def _line(self, name: str) -> RunLine:
        for each in self.runs():
            if each.name == name:
                return each
        raise NotFound(f"there is no run {name!r} here")

    def _known(self, name: str, directory: str) -> None:
        self._line(name)
        if directory in self.missing or directory not in {each.directory for each in self.table}:
            raise NotFound(f"the run {name} stored no rollout {directory!r}")
