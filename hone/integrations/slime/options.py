"""From a recipe to slime's command line: every setting that slime honours, and a refusal of every other.

The shape of the model and the parallelism are Megatron's, and so is the conversion of checkpoints: pass them
after the recipe, as slime's scripts do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hone.config import ConfigError, RunSettings
from hone.integrations.rollouts.service import require_plain_rollouts
from hone.launch.policy import sampling_problem
from hone.policy.settings import ServerEngineSettings
from hone.train.algorithms.dr_grpo import DrGrpoSettings
from hone.train.algorithms.grpo import GrpoSettings
from hone.train.algorithms.rloo import RlooSettings
from hone.train.algorithms.rule import loss_rule

Options = dict[str, Any]  # flag without its dashes -> value; True: a flag alone
HOOKS = "hone.integrations.slime.hooks"
PATHS: Mapping[str, str] = {
    "data-source-path": "hone.integrations.slime.data_source.DataSource",
    "custom-generate-function-path": f"{HOOKS}.generate",
    "custom-rm-path": f"{HOOKS}.reward",
    "custom-reward-post-process-path": f"{HOOKS}.post_process_rewards",
    "dynamic-sampling-filter-path": f"{HOOKS}.filter_group",
    "custom-rollout-log-function-path": f"{HOOKS}.log_rollouts",
}


def slime_options(settings: RunSettings, model: Path, config: Path, output: Path) -> Options:
    """Return slime's arguments by their names. Raises ConfigError with every setting slime cannot honour.

    Args:
        model: the folder of the recipe's model, in the format of transformers.
        config: the YAML with `hone_recipe`.
        output: slime's checkpoints.
    """
    require_plain_rollouts(settings)
    if refused := list(refusals(settings)):
        raise ConfigError(" ".join(refused))
    return {
        **PATHS,
        "custom-config-path": config,
        "hf-checkpoint": model,
        "save": output,
        "load": output,
        **_rollout(settings),
        **_algorithm(settings),
        **_optimizer(settings),
    }


def command_line(options: Options) -> list[str]:
    """Return the arguments of slime's train.py."""
    arguments: list[str] = []
    for name, value in options.items():
        if value is True:
            arguments.append(f"--{name}")
        elif value is not False:
            arguments += [f"--{name}", str(value)]
    return arguments


def script(settings: RunSettings) -> str:
    """Return the script of slime's checkout that trains."""
    return "train_async.py" if settings.rollout.max_staleness else "train.py"


# --- refusals


def refusals(settings: RunSettings) -> Iterator[str]:
    """Yield one sentence for each setting that slime cannot honour."""
    yield from _refused_algorithm(settings)
    yield from _refused_rollouts(settings)


def _refused_algorithm(settings: RunSettings) -> Iterator[str]:
    train, loss, optimizer = settings.train, settings.train.loss, settings.train.optimizer
    algorithm = train.algorithm
    if not isinstance(algorithm, (GrpoSettings, DrGrpoSettings, RlooSettings)):
        yield (
            f'train.algorithm.name = "{algorithm.name}": slime gets advantages from rewards alone, so choose '
            "grpo, dr_grpo or rloo."
        )
    elif algorithm.reward != "outcome":
        yield f'train.algorithm.reward = "{algorithm.reward}": slime gets that of outcomes, so remove it.'
    elif loss_rule(algorithm, loss).normalisation not in ("token", "trajectory"):
        yield (
            "train.loss.normalisation: slime takes the mean over all tokens or over each rollout's, so set "
            'it to "token" or "trajectory".'
        )
    if train.corrections.kind != "none":
        yield (
            f'train.corrections.kind = "{train.corrections.kind}": its bounds are slime\'s, so remove it, '
            "and pass --use-tis with --tis-clip."
        )
    if optimizer.name != "adamw":
        yield f'train.optimizer.name = "{optimizer.name}": slime trains with Adam here, so set "adamw".'
    if train.distill.enabled:
        yield "train.distill.enabled: Hone's teacher is no part of slime's training, so remove it."
    if train.lora is not None:
        yield "train.lora: slime trains all weights, so remove it."
    if train.validate.every:
        yield "train.validate.every: evaluate slime's checkpoints with `hone eval`, so set it to 0."


def _refused_rollouts(settings: RunSettings) -> Iterator[str]:
    rollout, engine, batch = settings.rollout, settings.engine, settings.train.batch
    if not isinstance(engine, ServerEngineSettings) or engine.kind != "sglang":
        yield f'engine.kind = "{engine.kind}": slime starts SGLang, so set sglang.'
    elif not engine.managed:
        yield "engine.urls: slime starts its servers itself, so remove them."
    if problem := sampling_problem(settings):
        yield f"sampling: {problem}."
    if rollout.max_staleness > 1:
        yield (
            f"rollout.max_staleness = {rollout.max_staleness}: slime's asynchronous trainer is one step "
            "behind, and its fully asynchronous rollouts take no forks, so set 0 or 1."
        )
    if rollout.curriculum_visits is not None:
        yield "rollout.curriculum_visits: the order of tasks does not depend on rewards here, so remove it."
    if settings.groups_per_step % batch.mini_batches:
        yield (
            f"train.batch.mini_batches = {batch.mini_batches}: slime splits a step into equal numbers of "
            f"rollouts, so set it to a divisor of groups_per_step ({settings.groups_per_step})."
        )
    if batch.epochs > 1:
        yield f"train.batch.epochs = {batch.epochs}: slime passes over a step once, so set it to 1."


# --- slime's groups of arguments


def _rollout(settings: RunSettings) -> Options:
    rollout, engine, batch = settings.rollout, settings.engine, settings.train.batch
    assert isinstance(engine, ServerEngineSettings), "another one is refused"
    size = settings.groups_per_step * rollout.group_size
    return {
        "num-rollout": settings.train.steps,
        "rollout-batch-size": settings.groups_per_step,
        "n-samples-per-prompt": rollout.group_size,
        "global-batch-size": size // batch.mini_batches,
        "rollout-temperature": settings.sampling.temperature,
        "rollout-max-context-len": engine.context_tokens,
        "sglang-context-length": engine.context_tokens,
        "rollout-max-response-len": settings.sampling.max_tokens,
        "rollout-seed": settings.seed,
        "rollout-num-gpus": engine.servers * engine.tensor_parallel,
        "rollout-num-gpus-per-engine": engine.tensor_parallel,
        # it bounds rollouts, of which most wait for their sandbox, and not requests
        "sglang-server-concurrency": -(-rollout.concurrent_episodes // engine.servers),
        "sglang-mem-fraction-static": engine.gpu_memory_fraction,
        "sglang-max-running-requests": engine.max_batch,
        "use-dynamic-batch-size": True,
        "max-tokens-per-gpu": max(batch.micro_batch_tokens, engine.context_tokens),
    }


def _algorithm(settings: RunSettings) -> Options:
    train, loss = settings.train, settings.train.loss
    rule = loss_rule(train.algorithm, loss)
    options: Options = {
        "advantage-estimator": "grpo",
        "eps-clip": round(1 - rule.bounds.low, 9),
        "eps-clip-high": round(rule.bounds.high - 1, 9),
        "eps-clip-c": rule.bounds.cap,
        "use-rollout-logprobs": loss.old_logprobs == "engine",
        "calculate-per-token-loss": rule.normalisation == "token",
        "entropy-coef": 0.0,
    }
    if loss.kl_coef:
        options |= {"use-kl-loss": True, "kl-loss-coef": loss.kl_coef, "kl-loss-type": loss.kl_estimator}
    return options


def _optimizer(settings: RunSettings) -> Options:
    optimizer, checkpoint = settings.train.optimizer, settings.train.checkpoint
    return {
        "optimizer": "adam",
        "lr": optimizer.lr,
        "min-lr": optimizer.lr * optimizer.final_lr_fraction if optimizer.schedule != "constant" else 0.0,
        "lr-decay-style": optimizer.schedule,
        "lr-warmup-iters": optimizer.warmup_steps,
        "weight-decay": optimizer.weight_decay,
        "adam-beta1": optimizer.beta1,
        "adam-beta2": optimizer.beta2,
        "adam-eps": optimizer.eps,
        "clip-grad": optimizer.max_grad_norm,
        "seed": settings.seed,
        "save-interval": checkpoint.every,
    }
