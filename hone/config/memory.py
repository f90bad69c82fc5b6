"""The memory of a training step on one device, counted from the settings; nothing is loaded.

Every figure is in bytes. The peak of a step is taken to be the sum of its parts: gradients of earlier
micro-batches exist while the activations and logits of the last one do. `benchmarks/memory.py` compares the
sums with measured peaks.

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
from hone.train.settings import LearnerSettings, LoraSettings, OptimizerSettings, PassSettings

FLOAT32 = 4
BYTES = {"float32": 4, "bfloat16": 2}
_LOGIT_COPIES = 4  # float32 [tokens, vocabulary] arrays at the peak of the projection and its backward pass


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
    def shards(self) -> int:
        """Ranks that share the weights of one copy by FSDP."""
        parallel = self.learner.parallel
        others = parallel.replicate * parallel.sequence * parallel.tensor
        return parallel.fsdp or max(1, self.learner.ranks // others)


def step_memory(shape: Shape, step: StepSettings) -> StepMemory:
    """Return the memory of one rank, or of the learner in process, at the peak of a training step."""
    tensor, lora, memory = step.learner.parallel.tensor, step.learner.lora, step.learner.memory
    embedding = shape.embedding_parameters / step.shards
    layers = (shape.parameters - shape.embedding_parameters) / step.shards / tensor
    weights = (embedding + layers) * step.element
    trained = weights / step.element if lora is None else adapter_parameters(shape, lora) / step.shards
    frozen_reference = weights if step.reference and lora is None else 0.0
    gathered, in_flight = _gathered(shape, step)
    masters = trained * FLOAT32 if step.element < FLOAT32 and lora is None else 0.0
    moments = trained * _moment_bytes(shape, step.optimizer)
    gradients = trained * FLOAT32 * step.passes.workers
    activations, host_activations = _activations(shape, step)
    host_optimizer = 0.0
    if memory.offload_optimizer and step.gpu:
        host_optimizer = masters + moments + gradients
        masters = moments = gradients = 0.0
    adapters = 0.0 if lora is None else trained * FLOAT32
    return StepMemory(
        weights=weights + adapters + gathered,
        reference=frozen_reference,
        masters=masters,
        moments=moments,
        gradients=gradients + in_flight,
        activations=activations * step.passes.workers,
        logits=_logits(shape, step) * step.passes.workers,
        host_optimizer=host_optimizer,
        host_activations=host_activations,
        resident=weights + adapters + frozen_reference + masters + moments,
    )


def adapter_parameters(shape: Shape, lora: LoraSettings) -> float:
    """Return the parameters of all adapters: rank x (inputs + outputs) of each target matrix."""
    sizes = _linear_sizes(shape)
    names = list(sizes) if "all-linear" in lora.targets else [n for n in lora.targets if n in sizes]
    return shape.layers * lora.rank * sum(sizes[name] for name in names)


def _linear_sizes(shape: Shape) -> dict[str, int]:
    """Return inputs + outputs of each linear layer of a block, summed over experts."""
    h, q, k, i = shape.hidden, shape.attention_width, shape.kv_width, shape.inner
    copies = max(1, shape.experts)
    return {
        "q_proj": h + q,
        "k_proj": h + k,
        "v_proj": h + k,
        "o_proj": q + h,
        "gate_proj": copies * (h + i),
        "up_proj": copies * (h + i),
        "down_proj": copies * (i + h),
    }


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
    if step.shards > 1:
        root = shape.embedding_parameters
        whole = (2 * layer + root) * step.element
        reduced = max(layer, root) if step.learner.lora is None else 0.0
        return whole, reduced * (step.element + FLOAT32)
    largest = shape.vocab_size * shape.hidden if step.learner.lora is None else 0.0
    return 0.0, largest * FLOAT32 * (2 if shape.tied else 1)


def layer_activation_bytes(shape: Shape, step: StepSettings) -> float:
    """Return the bytes that one layer saves for the backward pass, per token of one rank."""
    b, tensor = step.element, step.learner.parallel.tensor
    f = FLOAT32 if b < FLOAT32 else 0  # norms compute in float32, and save a copy of their input
    h, q, k = shape.hidden, shape.attention_width / tensor, shape.kv_width / tensor
    chosen = max(1, shape.experts_per_token)
    inner = shape.inner * chosen / tensor
    norms = 2 * h * ((b + f) if f else 2 * b) + 2 * h * b
    heads = (q + k) * ((b + f) if f else 2 * b)
    experts = 2 * h * b * chosen if shape.experts else 0.0
    return norms + heads + (2 * q + 2 * k) * b + 4 * inner * b + experts


def _activations(shape: Shape, step: StepSettings) -> tuple[float, float]:
    """Return bytes of activations on the device and in the host's memory."""
    memory, sequence = step.learner.memory, step.learner.parallel.sequence
    tokens = max(step.passes.micro_batch_tokens, step.longest) / sequence
    layer = layer_activation_bytes(shape, step) * tokens
    boundary = shape.hidden * step.element * tokens  # the input of a layer
    ends = 4 * boundary  # embedding, final norm, and the states before the head
    working = (
        2 * shape.inner * max(1, shape.experts_per_token) * step.element * tokens
    )  # gradients of a layer
    if memory.activation_checkpointing:
        kept, busy = shape.layers * boundary, layer + working
    else:
        kept, busy = shape.layers * layer, working
    if memory.offload_activations and step.gpu:
        return ends + busy + 2 * kept / shape.layers, kept
    return ends + busy + kept, 0.0


def _logits(shape: Shape, step: StepSettings) -> float:
    tokens = max(step.passes.micro_batch_tokens, step.longest) / step.learner.parallel.sequence
    return _LOGIT_COPIES * min(step.passes.logit_tokens, tokens) * shape.vocab_size * FLOAT32
