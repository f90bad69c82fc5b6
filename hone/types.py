"""The vocabulary of Hone. Read this file and you know the system.

    Task -> Sandbox -> Agent <-> Policy -> Trajectory -> Outcome -> reward -> Samples -> Trainer -> Policy

Every record is frozen. Arrays are NumPy with dtype and shape stated. The one rule: a token is trained only
if an engine sampled it, in exactly that context, with exactly that log-probability.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field

from hone.outcomes import Outcome

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
# [T, layers, k]: for each of T tokens, the k experts of every layer at the position that predicts the token.
# UNKNOWN_EXPERT: not recorded, or a layer without experts.
Routing = npt.NDArray[np.int8 | np.int16]
UNKNOWN_EXPERT = -1
_FORBID_EXTRA = ConfigDict(extra="forbid")  # unknown fields in a file are errors
Message = dict[str, Any]  # one chat message: {"role": ..., "content": ..., maybe "tool_calls": ...}


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    __pydantic_config__ = _FORBID_EXTRA

    message: str
    files: Mapping[str, str | None]  # path below workdir -> text; None deletes it


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Where a task's commands run."""

    __pydantic_config__ = _FORBID_EXTRA

    image: str  # "host" | "docker://NAME" | "rootfs:DIR" | "repo:PATH" (a git folder or bundle)
    workdir: str = "/testbed"
    history: tuple[Commit, ...] = ()  # made into a git repository in workdir; the agent meets the last
    repo: str = ""  # "owner/name" of the repository that the image holds, or that lies in a folder of them
    commit: str = ""  # of that repository, which the agent meets
    requirements: tuple[str, ...] = ()  # for `repo:`: what is installed beside it, each "name==version"
    distribution: str = ""  # for `repo:`: "name==version" of the repository itself
    paths: tuple[str, ...] = ()  # for `repo:`: below workdir, what Python imports from; "" is workdir itself
    python: str = ""  # for `repo:`: the version that runs it, such as "3.9"; "" is the Python that runs Hone
    build: tuple[str, ...] = ()  # of its extensions: the command, then each "name==version" that it needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A change of one expectation of trusted tests, with which they fail; see `hone.grading.controls`."""

    __pydantic_config__ = _FORBID_EXTRA

    file: str  # path below workdir of a test module, or of a helper module or data file of the tests
    start: int  # offset of `old` in the UTF-8 bytes of the file
    old: str
    new: str  # takes the place of `old`
    tests: tuple[str, ...]  # ids, as pytest reports them, of the tests that fail with it


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """What the grader knows and the agent never sees."""

    __pydantic_config__ = _FORBID_EXTRA

    fail_to_pass: tuple[str, ...]  # test ids that fail before the fix and must pass after it
    pass_to_pass: tuple[str, ...]  # test ids that pass before and must still pass
    test_files: Mapping[str, str]  # path below workdir -> trusted text, restored before the run
    gold_patch: str  # the reference fix, a unified diff
    test_patch: str = ""  # the tests as a unified diff, where a data set has them so
    script: str = ""  # the data set's own, which runs the tests; its log is read by `parser`
    rule: str = "pass_and_fail"  # when a test counts; see hone.grading.rules.Rule
    command: tuple[str, ...] = ()  # extra arguments of the test runner
    parser: str = "pytest"  # who runs and names the tests: "unittest", "harbor", a log parser of `swebench`
    folder: Mapping[str, str] = field(default_factory=dict[str, str])  # see hone.tasks.harbor.folder
    controls: tuple[Control, ...] = ()
    excused: tuple[str, ...] | None = None  # named tests that the reference fix leaves skipped or xfailed
    timeout_s: Annotated[float, Field(strict=True, gt=0, lt=1e9)] = 60.0

    @property
    def named_tests(self) -> tuple[str, ...]:
        """Every test id that decides whether the task is resolved."""
        return (*self.fail_to_pass, *self.pass_to_pass)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem: a statement, an environment, hidden checks (a SWE-bench "instance")."""

    __pydantic_config__ = _FORBID_EXTRA

    id: str
    problem: str  # the issue text, as a user would write it
    environment: Environment
    checks: Checks
    source: str  # the data set it comes from
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A run of tokens below `parent`: either sampled by an engine in one call, or rendered around one."""

    parent: int | None  # index of the node it continues; None only at a root
    tokens: Int32  # [T]
    sampled: bool
    logprobs: Float32  # [T]; the engine's; empty ([0]) when not sampled
    version: Int32  # [T]; the weight version that sampled each token; empty ([0]) when not sampled
    turn: int  # index of the turn it belongs to
    routing: Routing | None = None  # of a mixture of experts, where the engine records it

    def __post_init__(self) -> None:
        if self.routing is not None and len(self.routing) != len(self.tokens):
            raise ValueError(f"a node of {len(self.tokens)} tokens has the routing of {len(self.routing)}")
        expected = len(self.tokens) if self.sampled else 0
        if len(self.logprobs) != expected or len(self.version) != expected:
            raise ValueError(
                f"a node of {len(self.tokens)} tokens (sampled={self.sampled}) needs {expected} logprobs and "
                f"versions, got {len(self.logprobs)} and {len(self.version)}"
            )


class TokenTree:
    """Append-only tree of `Node`s; nothing in it is ever re-encoded from text.

    One engine call has the path root..node as its prompt and adds one sampled node. A branch is a
    root-to-leaf path; it is exactly what the model saw and said.
    """

    __slots__ = ("nodes",)

    def __init__(self, nodes: list[Node] | None = None) -> None:
        self.nodes: list[Node] = []
        for node in nodes or []:
            self.append(node)

    def append(self, node: Node) -> int:
        """Add a node and return its index. Raises ValueError when its parent is not in the tree yet."""
        if node.parent is not None and not 0 <= node.parent < len(self.nodes):
            raise ValueError(f"parent {node.parent} is not in this tree of {len(self.nodes)} nodes")
        self.nodes.append(node)
        return len(self.nodes) - 1

    def path(self, index: int) -> list[int]:
        """Node indices from the root to `index`, both included."""
        path: list[int] = []
        current: int | None = index
        while current is not None:
            path.append(current)
            current = self.nodes[current].parent
        return path[::-1]

    def tokens(self, index: int) -> Int32:
        """[T] every token on the path root..index."""
        return np.concatenate([self.nodes[i].tokens for i in self.path(index)])

    def leaves(self) -> list[int]:
        parents = {node.parent for node in self.nodes}
        return [i for i in range(len(self.nodes)) if i not in parents]

    def branches(self) -> Iterator[list[int]]:
        return (self.path(leaf) for leaf in self.leaves())

    @property
    def sampled_tokens(self) -> int:
        return sum(len(node.tokens) for node in self.nodes if node.sampled)


class TestStatus(StrEnum):
    __test__ = False  # not a test class, whatever pytest thinks of its name

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    MISSING = "missing"  # expected, but never reported


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlCounts:
    """How the controls of one grading ended."""

    planned: int = 0  # tests that ran with a control
    failed: int = 0  # controls that failed, as each must
    passed: int = 0  # controls that did not fail while the test passed: tampering


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the grader found, test by test."""

    resolved: bool
    tests: Mapping[str, TestStatus]  # every expected test id, fail-to-pass and pass-to-pass
    score: float  # fraction of fail-to-pass tests that pass, in [0, 1]
    tampered: str | None = None  # the evidence, one sentence; None: nothing found
    log: str = ""  # tail of the test run's output, for people; or why there was none
    applied: bool = True  # whether the patch could be applied
    controls: ControlCounts = field(default_factory=ControlCounts)
    seconds: float = 0.0  # that the tests ran, without the sandbox and its preparation
    memory_mib: float = 0.0  # most memory that one process of the tests had; 0: not measured
    rewards: Mapping[str, float] = field(default_factory=dict[str, float])  # of a Harbor task, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One reply of the policy and what came of it."""

    index: int
    node: int | None  # the sampled node of the token tree; None for scripted agents
    reply: str
    action: str | None  # the command that was run; None: the reply held no valid action
    exit_code: int | None
    observation: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One answered call to the policy."""

    index: int  # in the order of the answers
    node: int | None  # the sampled node of the token tree; None: the engine gives no token ids
    purpose: str  # "main": the agent's own next turn; see `hone.policy.reply`
    fork: str | None  # why its prompt does not continue the tip of the conversation; None: it does
    prompt_tokens: int
    sampled_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A command that looked for information an honest agent does not need; a hint for people."""

    turn: int  # its index
    kind: str  # see `hone.grading.integrity.SignalKind`
    command: str  # excerpt around the match


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """One reply of the judge about a turn."""

    score: float  # +1 or -1; 0: invalid
    latency_ms: float
    raw_text: str  # the reply without its reasoning; head and tail where it is long
    ok: bool  # whether it counts
    error: str | None = None  # why there is no reply


class JudgementStatus(StrEnum):
    OK = "ok"  # at least one valid vote
    INVALID_RESULT = "invalid_result"  # replies, but no valid vote among them
    EXCEPTION = "exception"  # no reply at all: the judge failed or was too slow


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The judge's votes on one turn."""

    step_index: int  # the turn's index
    votes: tuple[Vote, ...]

    @property
    def status(self) -> JudgementStatus:
        if any(vote.ok for vote in self.votes):
            return JudgementStatus.OK
        failed = all(vote.error is not None for vote in self.votes)
        return JudgementStatus.EXCEPTION if failed else JudgementStatus.INVALID_RESULT

    @property
    def valid_scores(self) -> list[float]:
        return [vote.score for vote in self.votes if vote.ok]

    @property
    def score(self) -> float:
        """Mean of the valid votes, in [-1, 1]; 0 without any."""
        scores = self.valid_scores
        return sum(scores) / len(scores) if scores else 0.0


class ProgressStatus(StrEnum):
    OK = "ok"
    UNREADABLE = "unreadable"  # no patch could be read out of the sandbox
    NO_VERDICT = "no_verdict"  # the grader failed, or was too slow


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnProgress:
    """How much of the hidden tests passes on the tree as one turn left it."""

    step_index: int  # the turn's index
    status: ProgressStatus
    changed: bool  # whether the turn changed the patch
    score: float | None  # the potential, in [0, 1]; None: not known
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressScores:
    """The potential of the untouched task and of the tree after each turn."""

    initial_score: float | None  # None: not known
    steps: tuple[TurnProgress, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalScore:
    """Outcome reward plus what the turns earned; see `hone.rollout.rewards.weigh`."""

    score: float
    acc: float  # 1: resolved, 0: not
    outcome_reward: float
    prm_step_mean: float  # mean score of the judged turns
    prm_step_coef: float
    progress_sum: float
    progress_coef: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Scores of single turns, without coefficients, so that a stored rollout can be weighed again."""

    judgements: tuple[Judgement, ...] | None = None  # in order of turns; None: there was no judge
    progress: ProgressScores | None = None  # None: it was not measured
    final: FinalScore | None = None  # None: no turn earns anything


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """Who made a rollout: the agent, and the engine that sampled its replies."""

    agent: str = ""  # kind
    engine: str | None = None  # kind; None: the agent is scripted
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])  # temperature, top_p, ...
    trainable: bool = False  # whether the tree holds the tokens that the engine sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The record of one rollout: everything needed to train on it, grade it again or read it."""

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)  # the tree

    task_id: str
    rollout_id: str  # unique in the run
    group_id: str  # rollouts of one task that share a baseline
    tree: TokenTree
    turns: tuple[Turn, ...]
    messages: tuple[Message, ...]
    patch: str
    outcome: Outcome
    reward: float | None  # None exactly when the outcome is infrastructure's
    verdict: Verdict | None = None
    error: str | None = None  # one sentence, where something went wrong
    timings: Mapping[str, float] = field(default_factory=dict[str, float])  # phase -> seconds
    turn_rewards: Mapping[int, float] = field(default_factory=dict[int, float])  # turn index -> its own
    scores: Scores = field(default_factory=Scores)
    sampler: Sampler = field(default_factory=Sampler)
    seed: int | None = None  # of the sampling
    started_at: float | None = None  # Unix time, s, at which the agent began; None: it never did
    tools: tuple[dict[str, Any], ...] = ()  # specifications offered to the policy beside the messages
    calls: tuple[Call, ...] = ()
    forks: Mapping[str, int] = field(default_factory=dict[str, int])  # reason -> times history was rewritten
    signals: tuple[Signal, ...] = ()
    enforced_limits: Mapping[str, str] = field(default_factory=dict[str, str])  # see `Sandbox.enforced`
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of the agent, for people; JSON values


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What the trainer takes: one branch of a tree, with credit per token.

    Invariant: weight > 0 only on tokens an engine sampled, and over all samples of a tree each sampled token
    has weight > 0 at most once.

    Example: prompt P, reply A (sampled), observation E, reply B (sampled), group advantage 0.5:
        tokens    = P + A + E + B
        weight    = [0]*|P| + [1]*|A| + [0]*|E| + [1]*|B|; advantage = 0.5 where weight > 0
    """

    rollout_id: str
    group_id: str
    tokens: Int32  # [T]
    weight: Float32  # [T]
    advantage: Float32  # [T]
    logprobs: Float32  # [T]; the engine's, 0 where not sampled
    version: Int32  # [T]; -1 where not sampled
    routing: Routing | None = None  # of a mixture of experts, where the engine records it
