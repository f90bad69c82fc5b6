"""What a run will meet, said before it: prompts that do not fit, and a large policy without a GPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

from hone.agents.first_prompt import first_prompt
from hone.config.device_plan import MachinePlan
from hone.config.models import policy_shape, uses_policy
from hone.config.placement import resolve_placement
from hone.config.run import SAMPLING, Command, RunSettings
from hone.config.speed import cpu_seconds
from hone.evaluate.words import duration
from hone.policy.hub import TOKENIZERS, cached_model
from hone.policy.reply import ToolSpec
from hone.policy.settings import ModelSettings, OpenAIEngineSettings
from hone.types import Message, Task
from hone.utils.devices import Devices

LARGE = 1e9  # parameters from which a CPU is too slow
_TEMPLATE_TOKENS = 1024  # that a chat template adds at most
_FITTING = 20  # prompts in a row, the longest first, after which the rest is taken to fit


def prompt_problem(
    settings: RunSettings, command: Command, load_tasks: Callable[[], Sequence[Task]]
) -> tuple[str, bool]:
    """Return why first prompts do not fit `engine.context_tokens`, or "", and whether none fits.

    The tokenizer is loaded only where a prompt has more bytes than the context has tokens; a model that is
    not on this machine, or not made yet, is not checked. Raises PolicyError for an unusable tokenizer.
    """
    model = settings.model
    if command not in SAMPLING or model is None or not uses_policy(settings, command):
        return "", False
    located = None if isinstance(settings.engine, OpenAIEngineSettings) else cached_model(model)
    if located is None or not any((located.folder / name).is_file() for name in TOKENIZERS):
        return "", False
    prompt, tools = first_prompt(settings.agent)
    context = settings.engine.context_tokens

    def size(task: Task) -> int:
        return sum(len(str(message["content"]).encode()) for message in prompt(task))

    tasks = sorted(load_tasks(), key=size, reverse=True)
    long_texts = [task for task in tasks if size(task) + _TEMPLATE_TOKENS > context]
    if not long_texts or importlib.util.find_spec("transformers") is None:
        return "", False
    measure = _counter(model, located.folder)
    lengths: list[int] = []
    for task in long_texts:
        lengths.append(measure(prompt(task), tools))
        if len(lengths) >= _FITTING and max(lengths[-_FITTING:]) < context:
            break
    long = sum(length >= context for length in lengths)
    if not long:
        return "", False
    whose = f"{long} of the {len(tasks)} tasks" if long < len(tasks) else "any task"
    problem = (
        f"the first prompt of {whose} does not fit engine.context_tokens = {context} (the longest has at "
        f"least {max(lengths)} tokens): set it to {_room(max(lengths), settings.sampling.max_tokens)} or more"
    )
    return problem, long == len(tasks)


def _room(prompt_tokens: int, reply_tokens: int) -> int:
    """Return a context for the prompt and a reply, rounded up to a multiple of 256."""
    return -(-(prompt_tokens + reply_tokens) // 256) * 256


def _counter(settings: ModelSettings, folder: Path) -> Callable[[list[Message], Sequence[ToolSpec]], int]:
    """Return a function that counts the tokens of a prompt."""
    from hone.policy.model import load_tokenizer, make_renderer  # imported on use: load transformers

    renderer = make_renderer(load_tokenizer(folder), settings.renderer, thinking=settings.thinking)

    def count(messages: list[Message], tools: Sequence[ToolSpec]) -> int:
        return len(renderer.render_ids(messages, tools=list(tools) or None, add_generation_prompt=True))

    return count


def cpu_problem(settings: RunSettings, command: Command, devices: Devices, machine: MachinePlan) -> str:
    """Return what a policy of billions of parameters costs on the CPU, or "" where a GPU has it."""
    shape, _ = policy_shape(settings, command)
    if shape is None or shape.parameters < LARGE or machine.placement_error:
        return ""
    placement = resolve_placement(settings, devices, command)
    trains, samples = command != "eval" and placement.trainer == "cpu", command in SAMPLING
    samples = samples and not placement.engine and not settings.engine.addresses
    samples = samples and settings.engine.kind not in ("openai", "tinker") and not placement.trainer_gpus
    if not trains and not samples:
        return ""
    does = " and ".join(["trains"] * trains + ["samples"] * samples)
    need = sum(device.total for device in machine.devices)
    of_step = settings.groups_per_step * settings.rollout.group_size
    rollouts = {"eval": 1, "sft": settings.sft.batch_size}.get(command, of_step)
    each = "a rollout" if command == "eval" else "a step"
    seconds = cpu_seconds(settings, shape, rollouts, trains=trains, samples=samples)
    return (
        f"the CPU {does} a policy of {shape.parameters / 1e9:.1f} billion parameters: about "
        f"{duration(round(seconds))} {each} and {need:.0f} GiB of memory; use a machine with a GPU, "
        "list servers on other machines in engine.urls, or choose a model below a billion parameters"
    )
