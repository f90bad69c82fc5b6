"""The view model: one record per page, of plain values, so that `json_ready` makes the API's answer of it.

Everything is read from files (ledger, store, metrics, resolved recipe, results of evaluations), also while a
run writes them; nothing is written. Pages, the terminal and the export show these records and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from hone.evaluate.comparison import RunComparison
from hone.types import Call, FinalScore, Judgement, Signal, TestStatus, TurnProgress
from hone.view.distributions import Distribution


class RunKind(StrEnum):
    TRAINING = "training"  # with a ledger
    EVALUATION = "evaluation"  # with results.jsonl
    ROLLOUTS = "rollouts"  # a store alone: another trainer keeps the steps, or files were imported


class RunState(StrEnum):
    RUNNING = "running"  # a process holds the run's lock
    STOPPED = "stopped"  # none does, and steps are left: the same command resumes it
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """One run in the list of runs."""

    name: str  # unique among the shown runs; part of its address
    directory: str
    kind: RunKind
    state: RunState
    step: int | None  # steps done; None: no training
    steps: int | None  # planned; None: no training, or its recipe cannot be read
    rollouts: int
    resolve_rate: float | None  # of the last step, or of the evaluation
    updated_at: float | None  # Unix time, s

    @property
    def samples(self) -> bool:
        """Whether the run has rollouts, or will: SFT and replays, trainings without planned steps, do not."""
        return self.kind is not RunKind.TRAINING or self.steps is not None or self.rollouts > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A value at a step; `low` and `high` bound its 95 % interval where there is one."""

    step: int
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One quantity over steps."""

    name: str  # its key in metrics.jsonl, such as "mismatch/k3"
    title: str  # in words, such as "Mismatch KL (engine, trainer)"
    unit: str  # "%": the values are shares in [0, 1]; "", "s", "tokens/s", "GiB", "nats", "tokens"
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart: series that share an axis, such as the busy shares of engine, sandbox and trainer."""

    title: str
    note: str  # how to read it, one sentence
    series: tuple[Series, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeSteps:
    """How many rollouts of each step ended in one outcome."""

    outcome: str
    fault: str  # "none", "policy" or "infrastructure"
    counts: Mapping[int, int]  # step -> rollouts
    total: int  # also of rollouts that no step consumed


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened once: a checkpoint, a fault, a task set aside, a resume, a rollback."""

    at: float  # Unix time, s
    kind: str  # "started" | "resumed" | "checkpoint" | "fault" | "set aside" | "idle step" | "rolled back"
    text: str
    rollout: str | None = None  # its directory, where one can be opened
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A rollout under way."""

    rollout_id: str
    task_id: str
    group_id: str
    since: float  # Unix time, s


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A setting whose value is not that of the recipe's parent, or not that of another run."""

    key: str  # dotted, such as "train.optimizer.lr"
    value: str
    other: str  # of the parent, "" where it has none


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """A training, or rollouts of another trainer."""

    line: RunLine
    # dispatched, trained, masked, dropped {reason: n}, in_flight, staleness {age: n}
    counts: Mapping[str, Any]
    panels: tuple[Panel, ...]  # reward and resolve rate first
    validations: tuple[Point, ...]
    outcomes: tuple[OutcomeSteps, ...]
    events: tuple[Event, ...]  # newest first
    running: tuple[Running, ...]  # oldest first
    set_aside: Mapping[str, str]  # task -> reason
    bottleneck: str  # one line; "" before the first step
    recipe: str  # resolved, TOML
    differences: tuple[Difference, ...]  # from its parent recipe, else from the defaults
    parent: str = ""  # the recipe that it extends; "": differences are from the defaults


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRow:
    """One rollout in the table."""

    directory: str | None  # its name below rollouts/; None: nothing was stored
    rollout_id: str
    task_id: str
    group_id: str
    index: int  # in its group
    step: int | None  # that consumed it
    sampled_version: int | None
    staleness: int | None
    outcome: str | None  # None: under way
    fault: str | None
    reward: float | None
    resolved: bool | None
    disposition: str | None  # "trained", "masked", "dropped"
    reason: str | None
    tampered: bool
    signals: int  # 0 until its files were read; so are forks
    forks: int
    turns: int | None  # None until its files were read; so is sampled_tokens
    sampled_tokens: int | None
    seconds: float | None
    dispatched_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What the table of rollouts shows; an empty field filters nothing."""

    task: str = ""  # part of its id
    outcome: str = ""
    disposition: str = ""
    step: int | None = None
    group: str = ""
    tampered: bool | None = None
    signals: bool | None = None
    forks: bool | None = None
    min_reward: float | None = None
    max_reward: float | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    sort: str = "-dispatched_at"  # a field of RolloutRow; "-" before it: descending


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutTable:
    """One page of the filtered rows."""

    rows: tuple[RolloutRow, ...]
    first: int  # index of the first row among the found
    found: int
    total: int  # of the run
    outcomes: Mapping[str, int]  # of the found rows
    complete: bool  # False: stored files are still being read, so counts of turns and the like are missing


@dataclass(frozen=True, slots=True, kw_only=True)
class TestLine:
    """One hidden test and why it failed."""

    __test__ = False

    name: str
    status: TestStatus
    kind: str  # "fail_to_pass", "pass_to_pass" or "" where the task is not at hand
    why: str  # the error line of its traceback, or what the log says: "ImportError: cannot ..."; "": passed
    excerpt: str  # of the log about this test; ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictView:
    resolved: bool
    applied: bool
    score: float
    tampered: str | None
    tests: tuple[TestLine, ...]  # failed first
    controls: Mapping[str, int]  # planned, failed, passed
    log: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnView:
    """One message of the conversation; a reply with what came of it."""

    role: str
    text: str
    reasoning: str = ""
    calls: tuple[str, ...] = ()
    index: int | None = None  # of the turn
    reply: str = ""  # of the turn, as the policy sampled it: `text` is the client's form of it
    action: str | None = None
    exit_code: int | None = None
    observation: str = ""
    begins: float | None = None  # s after the rollout's begin
    seconds: float | None = None
    tokens: int | None = None  # sampled
    node: int | None = None
    judgement: Judgement | None = None
    progress: TurnProgress | None = None
    reward: float | None = None
    signals: tuple[str, ...] = ()
    answers: int | None = None  # of a message that shows the agent a turn's observation: that turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A stretch of the rollout's time."""

    name: str  # "start", "model", "exec", "grade" ...
    begins: float  # s after the rollout's begin
    seconds: float
    turn: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffLine:
    kind: str  # "file", "hunk", "added", "removed" or "context"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPage:
    row: RolloutRow
    error: str | None
    turns: tuple[TurnView, ...]
    patch: tuple[DiffLine, ...]
    verdict: VerdictView | None
    lanes: tuple[Lane, ...]
    timings: Mapping[str, float]
    score: FinalScore | None
    agent: str
    engine: str | None
    sampling: Mapping[str, Any]
    seed: int | None
    calls: tuple[Call, ...]
    forks: Mapping[str, int]
    signals: tuple[Signal, ...]
    branches: int
    advantage: float | None  # of the rollout in its group; None: it was in no baseline
    group: tuple[RolloutRow, ...]  # the rollouts of its group, itself included
    previous: str | None  # directory of the rollout before it in the run
    next: str | None
    limits: Mapping[str, str]  # that the sandbox enforced
    notes: Mapping[str, Any]
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTokens:
    """The tokens of one node of the tree, in columns of equal length [T]; null where a value is unknown."""

    node: int
    parent: int | None
    turn: int
    sampled: bool
    branch: int  # index of the first branch through it
    ids: tuple[int, ...]
    texts: tuple[str, ...] | None  # of each token; None: the tokenizer is not at hand
    bytes_hex: tuple[str, ...] | None  # exact bytes of each token
    logprobs: tuple[float | None, ...]  # engine
    versions: tuple[int | None, ...]
    trainer_logprobs: tuple[float | None, ...]
    entropies: tuple[float | None, ...]  # nats, trainer
    advantages: tuple[float | None, ...]
    weights: tuple[float, ...]  # > 0: trained
    why: str  # why its tokens are trained, or are not: "rendered, not sampled", "masked: ..."


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPage:
    """The token tree of a rollout."""

    rollout: str
    nodes: tuple[NodeTokens, ...]
    branches: tuple[tuple[int, ...], ...]  # node indices of each root-to-leaf path
    tokens: int
    sampled: int
    trained: int
    tokenizer: str | None  # folder or name; None: not at hand
    source: str  # where trainer_logprobs and entropies come from; "" where a run did not keep them


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPage:
    """The rollouts of one task that share a baseline, side by side."""

    group_id: str
    task_id: str
    rows: tuple[RolloutRow, ...]
    advantages: tuple[float | None, ...]  # of each row
    parts_at: tuple[int | None, ...]  # turn at which each row's replies first differ from the first row's
    turns: tuple[tuple[TurnView, ...], ...]  # of each row


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPage:
    task_id: str
    problem: str
    environment: Mapping[str, Any]
    checks: Mapping[str, Any]  # hidden tests, gold patch: behind a click
    rates: tuple[Point, ...]  # resolve rate by step
    rows: tuple[RolloutRow, ...]
    set_aside: str | None  # why
    found: bool  # whether the task's own file is at hand


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLine:
    """One sample of an evaluation, also one that an infrastructure fault ended."""

    task_id: str
    sample: int
    directory: str  # its name below rollouts/
    outcome: str
    resolved: bool
    score: float | None  # fraction of the failing tests that it fixed; None: not graded
    turns: int
    sampled_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLine:
    """The samples of one task; those that an infrastructure fault ended are among its rollouts only."""

    id: str
    group: str | None
    solved: str  # "never", "sometimes" or "always"; "": no sample counts
    resolved: int
    samples: int
    score: float | None  # the best
    outcomes: Mapping[str, int]
    rollouts: tuple[str, ...]  # directories, in order of the samples


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPage:
    """An evaluation: on the server, in an export and as report.html."""

    line: RunLine
    summary: Mapping[str, Any]  # summary.json, or the same figures of the results so far
    notes: tuple[str, ...]  # what its figures do not say, a sentence each
    outcomes: tuple[OutcomeSteps, ...]  # without steps
    tasks: tuple[TaskLine, ...]  # the least resolved first
    samples: tuple[SampleLine, ...]
    distributions: tuple[Distribution, ...]
    files: tuple[str, ...]  # in its directory


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonPage:
    """Two to six runs over each other."""

    runs: tuple[RunLine, ...]
    panels: tuple[tuple[str, tuple[Series, ...]], ...]  # title, one series per run
    # setting, its value in each run; only where they differ
    differences: tuple[tuple[str, tuple[str, ...]], ...]
    paired: RunComparison | None  # of two evaluations, by task
    unpaired: str  # why two evaluations are not paired; ""
