"""The memory that a run needs on each device, and whether it fits."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from hone.config.fields import ConfigError
from hone.config.heads import heads_problem
from hone.config.memory import BYTES, StepMemory, StepSettings, step_memory
from hone.config.models import policy_shape
from hone.config.placement import Placement, resolve_placement
from hone.config.run import SAMPLING, Command, RunSettings
from hone.config.shapes import Shape
from hone.config.speed import StepWork, gpu_speed, step_seconds, training_seconds
from hone.policy.settings import LocalEngineSettings, ServerEngineSettings
from hone.utils.devices import GIB, Devices, Gpu

PARTS = ("weights", "reference", "masters", "moments", "gradients", "activations", "logits", "engine")
USABLE = 0.95  # of a device's memory; CUDA's context, NCCL's buffers and fragments take the rest
FILLED_GIB = 1.5  # memory in use from which on another process is said to fill a GPU
_ASLEEP_GIB = 1.5  # that a sleeping server keeps on its GPU
_WORKSPACE_GIB = 1.0  # of a server, beside weights, keys and values
_VLLM_CPU_CACHE_GIB = 1.0  # see VLLM_CPU_KVCACHE_SPACE in the command of a server


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlan:
    """What one device holds at the peak of a step, in GiB."""

    device: str  # "GPU 0", "CPU", "Apple GPU", or "memory of machine 0" for what is offloaded
    uses: tuple[str, ...]  # such as "rank 0" or "engine server 1"
    memory: float  # of the device
    parts: dict[str, float] = field(default_factory=dict[str, float])  # each of PARTS
    total: float = 0.0
    fits: bool = True
    problem: str = ""  # one sentence if it does not fit

    def as_json(self) -> dict[str, object]:
        """Return one flat record: each of PARTS, total and memory in GiB."""
        sizes = {**self.parts, "total": self.total, "memory": self.memory}
        record: dict[str, object] = {"device": self.device, "uses": list(self.uses)}
        return record | {name: round(size, 3) for name, size in sizes.items()} | {"fits": self.fits}


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePlan:
    machine: str
    devices: tuple[DevicePlan, ...] = ()
    step_seconds: float | None = None  # estimated; None without a GPU or a training step
    train_seconds: float | None = None  # of these, the trainer's
    placement_error: str = ""  # why nothing can be placed; then `devices` is empty

    @property
    def fits(self) -> bool:
        return not self.problem

    @property
    def summary(self) -> str:
        """The machine, the fullest device and the time of a step, to two digits, in a line."""
        fullest = max(self.devices, key=lambda device: device.total / device.memory, default=None)
        peak = f": at most {fullest.total:.1f} GiB of {fullest.device}" if fullest else ""
        step = f", about {float(f'{self.step_seconds:.1e}'):,.0f} s a step" if self.step_seconds else ""
        return self.machine + peak + step

    @property
    def problem(self) -> str:
        """The first problem in a sentence; "" if everything fits."""
        if self.placement_error:
            return self.placement_error
        worst = next((device.problem for device in self.devices if not device.fits), "")
        return worst and f"the run does not fit {self.machine}: {worst}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    """One server of the engine, the judge or the teacher, in bytes on each of its GPUs."""

    name: str
    gpus: tuple[int, ...]
    share: float  # of a GPU's memory that it takes
    need: float  # bytes for weights, one conversation and workspace
    weights: float  # of all its GPUs
    sleeps: bool = False  # while the trainer trains


def plan_devices(settings: RunSettings, command: Command, devices: Devices) -> MachinePlan:
    """Return the plan of a command on `devices`. Raises ConfigError without a model."""
    try:
        placement = resolve_placement(settings, devices, command)
    except ConfigError as error:
        return MachinePlan(machine=devices.describe(), placement_error=str(error))
    shape, _ = policy_shape(settings, command)
    if shape is not None and (problem := heads_problem(settings, command, shape)):
        return MachinePlan(machine=devices.describe(), placement_error=problem)
    step = None
    if shape is not None and placement.trainer != "none":
        step = _step(settings, command, shape, gpu=bool(placement.trainer_gpus))
    servers = _servers(settings, command, placement, shape)
    rows = [
        row
        for at, gpu in enumerate(devices.gpus)
        if (row := _gpu_row(at, gpu, placement, step, servers, _local_engine(settings, command, shape)))
    ]
    rows += _host_rows(settings, command, placement, devices, shape, step, servers)
    seconds = train = None
    if shape is not None and command in ("train", "quickstart") and placement.trainer_gpus:
        gpu = devices.gpus[placement.trainer_gpus[0]]
        work = _work(settings, placement)
        speed = gpu_speed(gpu.name, gpu.memory_gib)
        seconds, train = step_seconds(shape, work, speed), training_seconds(shape, work, speed)
    return MachinePlan(
        machine=devices.describe(), devices=tuple(rows), step_seconds=seconds, train_seconds=train
    )


def _step(settings: RunSettings, command: Command, shape: Shape, *, gpu: bool) -> StepMemory:
    """Return the memory of a training step; of the larger one, if the command makes two kinds."""
    train, dtype = settings.train, "float32" if settings.model is None else settings.model.dtype
    shared = {
        "learner": train,
        "dtype": dtype,
        "longest": settings.engine.context_tokens,
        "gpu": gpu,
    }
    steps: list[StepMemory] = []
    if command in ("train", "replay", "quickstart"):
        reference = train.loss.kl_coef > 0
        steps.append(
            step_memory(
                shape,
                StepSettings(**shared, passes=train.batch, optimizer=train.optimizer, reference=reference),
            )
        )
    if command in ("sft", "quickstart"):
        sft = settings.sft
        steps.append(step_memory(shape, StepSettings(**shared, passes=sft, optimizer=sft.optimizer)))
    return max(steps, key=lambda step: step.total)


def _servers(
    settings: RunSettings, command: Command, placement: Placement, shape: Shape | None
) -> list[_Server]:
    """Return the servers that have GPUs of the plan."""
    servers = _servers_of(settings, placement.engine, shape, "engine server", sleeps=placement.sleeps)
    for name, other in settings.beside_policy(command).items():
        gpus = getattr(placement, name)
        servers += _servers_of(other, gpus, policy_shape(other, "eval")[0], f"{name} server")
    return servers


def _servers_of(
    settings: RunSettings,
    lists: tuple[tuple[int, ...], ...],
    shape: Shape | None,
    name: str,
    *,
    sleeps: bool = False,
) -> list[_Server]:
    engine = settings.engine
    if shape is None or not isinstance(engine, ServerEngineSettings):
        return []
    element = _element(settings)
    return [
        _Server(
            name=f"{name} {number}",
            gpus=gpus,
            share=engine.gpu_memory_fraction,
            need=shape.parameters * element / len(gpus)
            + engine.context_tokens * shape.kv_bytes(element) / min(len(gpus), shape.kv_heads)
            + _WORKSPACE_GIB * GIB,
            weights=shape.parameters * element,
            sleeps=sleeps,
        )
        for number, gpus in enumerate(lists)
    ]


def _element(settings: RunSettings) -> int:
    """Return the bytes of a number of the weights that train."""
    return BYTES["float32" if settings.model is None else settings.model.dtype]


def _engine_element(settings: RunSettings) -> int:
    """Return the bytes of a number in the engine."""
    dtype = settings.engine.dtype if isinstance(settings.engine, LocalEngineSettings) else None
    return _element(settings) if dtype is None else BYTES[dtype]


def _gpu_row(
    at: int,
    gpu: Gpu,
    placement: Placement,
    step: StepMemory | None,
    servers: list[_Server],
    local_engine: float,
) -> DevicePlan | None:
    """Return the plan of one GPU; None if nothing is placed on it."""
    here = [server for server in servers if at in server.gpus]
    trains = step is not None and at in placement.trainer_gpus
    if not here and not trains:
        return None
    uses = [f"rank {placement.trainer_gpus.index(at)}"] if trains else []
    parts = _parts(step if trains else None)
    share = sum(server.share for server in here) * gpu.memory_gib
    parts["engine"] = share + (local_engine / GIB if trains else 0.0)
    total = sum(parts.values())
    asleep = sum(server.share for server in here if server.sleeps) * gpu.memory_gib
    if asleep and trains and step is not None:
        training = total - asleep + _ASLEEP_GIB
        total = max(training, step.resident / GIB + share)
    row = DevicePlan(
        device=f"GPU {at}",
        uses=(*uses, *(server.name for server in here)),
        memory=gpu.memory_gib,
        parts=parts,
        total=total,
    )
    return _checked(row, gpu, here)


def _parts(step: StepMemory | None) -> dict[str, float]:
    """Return the parts of a training step in GiB, and no engine."""
    sizes = {} if step is None else {name: getattr(step, name) / GIB for name in PARTS if name != "engine"}
    return {name: sizes.get(name, 0.0) for name in PARTS}


def _checked(row: DevicePlan, gpu: Gpu, servers: list[_Server]) -> DevicePlan:
    """Return the row with the reason for which it does not fit, if there is one."""
    problem = ""
    filled = gpu.memory_gib - gpu.free_gib > FILLED_GIB
    limit = USABLE * gpu.memory_gib if not filled else gpu.free_gib - (1 - USABLE) * gpu.memory_gib
    for server in servers:
        given = server.share * gpu.memory_gib
        if server.need / GIB > given:
            problem = (
                f"{server.name} needs {server.need / GIB:.1f} GiB of {row.device} for its weights and one "
                f"conversation, but gpu_memory_fraction gives it {given:.1f}"
            )
    if row.total > USABLE * gpu.memory_gib:
        problem = _too_small(row)
    elif row.total > limit:
        users = ", ".join(f"process {pid}" for pid in gpu.processes) or "another process"
        problem = (
            f"{row.device} has {gpu.free_gib:.1f} of {gpu.memory_gib:.1f} GiB free, because {users} uses the "
            f"rest, and the run needs {row.total:.1f}: stop it, or name other GPUs in [placement]"
        )
    return dataclasses.replace(row, fits=not problem, problem=problem)


def _too_small(row: DevicePlan) -> str:
    largest = sorted(filter(row.parts.get, row.parts), key=lambda name: -row.parts[name])[:2]
    most = " and ".join(f"{name} {row.parts[name]:.1f}" for name in largest)
    return f"{row.device} needs {row.total:.1f} GiB ({most}) and has {row.memory:.1f}"


def _host_rows(
    settings: RunSettings,
    command: Command,
    placement: Placement,
    devices: Devices,
    shape: Shape | None,
    step: StepMemory | None,
    servers: list[_Server],
) -> list[DevicePlan]:
    """Return the plan of the host's memory: of all that runs on the CPU, or is moved there."""
    if shape is None:
        return []
    if placement.trainer in ("cpu", "mps") or (command == "eval" and not placement.engine):
        return _cpu_rows(settings, command, placement, devices, shape, step)
    asleep = sum(server.weights for server in servers if server.sleeps)
    ranks = min(len(placement.trainer_gpus), devices.gpus_per_node)
    offloaded = 0.0 if step is None else ranks * step.host_optimizer
    activations = 0.0 if step is None else ranks * step.host_activations
    sampled = 0.0  # by a local engine, which uses the CPU where ranks train
    if step is not None and command != "sft" and _samples_beside_ranks(settings):
        sampled = _cpu_engine(settings, shape, _copies_beside_trainer(settings))
    moved = asleep + offloaded + activations
    if moved + sampled == 0:
        return []
    parts = _parts(None) | {
        "moments": offloaded / GIB,
        "activations": activations / GIB,
        "engine": (asleep + sampled) / GIB,
    }
    uses = (*(["offloaded"] if moved else []), *(["engine"] if sampled else []))
    return [_host_row("memory of each machine", uses, parts, devices)]


def _cpu_rows(
    settings: RunSettings,
    command: Command,
    placement: Placement,
    devices: Devices,
    shape: Shape,
    step: StepMemory | None,
) -> list[DevicePlan]:
    ranks = settings.train.ranks if step is not None else 0
    parts = {name: size * max(1, ranks) for name, size in _parts(step).items()}
    uses = [f"rank {rank}" for rank in range(ranks)]
    engines = [(settings, shape, "engine")] if command in SAMPLING else []
    for name, other in settings.beside_policy(command).items():
        other_shape, _ = policy_shape(other, "eval")
        engines += [(other, other_shape, name)] if other_shape is not None else []
    for each, sampled, name in engines:
        copies = 1 if name != "engine" or step is None else _copies_beside_trainer(settings)
        if size := _cpu_engine(each, sampled, copies):
            parts["engine"] += size / GIB
            uses.append(name)
    device = "Apple GPU" if placement.trainer == "mps" else "CPU"
    return [_host_row(device, tuple(uses), parts, devices)] if uses else []


def _host_row(device: str, uses: tuple[str, ...], parts: dict[str, float], devices: Devices) -> DevicePlan:
    row = DevicePlan(
        device=device, uses=uses, memory=devices.host_gib, parts=parts, total=sum(parts.values())
    )
    fits = row.total <= USABLE * row.memory
    return dataclasses.replace(row, fits=fits, problem="" if fits else _too_small(row))


def _cpu_engine(settings: RunSettings, shape: Shape, copies: int) -> float:
    """Return the bytes of an engine on the CPU; `copies` of the weights are in a local one."""
    engine, element = settings.engine, _engine_element(settings)
    weights = shape.parameters * element
    if isinstance(engine, LocalEngineSettings):
        return _conversations(settings, shape) + copies * weights
    if not isinstance(engine, ServerEngineSettings) or not engine.managed:
        return 0.0
    cache = _VLLM_CPU_CACHE_GIB * GIB
    if engine.kind == "sglang":
        cache = engine.max_batch * engine.context_tokens * shape.kv_bytes(element)
    return engine.servers * (weights + cache)


def _samples_beside_ranks(settings: RunSettings) -> bool:
    return isinstance(settings.engine, LocalEngineSettings) and settings.train.learner == "ranks"


def _copies_beside_trainer(settings: RunSettings) -> int:
    """Return the copies of the weights that a local engine holds beside the trainer, at their peak.

    It shares those of a trainer in its process, unless it needs its own: then it has them, and a second copy
    while it reads new ones; adapters are read in place beside ranks.
    """
    if settings.train.learner == "ranks":
        return 1 if settings.train.lora is not None else 2
    return 2 if settings.engine_copies_weights else 0


def _local_engine(settings: RunSettings, command: Command, shape: Shape | None) -> float:
    """Return the bytes of a local engine on the trainer's GPU; 0 for servers, and where ranks train."""
    if shape is None or command not in SAMPLING or not isinstance(settings.engine, LocalEngineSettings):
        return 0.0
    if _samples_beside_ranks(settings):
        return 0.0
    copies = _copies_beside_trainer(settings) * shape.parameters * _engine_element(settings)
    return _conversations(settings, shape) + copies


def _conversations(settings: RunSettings, shape: Shape) -> float:
    """Return the bytes of the keys and values of all conversations of a local engine at once."""
    engine = settings.engine
    assert isinstance(engine, LocalEngineSettings), "only called for one"
    count = min(engine.max_batch + engine.cached_sessions, settings.rollout.concurrent_episodes)
    return count * engine.context_tokens * shape.kv_bytes(_engine_element(settings))


def _work(settings: RunSettings, placement: Placement) -> StepWork:
    engine, train = settings.engine, settings.train
    servers = len(placement.engine) or len(engine.addresses) or 1
    return StepWork(
        rollouts=settings.groups_per_step * settings.rollout.group_size,
        concurrent=settings.rollout.concurrent_episodes,
        context=engine.context_tokens,
        passes=train.batch.epochs,
        checkpointing=train.memory.activation_checkpointing,
        trained_share=1.0 if train.lora is None else 2 / 3,
        trainer_gpus=len(placement.trainer_gpus),
        servers=servers,
        server_gpus=len(placement.engine[0]) if placement.engine else 1,
    )
