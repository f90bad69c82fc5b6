"""Settings as text: the resolved copy a run keeps, and the fingerprint that tells one run from another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tomli_w

from hone.config.fields import walk
from hone.config.run import RunSettings
from hone.settings import Settings

SPEED_ONLY = frozenset(
    {
        "run_dir",
        "sandbox.max_concurrent_starts",
        "sandbox.start_timeout_s",
        "sandbox.state_dir",
        "sandbox.cache_dir",
        "engine.max_batch",
        "engine.threads",
        "engine.cached_sessions",
        "engine.prefill_tokens",
        "engine.urls",
        "engine.servers",
        "engine.tensor_parallel",
        "engine.gpu_memory_fraction",
        "engine.python",
        "engine.api_key_env",
        "engine.weight_sync",
        "engine.ready_timeout_s",
        "engine.request_timeout_s",
        "engine.retries",
        "judge.concurrency",
        "judge.engine.max_batch",
        "judge.engine.threads",
        "judge.engine.cached_sessions",
        "judge.engine.prefill_tokens",
        "judge.engine.urls",
        "judge.engine.servers",
        "judge.engine.tensor_parallel",
        "judge.engine.gpu_memory_fraction",
        "judge.engine.python",
        "judge.engine.api_key_env",
        "judge.engine.weight_sync",
        "judge.engine.ready_timeout_s",
        "judge.engine.request_timeout_s",
        "judge.engine.retries",
        "rollout.concurrent_episodes",
        "grading.concurrency",
        "grading.cached_verdicts",
        "evaluate.price_per_million_prompt",
        "evaluate.price_per_million_sampled",
        "rollout.attempts",
        "rollout.retry_delay_s",
        "train.batch.micro_batch_tokens",
        "train.batch.logit_tokens",
        "train.batch.workers",
        "train.checkpoint",
        "sft.micro_batch_tokens",
        "sft.logit_tokens",
        "sft.workers",
        "sft.checkpoint",
    }
)
"""Settings, and groups of them, that say where, how fast or how safely, but not what a run computes."""
_FILES = ("agent.prompts", "agent.program")


def dump(settings: RunSettings) -> str:
    """A recipe that resolves to exactly these settings.

    What was set stands as it is; every default stands beside it as a comment, so that the file shows the
    whole run and can still be extended.
    """
    lines = [
        f"# Resolved by hone {version('hone')}. A commented line shows a default.",
        *_lines(settings, ""),
    ]
    return "\n".join(lines) + "\n"


def fingerprint(settings: RunSettings, groups: Collection[str] = ()) -> str:
    """What a run computes: equal exactly when two runs may share a directory; 64 hexadecimal digits.

    Defaults count like values that were set, and files with prompts and programs by what they hold.
    `SPEED_ONLY` settings do not count, and neither does the number of training steps while the learning rate
    does not depend on it: such a run may be continued further.

    Args:
        groups: the top-level groups that matter, such as those a command uses; none: all.
    """
    ignored = set(SPEED_ONLY)
    if settings.train.optimizer.schedule == "constant":
        ignored.add("train.steps")
    values = {name: _value(settings, name) for name in _single_settings()}
    counted = {
        path: value
        for path, value in values.items()
        if not any(path == other or path.startswith(other + ".") for other in ignored)
        and (not groups or path.partition(".")[0] in groups)
    }
    held = {path: _digest(counted.get(path)) for path in _FILES}
    return hashlib.sha256(json.dumps([counted, held], sort_keys=True, default=str).encode()).hexdigest()


def _digest(path: Any) -> str | None:
    """Of what a file holds; None for what is no path of a file, such as the name of a preset."""
    if not isinstance(path, str) or not path or not Path(path).is_file():
        return None
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _single_settings() -> list[str]:
    return [setting.path for setting in walk(RunSettings) if setting.group is None]


def _value(settings: Settings, path: str) -> Any:
    value: Any = settings
    for name in path.split("."):
        if value is None:
            return None
        value = getattr(value, name)
    return _plain(value)


def _lines(settings: Settings, prefix: str) -> Iterator[str]:
    groups: list[tuple[str, Settings]] = []
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, Settings):
            groups.append((name, value))
        elif name in settings.model_fields_set and value is not None:
            yield _assignment(name, value)
        else:
            shown = f"# {name} = (none)" if value is None else f"# {_assignment(name, value)}"
            yield shown.replace("\n", "\n# ")
    for name, group in groups:
        yield f"\n[{prefix}{name}]"
        yield from _lines(group, f"{prefix}{name}.")


def _assignment(name: str, value: Any) -> str:
    plain = _plain(value)
    if isinstance(plain, dict):
        inner = ", ".join(tomli_w.dumps({key: item}).strip() for key, item in plain.items())
        return f"{name} = {{ {inner} }}"
    return tomli_w.dumps({name: plain}).strip()


def _plain(value: Any) -> Any:
    """The value as TOML and JSON have it; sets are sorted, so that equal settings read the same."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in sorted(value.items())}
    if isinstance(value, (set, frozenset)):
        return sorted(_plain(item) for item in value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (bool, int, float)) or value is None else str(value)
