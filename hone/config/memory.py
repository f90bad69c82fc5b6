"""The memory of a training step on one device, counted from the settings; nothing is loaded.

Every figure is in bytes. The peak of a step is taken to be the sum of its parts: gradients of earlier
micro-batches exist while the activations and logits of the last one do. A layer that is computed again for
the backward pass takes the place of the logits, so only the rest of it counts as activations. The plan does
not know how many tokens of a pass were sampled, so it takes all of them, or `logit_tokens` if that is less.
`benchmarks/memory.py` compares the sums with measured peaks.

Activations of one token in one layer, with b bytes per number (2 in bfloat16), hidden size h, query width q,
key width k, feed-forward width i, as transformers' Qwen3 saves them for the backward pass:

    two norms            2 h (b + f)     the normalised state; its input in float32, f = 4
    their outputs        2 h b           inputs of the projections
    norms of q and k     (q + k)(b + f)
    attention            (2 q + 2 k) b   queries, keys, values and output
    feed-forward         4 i b           gate, its activation, up, their product

That is 215 kB for Qwen3-8B in bfloat16. With experts, i is the width of all experts of a token, whose inputs
and outputs (2 h b for each expert) come on top.
"""

from __future__ import annotations

from dataclasses import dataclass

from hone.config.shapes import Shape
from hone.train.settings import (
    ALL_LINEAR,
    EXPERTS,
    LearnerSettings,
    LoraSettings,
    OptimizerSettings,
    PassSettings,
)

FLOAT32 = 4
BYTES = {"float32": 4, "bfloat16": 2}
_BLOCK_LOGITS = 2**20  # converted to float32 at once, see hone.train.vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """Bytes of a training step on one device, and beside it in the host's memory."""

    weights: float  # of the policy, with the layers that FSDP gathers
    reference: float  # weights of the model that the KL divergence is measured from
    masters: float  # float32 copies of trained weights in another precision
    moments: float  # state of the optimiser
    gradients: float
    activations: float
    logits: float
    host_optimizer: float  # offloaded masters, moments and gradients
    host_activations: float
    resident: float  # what stays on the device between two steps

    @property
    def total(self) -> float:
        return (
            self.weights
            + self.reference
            + self.masters
            + self.moments
            + self.gradients
            + self.activations
            + self.logits
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """The settings that decide the memory of a training step."""

    learner: LearnerSettings
    passes: PassSettings
    optimizer: OptimizerSettings
    dtype: str  # of the weights and of computation
    longest: int  # tokens of the longest sample
    reference: bool = False  # whether the loss needs a reference model
    gpu: bool = True

    @property
    def element(self) -> int:
        return BYTES[self.dtype]

    @property
    def is_sharded(self) -> bool:
        return self.learner.learner == "ranks"

    @property
    def shards(self) -> int:
        """Ranks that share the weights of one copy by FSDP, those of one sequence included."""
        parallel = self.learner.parallel
        others = parallel.replicate * parallel.tensor
        return (
            parallel.fsdp or max(1, self.learner.ranks // others // parallel.sequence)
        ) * parallel.sequence


def step_memory(shape: Shape, step: StepSettings) -> StepMemory:
    """Return the memory of one rank, or of the learner in process, at the peak of a training step."""
    lora, offload = step.learner.lora, step.learner.memory.offload_optimizer and step.gpu
    parameters = _share(shape, step)
    trained = parameters if lora is None else adapter_parameters(shape, lora)  # whole on every rank
    gathered, in_flight = _gathered(shape, step)
    moments = trained * _moment_bytes(shape, step.optimizer)
    gradients = trained * FLOAT32 * step.passes.workers
    kept, masters = _weights(parameters, trained, step)
    reference = kept if step.reference and lora is None else 0.0
    if step.reference and lora is None and step.is_sharded:
        reference = parameters * FLOAT32
    host = 0.0
    if offload:
        copies = 0.0 if lora is None else trained * FLOAT32  # of adapters, which stay on the device as well
        host = copies + masters + moments + gradients
        masters = moments = gradients = 0.0
        if step.is_sharded and lora is None:  # FSDP keeps all shards there
            host, kept, reference = host + kept + reference, 0.0, 0.0
    activations, host_activations = _activations(shape, step)
    return StepMemory(
        weights=kept + gathered,
        reference=reference,
        masters=masters,
        moments=moments,
        gradients=gradients + in_flight,
        activations=activations * step.passes.workers,
        logits=_logits(shape, step) * step.passes.workers,
        host_optimizer=host,
        host_activations=host_activations,
        resident=kept + reference + masters + moments,
    )


def _share(shape: Shape, step: StepSettings) -> float:
    """Return the parameters that one rank keeps: tensor parallelism splits the layers only."""
    layers = (shape.parameters - shape.embedding_parameters) / step.learner.parallel.tensor
    return (shape.embedding_parameters + layers) / step.shards


def _weights(parameters: float, trained: float, step: StepSettings) -> tuple[float, float]:
    """Return the bytes of weights and of masters that one rank keeps.

    Ranks keep float32 shards, which are their own masters; in process, trained weights in bfloat16 have
    float32 copies. Weights under adapters are in the precision of computation, and the adapters float32.
    """
    if step.learner.lora is not None:
        return parameters * step.element + trained * FLOAT32, 0.0
    if step.element == FLOAT32:
        return parameters * FLOAT32, 0.0
    return (0.0 if step.is_sharded else parameters * step.element), parameters * FLOAT32


def adapter_parameters(shape: Shape, lora: LoraSettings) -> float:
    """Return the parameters of all adapters: rank x (inputs + outputs) of each target matrix."""
    sizes = _linear_sizes(shape)
    experts = 0
    if EXPERTS in lora.targets:  # gate and up are one matrix
        experts = shape.experts * ((shape.hidden + 2 * shape.inner) + (shape.inner + shape.hidden))
    return shape.layers * lora.rank * (sum(sizes[name] for name in _targets(shape, lora)) + experts)


def _targets(shape: Shape, lora: LoraSettings) -> list[str]:
    """Return the names of the adapted linear layers of a block."""
    sizes = _linear_sizes(shape)
    return list(sizes) if ALL_LINEAR in lora.targets else [n for n in lora.targets if n in sizes]


def _linear_sizes(shape: Shape) -> dict[str, int]:
    """Return inputs + outputs of each linear layer of a block; experts are no linear layers."""
    h, q, k, i = shape.hidden, shape.attention_width, shape.kv_width, shape.inner
    sizes = {"q_proj": h + q, "k_proj": h + k, "v_proj": h + k, "o_proj": q + h}
    if not shape.experts:
        sizes |= {"gate_proj": h + i, "up_proj": h + i, "down_proj": i + h}
    return sizes


def _moment_bytes(shape: Shape, optimizer: OptimizerSettings) -> float:
    """Return bytes of optimiser state per trained parameter: AdamW keeps two moments, Muon one."""
    if optimizer.name == "adamw":
        return 2 * FLOAT32
    by_adamw = shape.embedding_parameters / shape.parameters
    return FLOAT32 * (1 + by_adamw)


def _gathered(shape: Shape, step: StepSettings) -> tuple[float, float]:
    """Return bytes of whole weights and whole gradients that exist for a moment.

    FSDP2 gathers the layer in use, prefetches the next one, and keeps the root's own weights (embedding and
    head) until the backward pass ends; it reduces gradients in float32. In process, the gradient of the
    largest matrix exists beside the float32 sum that it is added to.
    """
    layer = shape.layer_parameters / step.learner.parallel.tensor
    full = step.learner.lora is None
    if step.is_sharded:
        root = shape.embedding_parameters
        reduced = max(layer, root) if full else 0.0
        return (2 * layer + root) * step.element, reduced * (step.element + FLOAT32)
    largest = shape.vocab_size * shape.hidden if full else 0.0
    return 0.0, largest * (FLOAT32 if step.element == FLOAT32 else step.element + FLOAT32)


def layer_activation_bytes(shape: Shape, step: StepSettings) -> float:
    """Return the bytes that one layer saves for the backward pass, per token of one rank."""
    b, tensor = step.element, step.learner.parallel.tensor
    norm = b + FLOAT32 if b < FLOAT32 else 2 * b
    h, q, k = shape.hidden, shape.attention_width / tensor, shape.kv_width / tensor
    chosen = max(1, shape.experts_per_token)
    inner = shape.inner * chosen / tensor
    experts = 2 * h * b * chosen if shape.experts else 0.0
    attention = (2 * q + 2 * k) * b
    return (2 * h + q + k) * norm + attention + 3 * inner * b + experts + _linear_inputs(shape, step)


def _linear_inputs(shape: Shape, step: StepSettings) -> float:
    """Return the bytes per token of inputs of linear layers that nothing else saves.

    A frozen layer saves none. An adapter saves its own float32 copy of its layer's input.
    """
    b, tensor, lora = step.element, step.learner.parallel.tensor, step.learner.lora
    h, q = shape.hidden, shape.attention_width / tensor
    inner = shape.inner * max(1, shape.experts_per_token) / tensor
    if lora is None or b == FLOAT32:
        return (2 * h + inner) * b
    inputs = {"o_proj": q, "down_proj": inner}
    experts = inner * b if EXPERTS in lora.targets else 0.0
    return experts + FLOAT32 * sum(inputs.get(name, h) for name in _targets(shape, lora))


def _activations(shape: Shape, step: StepSettings) -> tuple[float, float]:
    """Return bytes of activations on the device and in the host's memory."""
    memory, sequence = step.learner.memory, step.learner.parallel.sequence
    tokens = max(step.passes.micro_batch_tokens, step.longest) / sequence
    layer = layer_activation_bytes(shape, step) * tokens
    boundary = shape.hidden * step.element * tokens  # the input of a layer
    ends = 4 * boundary  # embedding, final norm, and the states before the head
    experts = _summed_experts(shape, step)
    layer += experts
    working = experts + (
        2 * shape.inner * max(1, shape.experts_per_token) * step.element * tokens
    )  # gradients of a layer
    if memory.activation_checkpointing:
        kept, busy = shape.layers * boundary, layer + working
    else:
        kept, busy = shape.layers * layer, working
    busy = max(0.0, busy - _logits(shape, step))  # the logits are free before the first layer's backward pass
    if memory.offload_activations and step.gpu:
        return ends + busy + 2 * kept / shape.layers, kept
    return ends + busy + kept, 0.0


def _summed_experts(shape: Shape, step: StepSettings) -> float:
    """Return the bytes of one layer's experts plus adapters, which the backward pass needs; 0 without."""
    lora = step.learner.lora
    if lora is None or EXPERTS not in lora.targets:
        return 0.0
    return 3 * shape.hidden * shape.inner * shape.experts * step.element


def _logits(shape: Shape, step: StepSettings) -> float:
    """Return the bytes of one chunk of logits, whose gradient takes their place, and of its blocks."""
    tokens = max(step.passes.micro_batch_tokens, step.longest) / step.learner.parallel.sequence
    logits = min(step.passes.logit_tokens, tokens) * shape.vocab_size
    return logits * step.element + 2 * FLOAT32 * min(logits, _BLOCK_LOGITS)
