"""From a recipe to verl's command line: every setting that verl honours, and a refusal of every other.

    verl_options(settings, files) -> {"algorithm.adv_estimator": "grpo", ...}

Settings that only move work around (`Mark.SAME_RESULTS`) and have no counterpart are left to verl.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hone.config import ConfigError, RunSettings
from hone.integrations.rollouts.service import require_plain_rollouts
from hone.integrations.verl.rows import AGENT
from hone.launch.policy import sampling_problem
from hone.policy.settings import ServerEngineSettings
from hone.train.algorithms.dr_grpo import DrGrpoSettings
from hone.train.algorithms.grpo import GrpoSettings
from hone.train.algorithms.rule import loss_rule
from hone.train.corrections import TruncateSettings
from hone.train.settings import EXPERTS

Options = dict[str, Any]
_ACTOR, _ROLLOUT, _MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))
_PLAIN = re.compile(r"[A-Za-z_/][\w./-]*")  # what Hydra reads as a text without quotes
_SHORT = {"float32": "fp32", "bfloat16": "bf16"}
_NORMALISATION = {
    "token": "token-mean",
    "trajectory": "seq-mean-token-mean",
    "constant": "seq-mean-token-sum-norm",
}
WORKERS = 8  # processes of the agent loop, or one per rollout where fewer run at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """What verl reads, as absolute paths."""

    train: Path
    validation: Path  # the training rows where the run does not validate: verl wants a file
    agent_loop: Path
    recipe: Path  # read by the workers of the agent loop
    output: Path  # verl's checkpoints


def verl_options(settings: RunSettings, model: Path, files: Files) -> Options:
    """Return verl's settings by their names. Raises ConfigError with every setting that verl cannot honour.

    `model`: the folder of the recipe's model.
    """
    require_plain_rollouts(settings)
    if refused := list(refusals(settings)):
        raise ConfigError(" ".join(refused))
    return {
        **_data(settings, files),
        **_model(settings, model),
        **_rollout(settings, files),
        **_engine(settings),
        **_algorithm(settings),
        **_optimizer(settings),
        **_trainer(settings, files),
        **_staleness(settings),
    }


def command_line(options: Options) -> list[str]:
    """Return the arguments of `verl.trainer.main_ppo`."""
    return [f"{name}={_value(value)}" for name, value in options.items()]


def _value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{','.join(_value(each) for each in value)}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{name}:{_value(each)}' for name, each in value.items())}}}"
    if isinstance(value, (str, Path)) and not _PLAIN.fullmatch(str(value)):
        escaped = str(value).replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    return str(value)


def workers(settings: RunSettings) -> int:
    """Return the number of worker processes of verl's agent loop."""
    return min(WORKERS, settings.rollout.concurrent_episodes)


# --- refusals


def refusals(settings: RunSettings) -> Iterator[str]:
    """Yield one sentence for each setting that verl cannot honour."""
    yield from _refused_algorithm(settings)
    yield from _refused_training(settings)
    yield from _refused_rollouts(settings)


def _refused_algorithm(settings: RunSettings) -> Iterator[str]:
    train, loss = settings.train, settings.train.loss
    algorithm = train.algorithm
    if not isinstance(algorithm, (GrpoSettings, DrGrpoSettings)):
        yield (
            f'train.algorithm.name = "{algorithm.name}": verl gives the branches of a rollout one advantage '
            'with its estimator "grpo" alone, so choose grpo or dr_grpo.'
        )
    elif algorithm.reward != "outcome":
        yield f'train.algorithm.reward = "{algorithm.reward}": verl gets the outcome\'s reward, so remove it.'
    if loss.normalisation == "group":
        yield 'train.loss.normalisation = "group": verl has none of groups, so choose token or trajectory.'
    if train.corrections.kind != "none" and not _truncates_tokens(settings):
        yield (
            f'train.corrections.kind = "{train.corrections.kind}" at its level: verl is given truncated '
            'weights of tokens only, so set kind = "truncate" and level = "token".'
        )
    if train.distill.enabled:
        yield "train.distill.enabled: Hone's teacher is no part of verl's training, so remove it."


def _truncates_tokens(settings: RunSettings) -> bool:
    corrections = settings.train.corrections
    return isinstance(corrections, TruncateSettings) and corrections.level == "token"


def _refused_training(settings: RunSettings) -> Iterator[str]:
    train, optimizer = settings.train, settings.train.optimizer
    if optimizer.name != "adamw":
        yield f'train.optimizer.name = "{optimizer.name}": verl trains with AdamW here, so set "adamw".'
    if optimizer.schedule == "linear":
        yield 'train.optimizer.schedule = "linear": verl has constant and cosine, so choose one of them.'
    if optimizer.weight_decay:
        yield (
            f"train.optimizer.weight_decay = {optimizer.weight_decay:g}: Hone's is of matrices only, and "
            "verl's of all parameters, so set it to 0."
        )
    if settings.groups_per_step % train.batch.mini_batches:
        yield (
            f"train.batch.mini_batches = {train.batch.mini_batches}: verl splits a step into equal numbers "
            f"of groups, so set it to a divisor of groups_per_step ({settings.groups_per_step})."
        )
    if train.parallel.tensor > 1:
        yield f"train.parallel.tensor = {train.parallel.tensor}: verl's FSDP has none, so set it to 1."
    if train.lora is not None and EXPERTS in train.lora.targets:
        yield f'train.lora.targets has "{EXPERTS}": verl adapts linear layers only, so remove it.'


def _refused_rollouts(settings: RunSettings) -> Iterator[str]:
    rollout, engine = settings.rollout, settings.engine
    if not isinstance(engine, ServerEngineSettings):
        yield f'engine.kind = "{engine.kind}": verl starts vLLM or SGLang, so set vllm or sglang.'
    elif not engine.managed:
        yield "engine.urls: verl starts its servers itself, so remove them."
    if problem := sampling_problem(settings):
        yield f"sampling: {problem}."
    if rollout.replace_constant_groups:
        yield (
            f"rollout.replace_constant_groups = {rollout.replace_constant_groups}: verl replaces such groups "
            "without a bound, so set 0, and pass algorithm.filter_groups.enable=true if you want that."
        )
    if rollout.curriculum_visits is not None:
        yield "rollout.curriculum_visits: verl orders the tasks, so remove it."
    if rollout.max_staleness and not rollout.partial:
        yield "rollout.partial = false: verl's updates always cut replies under way, so remove it."


# --- verl's groups of settings


def _data(settings: RunSettings, files: Files) -> Options:
    context = settings.engine.context_tokens
    return {
        "data.train_files": files.train,
        "data.val_files": files.validation,
        "data.train_batch_size": settings.groups_per_step,
        # rows have no padding: either may take the whole context, and `max_model_len` bounds their sum
        "data.max_prompt_length": context,
        "data.max_response_length": context,
        "data.seed": settings.seed,
        "data.dataloader_num_workers": 0,
    }


def _model(settings: RunSettings, model: Path) -> Options:
    memory, lora = settings.train.memory, settings.train.lora
    adapters = (
        {}
        if lora is None
        else {
            f"{_MODEL}.lora_rank": lora.rank,
            f"{_MODEL}.lora_alpha": lora.alpha,
            f"{_MODEL}.target_modules": lora.targets[0] if len(lora.targets) == 1 else lora.targets,
        }
    )
    return {
        f"{_MODEL}.path": model,
        f"{_MODEL}.enable_gradient_checkpointing": memory.activation_checkpointing,
        f"{_MODEL}.enable_activation_offload": memory.offload_activations,
        f"{_ACTOR}.fsdp_config.optimizer_offload": memory.offload_optimizer,
        **adapters,
    }


def _rollout(settings: RunSettings, files: Files) -> Options:
    sampling, validate = settings.sampling, settings.train.validate
    return {
        f"{_ROLLOUT}.n": settings.rollout.group_size,
        f"{_ROLLOUT}.temperature": sampling.temperature,
        f"{_ROLLOUT}.calculate_log_probs": True,
        f"{_ROLLOUT}.agent.default_agent_loop": AGENT,
        f"{_ROLLOUT}.agent.agent_loop_config_path": files.agent_loop,
        f"{_ROLLOUT}.agent.num_workers": workers(settings),
        "reward.num_workers": 1,  # the agent loop brings the rewards
        f"{_ROLLOUT}.val_kwargs.n": validate.samples,
        f"{_ROLLOUT}.val_kwargs.do_sample": True,
        f"{_ROLLOUT}.val_kwargs.temperature": sampling.temperature,
    }


def _engine(settings: RunSettings) -> Options:
    engine = settings.engine
    assert isinstance(engine, ServerEngineSettings), "another one is refused"
    dtype = "float32" if settings.model is None else settings.model.dtype
    return {
        f"{_ROLLOUT}.name": engine.kind,
        f"{_ROLLOUT}.dtype": dtype,
        f"{_ROLLOUT}.tensor_model_parallel_size": engine.tensor_parallel,
        f"{_ROLLOUT}.gpu_memory_utilization": engine.gpu_memory_fraction,
        f"{_ROLLOUT}.max_num_seqs": engine.max_batch,
        f"{_ROLLOUT}.max_model_len": engine.context_tokens,
        f"{_ACTOR}.strategy": "fsdp2",
        f"+{_ACTOR}.fsdp_config.mixed_precision.param_dtype": _SHORT[dtype],
    }


def _algorithm(settings: RunSettings) -> Options:
    train, loss = settings.train, settings.train.loss
    rule = loss_rule(train.algorithm, loss)
    options: Options = {
        "algorithm.adv_estimator": "grpo",
        "algorithm.norm_adv_by_std_in_grpo": getattr(train.algorithm, "normalise_std", False),
        "algorithm.use_kl_in_reward": False,
        "algorithm.rollout_correction.bypass_mode": loss.old_logprobs == "engine",
        f"{_ACTOR}.clip_ratio_low": round(1 - rule.bounds.low, 9),
        f"{_ACTOR}.clip_ratio_high": round(rule.bounds.high - 1, 9),
        f"{_ACTOR}.clip_ratio_c": rule.bounds.cap,
        f"{_ACTOR}.loss_agg_mode": _NORMALISATION[rule.normalisation],
        f"{_ACTOR}.use_kl_loss": loss.kl_coef > 0,
    }
    if rule.normalisation == "constant":
        options[f"{_ACTOR}.loss_scale_factor"] = rule.constant_tokens
    if loss.kl_coef:
        options |= {f"{_ACTOR}.kl_loss_coef": loss.kl_coef, f"{_ACTOR}.kl_loss_type": loss.kl_estimator}
    if isinstance(train.corrections, TruncateSettings):
        options |= {
            "algorithm.rollout_correction.rollout_is": "token",
            "algorithm.rollout_correction.rollout_is_threshold": train.corrections.high,
        }
    return options


def _optimizer(settings: RunSettings) -> Options:
    optimizer, batch = settings.train.optimizer, settings.train.batch
    # a row longer than the bound of a pass would be an error in verl
    tokens = max(batch.micro_batch_tokens, settings.engine.context_tokens)
    return {
        f"{_ACTOR}.optim.lr": optimizer.lr,
        f"{_ACTOR}.optim.lr_scheduler_type": optimizer.schedule,
        f"{_ACTOR}.optim.lr_warmup_steps": optimizer.warmup_steps,
        f"{_ACTOR}.optim.min_lr_ratio": optimizer.final_lr_fraction,
        f"{_ACTOR}.optim.betas": [optimizer.beta1, optimizer.beta2],
        f"{_ACTOR}.optim.weight_decay": 0.0,
        f"{_ACTOR}.optim.clip_grad": optimizer.max_grad_norm,
        f"{_ACTOR}.optim.override_optimizer_config": {"eps": optimizer.eps},
        f"{_ACTOR}.ppo_mini_batch_size": settings.groups_per_step // batch.mini_batches,
        f"{_ACTOR}.ppo_epochs": batch.epochs,
        f"{_ACTOR}.use_dynamic_bsz": True,
        f"{_ACTOR}.ppo_max_token_len_per_gpu": tokens,
        f"{_ACTOR}.ulysses_sequence_parallel_size": settings.train.parallel.sequence,
    }


def _trainer(settings: RunSettings, files: Files) -> Options:
    train, metrics = settings.train, settings.metrics
    return {
        "trainer.n_gpus_per_node": train.ranks,
        "trainer.total_training_steps": train.steps,
        "trainer.total_epochs": train.steps,  # the number of steps ends the run
        "trainer.test_freq": train.validate.every or -1,
        "trainer.val_before_train": train.validate.every > 0,
        "trainer.save_freq": train.checkpoint.every,
        "trainer.max_actor_ckpt_to_keep": train.checkpoint.keep,
        "trainer.default_local_dir": files.output,
        "trainer.project_name": metrics.project,
        "trainer.experiment_name": metrics.run_name or settings.run_dir.name,
        "trainer.logger": ["console", *metrics.sinks],
    }


def _staleness(settings: RunSettings) -> Options:
    staleness, engine = settings.rollout.max_staleness, settings.engine
    if not staleness:
        return {"trainer.v1.trainer_mode": "sync"}
    assert isinstance(engine, ServerEngineSettings), "another one is refused"
    return {
        "trainer.v1.trainer_mode": "separate_async",
        "trainer.v1.separate_async.num_warmup_batches": staleness,
        "trainer.v1.separate_async.parameter_sync_step": settings.train.batch.mini_batches,
        # verl counts the versions from the one that began a rollout to the one that it trains, both included
        "trainer.v1.sampler.max_off_policy_threshold": staleness + 1,
        "trainer.v1.sampler.max_off_policy_strategy": "wait",
        "actor_rollout_ref.hybrid_engine": False,
        f"{_ROLLOUT}.nnodes": 1,
        f"{_ROLLOUT}.n_gpus_per_node": engine.servers * engine.tensor_parallel,
        f"{_ROLLOUT}.checkpoint_engine.backend": "nccl",
        # verl 0.9.1 raises a TypeError from a message of level INFO where hybrid_engine is false
        "+ray_kwargs.ray_init.runtime_env.env_vars.VERL_LOGGING_LEVEL": "WARN",
    }
