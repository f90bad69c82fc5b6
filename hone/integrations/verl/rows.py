"""What verl and Hone tell each other, as plain values: dataset rows, replies and outputs of the agent loop.

A row of the data set names a task; the agent loop finds it by its id and never shows its checks to verl.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from hone.integrations.rollouts.branches import Branch, branches
from hone.policy.engine import Completion, EngineError, Finish, Sampling
from hone.policy.settings import SamplingSettings
from hone.rollout.rewards import is_infrastructure_fault, solved
from hone.types import Int32, Task, Trajectory

AGENT = "hone"  # the name of the agent loop
_ABORTED = ("abort", "aborted")


class TokenOutput(Protocol):
    """verl's reply of an engine."""

    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def log_probs(self) -> Sequence[float] | None: ...
    @property
    def stop_reason(self) -> str | None: ...
    @property
    def extra_fields(self) -> Mapping[str, Any]: ...


def dataset_rows(tasks: Iterable[Task], split: str) -> list[dict[str, Any]]:
    """Return the rows of verl's data set, one per task, in order.

    `reward_model` is a column that verl reads and nothing uses: the agent loop brings the reward.
    """
    return [
        {
            "data_source": AGENT,
            "agent_name": AGENT,
            "prompt": [{"role": "user", "content": task.problem}],
            "reward_model": {"style": AGENT, "ground_truth": ""},
            "extra_info": {"index": index, "task_id": task.id, "split": split},
        }
        for index, task in enumerate(tasks)
    ]


def sampling_of(params: Mapping[str, Any], max_tokens: int) -> SamplingSettings:
    """Return verl's sampling parameters, which differ between training and validation, as Hone's."""
    return SamplingSettings(
        temperature=float(params["temperature"]),
        top_p=float(params["top_p"]),
        top_k=max(0, int(params["top_k"])),  # verl: -1 is off
        max_tokens=max_tokens,
    )


def sampling_params(sampling: Sampling) -> dict[str, Any]:
    """Return the parameters of one request to verl's engines."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "repetition_penalty": 1.0,
        "logprobs": True,
        "max_tokens": sampling.max_tokens,
        "stop_token_ids": list(sampling.stop_token_ids),
    }


def completion_of(output: TokenOutput, sampling: Sampling) -> Completion:
    """Return verl's reply as Hone's.

    A reply that an update has interrupted and continued has two versions, and verl does not say where it
    changed: the last token gets the newest, all others the oldest. Raises EngineError without
    log-probabilities.
    """
    ids = np.asarray(output.token_ids, np.int32)
    if output.log_probs is None:
        raise EngineError(
            "verl's engine returned no log-probabilities: set "
            "actor_rollout_ref.rollout.calculate_log_probs = true"
        )
    version = np.full(len(ids), int(output.extra_fields.get("min_global_steps") or 0), np.int32)
    version[-1:] = int(output.extra_fields.get("max_global_steps") or 0)
    return Completion(
        token_ids=ids,
        logprobs=np.asarray(output.log_probs, np.float32),
        version=version,
        finish=_finish(ids, output.stop_reason, sampling),
    )


def _finish(ids: Int32, stop_reason: str | None, sampling: Sampling) -> Finish:
    if len(ids) and int(ids[-1]) in sampling.stop_token_ids:
        return Finish.STOP
    return Finish.ABORT if stop_reason in _ABORTED else Finish.LENGTH


def loop_outputs(trajectory: Trajectory, *, masked: bool, version: int) -> list[dict[str, Any]]:
    """Return the fields of verl's `AgentLoopOutput`, one for each branch; none for an infrastructure fault.

    verl takes every row of a rollout into the baseline, masked ones as well, with a reward of 0 where they
    have none, and all rows of a rollout into its group. So a fault has no row: verl fills its place with a
    masked row of its own, which is in no other group. The last row decides the advantage of all.

    `version`: of the weights in use, for rows without a sampled token.
    """
    if is_infrastructure_fault(trajectory.outcome):
        return []
    return [_output(branch, trajectory, version) for branch in branches(trajectory, masked=masked)]


def _output(branch: Branch, trajectory: Trajectory, version: int) -> dict[str, Any]:
    oldest, newest = branch.min_version, branch.max_version
    timings = trajectory.timings
    return {
        "prompt_ids": branch.prompt_ids.tolist(),
        "response_ids": branch.response_ids.tolist(),
        "response_mask": branch.response_mask.tolist(),
        "response_logprobs": branch.logprobs.tolist(),
        "reward_score": trajectory.reward,
        "num_turns": len(trajectory.messages),
        "metrics": {
            "generate_sequences": timings.get("model", 0.0),
            "tool_calls": timings.get("exec", 0.0),
            "compute_score": timings.get("grade", 0.0),
        },
        "extra_fields": {
            "min_global_steps": version if oldest is None else oldest,
            "max_global_steps": version if newest is None else newest,
            "reward_extra_info": {"acc": float(solved(trajectory.outcome, trajectory.verdict))},
            "outcome": trajectory.outcome.value,
            "rollout_id": trajectory.rollout_id,
        },
    }
