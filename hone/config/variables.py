"""Environment variables of published systems, as aliases of settings.

A recipe that stands for a published script names its system (`variables = "swe-rl"`); the variables of that
script then override the recipe, and `--set` overrides them. Names and defaults are those of the systems'
repositories: `run_grpo.sh` of GaokaiZhang/slime at b6aec14 (examples/qwen_swe), and the scripts and
`run_eval_swe.sh` of Gen-Verse/OpenClaw-RL at 0d034dd (swe-rl).

Invariant: no variable of a system is ignored; one without a counterpart is refused with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hone.config.fields import ConfigError, nearest
from hone.config.run import Command

Values = dict[str, Any]  # setting -> value


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """What a variable sets."""

    values: Callable[[str, str], Values] = lambda text, recipe: {}  # text, name of the recipe -> settings
    reason: str = ""  # why it is refused, and what to do instead; "": it is not


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """The variables of one system."""

    prefix: str  # a variable with this prefix belongs to the system; "": none does by its name alone
    commands: Mapping[Command, Mapping[str, Variable]]  # command that takes the place of a script -> its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A setting, its value, and the variable that gave it."""

    variable: str
    path: str
    value: Any


def read_variables(system: str, command: Command, environment: Mapping[str, str], recipe: str) -> list[Given]:
    """Return what the environment sets for a command, with the recipe's name; empty variables are not set.

    Raises ConfigError for an unknown variable with the system's prefix, for one that
    Hone has no counterpart of, and for two variables that give a setting different values.
    """
    prefix = SYSTEMS[system].prefix
    table = SYSTEMS[system].commands.get(command, {})
    known = {each for commands in SYSTEMS[system].commands.values() for each in commands}
    found: dict[str, Given] = {}
    for variable, text in sorted(environment.items()):
        if not text or not table:
            continue
        if prefix and variable.startswith(prefix) and variable not in known:
            meant = nearest(variable, known)
            hint = f"did you mean {meant}?" if meant else "unset it"
            raise ConfigError(f"the environment variable {variable} is none of {system}'s: {hint}")
        if variable not in table:
            continue
        if table[variable].reason:
            raise ConfigError(f"the environment variable {variable} has no effect: {table[variable].reason}")
        for given in _given(variable, table[variable], text, recipe):
            other = found.setdefault(given.path, given)
            if other.value != given.value:
                raise ConfigError(
                    f"the environment variables {other.variable} and {variable} set {given.path} to "
                    f"{other.value} and {given.value}: unset one of them"
                )
    return list(found.values())


def _given(variable: str, meaning: Variable, text: str, recipe: str) -> Iterator[Given]:
    try:
        values = meaning.values(text, recipe)
    except ValueError as error:
        raise ConfigError(f"the environment variable {variable} is {text!r}: {error}") from None
    for path, value in values.items():
        yield Given(variable=variable, path=path, value=value)


def _sets(path: str, read: Callable[[str], Any] = str, **also: Any) -> Variable:
    """Return a variable whose text, as `read` returns it, is the value of a setting.

    `also`: settings that it sets to fixed values, with two underscores for a dot.
    """
    fixed = {name.replace("__", "."): value for name, value in also.items()}
    return Variable(values=lambda text, recipe: {path: read(text), **fixed})


def _refused(reason: str) -> Variable:
    return Variable(reason=reason)


def _server(text: str) -> list[str]:
    return [text.rstrip("/").removesuffix("/v1")]


def _router(text: str, recipe: str) -> Values:
    """Return the address of the router; `auto` stands for the servers that the recipe names."""
    return {} if text == "auto" else {"engine.urls": _server(text)}


def _debug(text: str, recipe: str) -> Values:
    if text not in ("0", "1"):
        raise ValueError("it must be 0 or 1")
    steps = 40 if recipe == "swe-32b" else 80
    return {"rollout.group_size": 2, "train.steps": steps} if text == "1" else {}


def _always(text: str, recipe: str) -> Values:
    if text != "1":
        raise ValueError("such edits are always removed from a patch; set it to 1, or unset it")
    return {}


def _mebibytes(text: str) -> int:
    """Return the MiB of an amount of memory as Docker writes it: `8g`, `512m`, or bytes."""
    found = re.fullmatch(r"(\d+)([bkmg]?)", text.lower())
    if found is None:
        raise ValueError("it must be an amount of memory such as 8g or 512m")
    return int(found[1]) * {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}[found[2]] >> 20


def _gpus(text: str) -> list[list[int]]:
    if re.fullmatch(r"\d+(,\d+)*", text) is None:
        raise ValueError("it must be a list of GPUs such as 0,1,2,3")
    return [[int(number) for number in text.split(",")]]


_POOL = Variable()  # `hone pool` reads it
_LOCAL: Values = {"engine__urls": [], "placement__nodes": 1}  # the evaluation starts a server on this machine
_NO_SOURCE: Values = {  # the evaluation has no training set
    "tasks__source": "curriculum",
    **{f"tasks__{name}": 0 for name in ("train", "validation", "test", "unseen")},
}

_BOTH = {  # of system C, for its training and its evaluation
    "SWE_ENV_SERVER_URL": _sets("sandbox.pool_url"),
    "SWE_ENV_SERVER_PORT": _sets("sandbox.pool_url", lambda text: f"http://localhost:{text}"),
    "SWE_ENV_SERVER_BIND_HOST": _POOL,
    "SWE_EXEC_SERVER_URLS": _POOL,
    "SWE_MAX_CONTAINERS_PER_NODE": _POOL,
    "SWE_CONFIG_PATH": _sets("agent.prompts"),
    "SWE_ROLLOUT_TIMEOUT": _sets("rollout.time_limit_s"),
    "SWE_STEP_LIMIT": _sets("agent.turn_limit"),
    "SWE_CONTAINER_PIDS_LIMIT": _sets("sandbox.pids"),
    "SWE_CONTAINER_MEMORY": _sets("sandbox.memory_mib", _mebibytes),
    "SWE_STRICT_NO_TEST_PATCH": Variable(values=_always),
    "SWE_STRICT_NO_CONFIG_PATCH": Variable(values=_always),
    "SWE_TEST_PATCH_POLICY_SCOPE": _refused("edits of any test are removed from a patch; unset it"),
    "SWE_SKIP_EVAL": _refused("every patch is graded; unset it"),
    "SWE_EVAL_TIMEOUT": _sets("tasks.timeout_s"),
    "SWE_DOCKER_REGISTRY": _refused(
        "tasks name their images, and `hone images pull --proxy` takes them from another registry; unset it"
    ),
    "SWE_ENV_HTTP_MAX_RETRIES": _refused("a start is tried again until sandbox.queue_timeout_s; unset it"),
    "SWE_EVALUATE_MAX_RETRIES": _refused("a rollout has rollout.attempts, its grading included; unset it"),
    "SWE_SAVE_TRAJ_DIR": _refused("rollouts are stored in `rollouts` of the run directory; unset it"),
    "SWE_LITELLM_MODEL_NAME": _refused("the name of the served model is asked of the server; unset it"),
    "LITELLM_MODEL_REGISTRY_PATH": _refused(
        "prices are evaluate.price_per_million_prompt and evaluate.price_per_million_sampled; unset it"
    ),
}

SYSTEMS: dict[str, System] = {
    "qwen-swe": System(
        prefix="",
        commands={
            "train": {
                "VLLM_URL": _sets("engine.urls", _server),
                "MODEL": _sets("model.path"),
                "NUM_ROLLOUTS": _sets("train.steps"),
                "ROLLOUT_BATCH_SIZE": _sets("groups_per_step"),
                "N_SAMPLES": _sets("rollout.group_size"),
                "OUTPUT_DIR": _sets("run_dir"),
                "INSTANCE_FILE": _sets("tasks.select.ids_file"),
            }
        },
    ),
    "swe-rl": System(
        prefix="SWE_",
        commands={
            "train": {
                **_BOTH,
                "SWE_MAX_CONCURRENT": _sets("rollout.concurrent_episodes"),
                "SWE_PRM_MAX_CONCURRENCY": _sets("judge.concurrency"),
                "OPENAI_BASE_URL": Variable(values=_router),
                "HF_CKPT": _sets("model.path"),
                "REF_LOAD": _sets("model.path"),
                "SAVE_CKPT": _sets("run_dir"),
                "RESUME_LOAD": _sets("run_dir"),
                "EXPORT_ROOT": Variable(values=lambda text, recipe: {"run_dir": f"{text}/ckpt/{recipe}"}),
                "PROMPT_DATA": _sets("tasks.source"),
                "DEBUG_MODE": Variable(values=_debug),
            },
            "eval": {
                **_BOTH,
                "EVAL_MODEL_PATH": _sets("model.path", **_LOCAL),
                "EVAL_MODEL_NAME": _refused("the run starts the server and knows its model; unset it"),
                "EVAL_TP": _sets("engine.tensor_parallel", **_LOCAL),
                "EVAL_GPU_IDS": _sets("placement.engine", _gpus, **_LOCAL),
                "SGLANG_PORT": _refused(
                    "the run chooses a free port for the server that it starts; unset it"
                ),
                "PROMPT_DATA": _sets("tasks.evaluation", evaluate__split="test", **_NO_SOURCE),
                "DATA_SOURCE": _refused(
                    "each row's data set is found by its columns, or set by `hone tasks import`; unset it"
                ),
                "MAX_CONCURRENT": _sets("rollout.concurrent_episodes"),
                "MAX_TOKENS": _sets("sampling.max_tokens"),
                "STEP_LIMIT": _sets("agent.turn_limit"),
                "TEMPERATURE": _sets("sampling.temperature"),
                "MAX_INSTANCES": _sets("evaluate.slice", lambda text: f":{text}"),
                "OUTPUT_DIR": _sets("run_dir"),
            },
        },
    ),
}
"""System, as `variables` of a recipe names it -> its variables."""
