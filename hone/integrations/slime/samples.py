"""slime's `Sample`s from trajectories and back, without an import of slime.

    data source -> pending Sample -> generate: [Sample of branch 0, Sample of branch 1, ...] -> reward, filter

What Hone knows of a rollout is in `metadata["hone"]`. Each rollout is a list, of one sample where it has one
branch, and all its samples have the `rollout_id` of the rollout: slime then counts it once.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hone.integrations.rollouts.branches import Branch, branches
from hone.policy.engine import Completion, ContextOverflow, Finish, Sampling
from hone.policy.engines.sglang import RESERVED
from hone.rollout.rewards import is_infrastructure_fault, solved
from hone.train.algorithms.contract import AlgorithmSettings, Group
from hone.types import Trajectory

KEY = "hone"  # of the metadata
Nested = Any  # a sample, or lists of lists of samples
INFRASTRUCTURE, ZERO_VARIANCE = "infrastructure_fault", "zero_variance"  # why a group is dropped


def payload(prompt_ids: Sequence[int], sampling: Sampling, *, context_tokens: int) -> dict[str, Any]:
    """Return the body of a request to SGLang's /generate.

    Raises ContextOverflow for a prompt that a server with this context refuses: slime would send it 60 times,
    one second apart, and the rollout would then end with a fault.
    """
    longest = context_tokens - RESERVED
    if len(prompt_ids) > longest:
        raise ContextOverflow(len(prompt_ids), longest)
    return {
        "input_ids": list(prompt_ids),
        "return_logprob": True,
        "sampling_params": {
            "max_new_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "stop_token_ids": list(sampling.stop_token_ids),
            "skip_special_tokens": False,
            "no_stop_trim": True,
            "spaces_between_special_tokens": False,
        },
    }


def completion_of(reply: Mapping[str, Any], sampling: Sampling) -> Completion:
    """Return SGLang's reply as Hone's. Its one name for the weights is that of every token."""
    meta = reply["meta_info"]
    sampled = meta.get("output_token_logprobs") or []
    ids = np.array([entry[1] for entry in sampled], np.int32)
    return Completion(
        token_ids=ids,
        logprobs=np.array([entry[0] for entry in sampled], np.float32),
        version=np.full(len(ids), version_of(meta.get("weight_version")), np.int32),
        finish=_finish(ids.tolist(), meta["finish_reason"]["type"], sampling),
    )


def _finish(ids: Sequence[int], reason: str, sampling: Sampling) -> Finish:
    if ids and ids[-1] in sampling.stop_token_ids:
        return Finish.STOP
    return Finish.ABORT if reason == "abort" else Finish.LENGTH


def version_of(label: Any) -> int:
    """Return the number in SGLang's name for its weights; 0 for a name, as before slime's first update."""
    return int(label) if str(label).isdecimal() else 0


def fill_samples(pending: Any, trajectory: Trajectory, *, masked: bool) -> list[Any]:
    """Return copies of a pending sample, one for each branch of its rollout.

    An infrastructure fault is one removed sample that trains nothing, is "aborted" and has no reward.
    """
    fault = is_infrastructure_fault(trajectory.outcome)
    rows = branches(trajectory, masked=masked)
    return [_fill(copy.deepcopy(pending), row, trajectory, fault=fault) for row in rows]


def _fill(sample: Any, row: Branch, trajectory: Trajectory, *, fault: bool) -> Any:
    status = type(sample).Status
    sample.rollout_id = sample.index
    sample.tokens = [*row.prompt_ids.tolist(), *row.response_ids.tolist()]
    sample.response = "\n".join(turn.reply for turn in trajectory.turns)
    sample.response_length = len(row.response_ids)
    sample.loss_mask = row.response_mask.tolist()
    sample.rollout_log_probs = row.logprobs.tolist()
    sample.weight_versions = [str(v) for v in np.unique(row.versions[row.versions >= 0])]
    sample.remove_sample = not row.response_mask.any()
    sample.reward = trajectory.reward
    sample.non_generation_time = sum(trajectory.timings.get(name, 0.0) for name in ("exec", "grade", "start"))
    ended = status.TRUNCATED if trajectory.outcome.value.endswith("_limit") else status.COMPLETED
    sample.status = status.ABORTED if fault else ended
    sample.metadata[KEY] |= {
        "rollout_id": trajectory.rollout_id,
        "outcome": trajectory.outcome.value,
        "reward": trajectory.reward,
        "resolved": solved(trajectory.outcome, trajectory.verdict),
        "turns": len(trajectory.turns),
        "forks": sum(trajectory.forks.values()),
    }
    return sample


def reset(sample: Any) -> Any:
    """Return a pending copy of a sample: a requeued rollout starts again from the beginning."""
    kind = type(sample)
    metadata = {KEY: {"task_id": sample.metadata[KEY]["task_id"]}}
    return kind(
        group_index=sample.group_index,
        index=sample.index,
        prompt=sample.prompt,
        label=sample.label,
        metadata=metadata,
    )


def flatten(samples: Nested) -> Iterator[Any]:
    """Yield the samples of nested lists, in order."""
    if isinstance(samples, (list, tuple)):
        for each in samples:
            yield from flatten(each)
    else:
        yield samples


def rollouts(samples: Iterable[Any]) -> list[Any]:
    """Return the last sample of each rollout; all samples of one have its reward and outcome."""
    return list({_rollout(sample): sample for sample in samples}.values())


def _rollout(sample: Any) -> int:
    return sample.index if sample.rollout_id is None else sample.rollout_id


def dropped_reason(group: Nested, *, constant: bool) -> str | None:
    """Return why a group is replaced by another one; None if it is kept.

    `constant`: whether a group with equal rewards is replaced.
    """
    rewards = [sample.reward for sample in rollouts(flatten(group))]
    if any(reward is None for reward in rewards):
        return INFRASTRUCTURE
    return ZERO_VARIANCE if constant and len(set(rewards)) == 1 else None


def advantages(samples: Sequence[Any], settings: AlgorithmSettings) -> tuple[list[float], list[float]]:
    """Return the raw reward and the advantage of each sample.

    The groups are those of `group_index`, whatever the number of samples of a rollout: a rollout counts once
    in its group, and all its samples have its advantage. One without a reward counts nowhere and has 0.
    """
    members: dict[int, dict[int, float]] = {}  # group -> rollout -> reward
    for sample in samples:
        group = members.setdefault(sample.group_index, {})
        if sample.reward is not None:
            group[_rollout(sample)] = float(sample.reward)
    groups = [Group(rewards=np.array(list(each.values())), rollouts=()) for each in members.values() if each]
    estimated = iter(settings.algorithm.advantages(groups, settings))
    of: dict[tuple[int, int], float] = {}
    for index, group in members.items():
        values = next(estimated).rollouts if group else ()
        of |= {(index, key): float(value) for key, value in zip(group, values, strict=True)}
    raw = [0.0 if sample.reward is None else float(sample.reward) for sample in samples]
    return raw, [of.get((sample.group_index, _rollout(sample)), 0.0) for sample in samples]


def metrics(samples: Sequence[Any]) -> dict[str, float]:
    """Return metrics of the rollouts that slime has kept, by name."""
    last = rollouts(samples)
    known = [sample.metadata[KEY] for sample in last if "outcome" in sample.metadata.get(KEY, {})]
    if not known:
        return {}
    count = len(known)
    outcomes = {each["outcome"] for each in known}
    return {
        "hone/rollouts": float(count),
        "hone/samples_per_rollout": len(samples) / len(last),
        "hone/resolve_rate": sum(each["resolved"] for each in known) / count,
        "hone/turns": sum(each["turns"] for each in known) / count,
        "hone/forks": sum(each["forks"] for each in known) / count,
        **{
            f"hone/outcome/{name}": sum(each["outcome"] == name for each in known) / count
            for name in sorted(outcomes)
        },
    }
