"""Settings of the train room."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from hone.settings import Mark, Settings
from hone.train.algorithms.contract import Normalisation
from hone.train.algorithms.custom import CustomSettings
from hone.train.algorithms.grpo import GrpoSettings
from hone.train.algorithms.registry import AnyAlgorithmSettings
from hone.train.algorithms.rule import loss_rule
from hone.train.corrections import AnyCorrectionSettings, NoCorrectionSettings
from hone.train.distill_settings import DistillSettings
from hone.train.prime_rl_settings import PrimeRLSettings

Tree = Literal["auto", "off", "mask", "depth_first"]


class LossSettings(Settings):
    """The loss, given advantages."""

    clip_low: float | None = Field(default=None, ge=0, lt=1)
    """The probability ratio is clipped below 1 - clip_low. Default: the algorithm's own, such as 0.2."""

    clip_high: float | None = Field(default=None, ge=0)
    """The probability ratio is clipped above 1 + clip_high. Default: the algorithm's own, such as 0.2."""

    dual_clip: float = Field(default=10.0, gt=1)
    """Largest ratio of a token with a negative advantage, which PPO's clip leaves unbounded
    (arXiv:1912.09729, which uses 3); above it the token has no gradient."""

    old_logprobs: Literal["engine", "recomputed"] = "engine"
    """Denominator of the ratio: the log-probabilities that the engine reported, or those of the trainer's
    weights before the first optimiser step of the batch, see `corrections`."""

    kl_coef: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence to the reference model (the initial weights); 0: no reference model."""

    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the KL divergence as a loss, see `hone.train.loss.kl_estimate`: `k3` has the gradient of
    KL(reference, policy), as GRPO was published, and `k2` that of KL(policy, reference). `k1` is refused: its
    gradient is 0 on average."""

    normalisation: Normalisation | None = None
    """Divisor of the sum of token losses, `token`, `trajectory`, `group` or `constant`, see
    `hone.train.loss.token_scales`; default: the algorithm's own."""

    constant_tokens: int | None = Field(default=None, gt=0)
    """Tokens by which each trajectory is divided; required with normalisation = "constant" only."""

    @model_validator(mode="after")
    def _constant_needs_its_number(self) -> LossSettings:
        if (self.normalisation == "constant") != (self.constant_tokens is not None):
            raise ValueError(
                'constant_tokens and normalisation = "constant" belong together: set both or none'
            )
        if self.kl_estimator == "k1":
            raise ValueError(
                'kl_estimator = "k1" has a gradient of 0 on average, so as a loss it only adds noise: set '
                '"k3", or "k2" for the gradient of KL(policy, reference)'
            )
        if self.kl_coef == 0 and "kl_estimator" in self.model_fields_set:
            raise ValueError("kl_estimator has no effect while kl_coef is 0: remove it, or raise kl_coef")
        return self


class OptimizerSettings(Settings):
    """The optimiser and its learning rate."""

    name: Literal["adamw", "muon"] = "adamw"
    """`adamw` for all parameters, or `muon` for the matrices of the layers and `adamw` for the rest
    (embeddings, head, norms, biases)."""

    lr: float = Field(default=1e-6, gt=0)
    """Learning rate after the warm-up."""

    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule after the warm-up: `linear` and `cosine` fall to `final_lr_fraction` at the last step."""

    warmup_steps: int = Field(default=0, ge=0)
    """Optimiser steps over which the learning rate rises from 0."""

    final_lr_fraction: float = Field(default=0.0, ge=0, le=1)
    """Learning rate at the end of `linear` and `cosine`, as a fraction of `lr`."""

    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the mean of the gradients."""

    beta2: float = Field(default=0.999, ge=0, lt=1)
    """Decay of the mean of the squared gradients."""

    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the squared gradients."""

    momentum: float = Field(default=0.95, ge=0, lt=1)
    """Decay of Muon's momentum; only with name = "muon"."""

    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay, on matrices only (not on norms and biases)."""

    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this norm over all parameters."""

    @model_validator(mode="after")
    def _momentum_is_muons(self) -> OptimizerSettings:
        if self.name != "muon" and "momentum" in self.model_fields_set:
            raise ValueError('momentum has no effect with adamw: remove it, or set name = "muon"')
        return self


class PassSettings(Settings):
    """How samples are packed into forward passes; changes memory and speed, and results by rounding only."""

    micro_batch_tokens: Annotated[int, Mark.SAME_RESULTS] = Field(default=2048, gt=0)
    """Tokens that one forward pass computes; samples are packed without padding, and a longer one has a pass
    by itself. Bounds the memory."""

    logit_tokens: Annotated[int, Mark.SAME_RESULTS] = Field(default=4096, gt=0)
    """Positions projected onto the vocabulary at once; more are computed in chunks, and again for the
    backward pass."""

    workers: Annotated[int, Mark.SAME_RESULTS] = Field(default=1, ge=1)
    """Micro-batches computed at once, each by one thread with its own gradients. For small models on a CPU,
    whose operations are too short to be split among cores. Passes without a gradient use torch's threads."""


class BatchSettings(PassSettings):
    """How a batch of samples is split into optimiser steps and forward passes."""

    mini_batches: int = Field(default=1, ge=1)
    """Optimiser steps per pass over a batch; a rollout is never split between them."""

    epochs: int = Field(default=1, ge=1)
    """Passes over a batch."""

    seed: Annotated[int, Mark.RUN_SEED] = 0
    """Seed of the order of rollouts over the mini-batches."""


class ParallelSettings(Settings):
    """How ranks share the model and its work; the product of the four sizes is the number of ranks."""

    replicate: Annotated[int, Mark.SAME_RESULTS] = Field(default=1, ge=1)
    """Copies of the sharded model, such as one per node (hybrid sharding)."""

    fsdp: Annotated[int | None, Mark.SAME_RESULTS] = Field(default=None, ge=1)
    """Ranks that shard the weights, gradients and optimiser state of one copy (FSDP2); default: all ranks
    that the other sizes leave."""

    sequence: Annotated[int, Mark.SAME_RESULTS] = Field(default=1, ge=1)
    """Ranks that split each sequence (Ulysses): an all-to-all gives every rank all tokens of some heads."""

    tensor: Annotated[int, Mark.SAME_RESULTS] = Field(default=1, ge=1)
    """Ranks that split each matrix (tensor parallelism)."""


NO_CRITIC = (
    'only the learner "in_process" has a critic: set train.learner to it, or an algorithm other than ppo'
)
ALL_LINEAR, EXPERTS = "all-linear", "experts"  # targets of adapters that name several layers


class LoraSettings(Settings):
    """Low-rank adapters: the model's own weights stay fixed, and each target matrix W becomes
    W + alpha / rank * B A (arXiv:2106.09685)."""

    rank: int = Field(default=16, ge=1)
    """Rows of A and columns of B."""

    alpha: float = Field(default=32.0, gt=0)
    """Scale of the adapters before the division by `rank`."""

    targets: tuple[str, ...] = Field(default=(ALL_LINEAR,), min_length=1)
    """Names of the adapted linear layers, such as `q_proj`; `all-linear`: every one but the head; `experts`:
    the matrices of all experts of a mixture, which `all-linear` leaves out. Embeddings, routers and the head
    keep their weights."""


class MemorySettings(Settings):
    """What a learner gives up, in time, for memory; changes no result."""

    activation_checkpointing: Annotated[bool, Mark.SAME_RESULTS] = False
    """Keep only the input of each layer and compute the layer again for the backward pass."""

    offload_activations: Annotated[bool, Mark.SAME_RESULTS] = False
    """Keep what the backward pass needs in host memory; for a model on a GPU."""

    offload_optimizer: Annotated[bool, Mark.SAME_RESULTS] = False
    """Keep master weights and optimiser state in host memory and update them there; for a model on a GPU."""


class ValidateSettings(Settings):
    """Evaluation on the validation tasks during training."""

    every: Annotated[int, Mark.SAME_RESULTS] = Field(default=0, ge=0)
    """Steps between two validations; 0: none. The last step always validates, and so does the start."""

    samples: Annotated[int, Mark.SAME_RESULTS] = Field(default=1, ge=1)
    """Rollouts per validation task."""

    keep_best: Annotated[bool, Mark.SAME_RESULTS] = True
    """Keep the checkpoint with the highest resolve rate on the validation tasks, as `checkpoints/best`; a
    step before a validation then always ends with a checkpoint."""

    def is_due(self, version: int, steps: int) -> bool:
        """Return whether the weights after `version` of `steps` training steps are validated."""
        return bool(self.every) and (version % self.every == 0 or version == steps)

    def count(self, steps: int) -> int:
        """Return the number of validations of a run of `steps` training steps."""
        return sum(self.is_due(version, steps) for version in range(steps + 1))


class MetricsSettings(Settings):
    """Experiment trackers, beside `metrics.jsonl` and TensorBoard files in the run directory. A tracker that
    fails or is slow prints a warning and never stops the run."""

    sinks: tuple[Literal["wandb", "trackio", "mlflow"], ...] = ()
    """Trackers; each needs its package (`pip install 'hone-rl[wandb]'`) and reads its own environment
    variables (such as WANDB_API_KEY, TRACKIO_SERVER_URL, MLFLOW_TRACKING_URI)."""

    project: str = "hone"
    """Project of the run; MLflow's experiment."""

    run_name: str = ""
    """Name of the run; default: that of the run directory. A resumed run continues the same remote run."""

    offline: bool = False
    """Write the trackers' own files into `sinks/` of the run directory and send nothing."""


class CheckpointSettings(Settings):
    """When checkpoints are written and how many are kept."""

    every: int = Field(default=1, ge=1)
    """Steps between two checkpoints; the last step always writes one."""

    keep: int = Field(default=2, ge=1)
    """Checkpoints kept; older ones are deleted after a newer one is complete."""

    timeout_s: float = Field(default=1800.0, gt=0)
    """Time limit of writing one checkpoint, in seconds. Training goes on meanwhile, until the next checkpoint
    is due."""

    def is_due(self, step: int, steps: int) -> bool:
        """Return whether `step` of `steps` ends with a checkpoint."""
        return (step + 1) % self.every == 0 or step + 1 == steps


class LearnerSettings(Settings):
    """The learner: where and how weights are trained; `hone sft` uses it as well."""

    learner: Annotated[Literal["in_process", "ranks", "tinker", "prime_rl"], Mark.SAME_RESULTS] = "in_process"
    """`in_process`: one device, in the process of the run. `ranks`: processes under torch.distributed, which
    the run starts on this machine, or torchrun on several. `tinker`: a service of the Tinker API, which
    trains adapters and samples replies. `prime_rl`: prime-rl's trainer. The last two are for RL only."""

    prime_rl: Annotated[PrimeRLSettings, Mark.SAME_RESULTS] = PrimeRLSettings()
    """prime-rl's trainer."""

    ranks: Annotated[int, Mark.SAME_RESULTS] = Field(default=1, ge=1)
    """Number of processes of the learner `ranks`."""

    parallel: Annotated[ParallelSettings, Mark.SAME_RESULTS] = ParallelSettings()
    """How the ranks share the work."""

    restarts: Annotated[int, Mark.SAME_RESULTS] = Field(default=3, ge=0)
    """How often a run starts its ranks again after one of them has died, from the last checkpoint."""

    rank_timeout_s: Annotated[float, Mark.SAME_RESULTS] = Field(default=1800.0, gt=0)
    """Time limit of one call to the ranks, in seconds."""

    lora: LoraSettings | None = None
    """Train low-rank adapters instead of all weights."""

    tree: Annotated[Tree, Mark.SAME_RESULTS] = "auto"
    """How often a prefix that samples share is computed. `off`: for each sample. `mask`: once, in one pass
    with a tree mask. `depth_first`: once, segment by segment with saved keys and values. `auto`: the one with
    the lowest predicted cost."""

    routing_replay: bool = True
    """In a mixture of experts, use the experts that the engine has chosen for each token, where it records
    them (rollout routing replay, R3). No effect on dense models."""

    memory: Annotated[MemorySettings, Mark.SAME_RESULTS] = MemorySettings()
    """Time for memory."""

    @model_validator(mode="after")
    def _ranks_have_work(self) -> Self:
        parallel = self.parallel
        if self.learner != "prime_rl" and self.prime_rl != PrimeRLSettings():
            raise ValueError(
                f'prime_rl has no effect with learner = "{self.learner}": remove it, or set '
                'learner = "prime_rl"'
            )
        if self.learner != "ranks":
            if self.ranks > 1 or parallel != ParallelSettings():
                raise ValueError(
                    f'ranks and parallel have no effect with learner = "{self.learner}": set '
                    'learner = "ranks"'
                )
            return self
        if self.lora is not None and parallel.tensor > 1:
            raise ValueError(
                f"adapters are not split, and parallel.tensor is {parallel.tensor}: set it to 1, and use "
                "fsdp and sequence"
            )
        others = parallel.replicate * parallel.sequence * parallel.tensor
        if self.ranks % others or (parallel.fsdp or self.ranks // others) * others != self.ranks:
            raise ValueError(
                f"ranks is {self.ranks}, but parallel has {(parallel.fsdp or 1) * others} "
                "(replicate x fsdp x sequence x tensor): make them equal"
            )
        if self.tree == "depth_first":
            raise ValueError(
                'tree = "depth_first" makes a different number of passes on each rank, which deadlocks their '
                'collectives: set tree = "mask" or "auto"'
            )
        return self


class TrainSettings(LearnerSettings):
    """Reinforcement learning."""

    steps: int = Field(default=100, ge=1)
    """Training steps; each collects a batch of groups and trains on it."""

    algorithm: AnyAlgorithmSettings = GrpoSettings()
    """From rewards to advantages, with the defaults of the loss."""

    distill: DistillSettings = DistillSettings()
    """Advantages from a teacher."""

    loss: LossSettings = LossSettings()
    """From advantages to a loss."""

    corrections: AnyCorrectionSettings = NoCorrectionSettings()
    """Correction of the difference between the engine's probabilities and the trainer's."""

    optimizer: OptimizerSettings = OptimizerSettings()
    """From gradients to weights."""

    batch: BatchSettings = BatchSettings()
    """How a batch is split."""

    checkpoint: Annotated[CheckpointSettings, Mark.SAME_RESULTS] = CheckpointSettings()
    """Checkpoints."""

    validate: Annotated[ValidateSettings, Mark.SAME_RESULTS] = ValidateSettings()  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]
    """Evaluation during training."""

    max_idle_steps: Annotated[int, Mark.SAME_RESULTS] = Field(default=3, ge=1)
    """Steps in a row that train nothing after which the run stops with the reason."""

    @model_validator(mode="after")
    def _loss_fits_the_algorithm(self) -> Self:
        if not isinstance(self.algorithm, CustomSettings):  # whose module need not be here to read settings
            rule = loss_rule(self.algorithm, self.loss)
            if rule.critic is not None and self.learner != "in_process":
                raise ValueError(NO_CRITIC)
        if not isinstance(self.corrections, NoCorrectionSettings) and self.loss.old_logprobs == "engine":
            raise ValueError(
                "corrections need the trainer's log-probabilities before the first optimiser step: "
                'set train.loss.old_logprobs = "recomputed"'
            )
        return self


class SftSettings(PassSettings):
    """Supervised training on stored trajectories."""

    epochs: int = Field(default=3, ge=1)
    """Passes over all trajectories."""

    batch_size: int = Field(default=32, ge=1)
    """Trajectories per optimiser step."""

    seed: Annotated[int, Mark.RUN_SEED] = 0
    """Seed of the order of trajectories, a new one each epoch."""

    optimizer: OptimizerSettings = OptimizerSettings(lr=1e-5, schedule="cosine")
    """From gradients to weights."""

    checkpoint: Annotated[CheckpointSettings, Mark.SAME_RESULTS] = CheckpointSettings(every=200, keep=1)
    """Checkpoints; `every` counts optimiser steps."""
