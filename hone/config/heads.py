"""Whether the ranks and the engine's servers can divide the attention heads of a model."""

from __future__ import annotations

from hone.config.models import policy_shape
from hone.config.placement import ENGINES
from hone.config.run import SAMPLING, Command, RunSettings
from hone.config.shapes import Shape
from hone.policy.settings import ServerEngineSettings


def heads_problem(settings: RunSettings, command: Command, shape: Shape) -> str:
    """Return why the heads of the policy, the judge or the teacher cannot be divided; "" if they can."""
    problem = "" if command == "eval" else _ranks_problem(settings, shape)
    if not problem and command in SAMPLING:
        problem = _servers_problem("engine", settings, shape)
    for name, other in settings.beside_policy(command).items():
        if not problem and (other_shape := policy_shape(other, "eval")[0]):
            problem = _servers_problem(ENGINES[name], other, other_shape)
    return problem


def _ranks_problem(settings: RunSettings, shape: Shape) -> str:
    """Return why the ranks cannot divide the heads: first the matrices, then the sequence."""
    parallel = settings.train.parallel
    tensor, sequence = parallel.tensor, parallel.sequence
    if shape.heads % tensor or shape.kv_heads % tensor:
        return (
            f"train.parallel.tensor is {tensor}, but the model has {shape.heads} query heads and "
            f"{shape.kv_heads} key and value heads: set it to a divisor of both"
        )
    heads, kv_heads = shape.heads // tensor, shape.kv_heads // tensor
    if heads % sequence or not _shared(kv_heads, sequence):
        left = f"train.parallel.tensor = {tensor} leaves" if tensor > 1 else "the model has"
        return (
            f"train.parallel.sequence is {sequence}, but {left} {heads} query heads and {kv_heads} key and "
            "value heads: set it to a divisor of both, or to a multiple of the key and value heads that "
            "divides the query heads"
        )
    return ""


def _servers_problem(name: str, settings: RunSettings, shape: Shape) -> str:
    """Return why servers that the run starts cannot divide the heads; vLLM and SGLang have the same rule."""
    engine = settings.engine
    if not isinstance(engine, ServerEngineSettings) or not engine.managed:
        return ""
    size = engine.tensor_parallel
    if shape.heads % size == 0 and _shared(shape.kv_heads, size):
        return ""
    return (
        f"{name}.tensor_parallel is {size}, but the model has {shape.heads} query heads and {shape.kv_heads} "
        "key and value heads: set it to a divisor of both, or to a multiple of the key and value heads that "
        "divides the query heads"
    )


def _shared(kv_heads: int, size: int) -> bool:
    """Return whether `size` devices share the key and value heads, or copies of them, equally."""
    return kv_heads % size == 0 or size % kv_heads == 0
