"""`hone.run` and `hone.open_rollouts`: an agent on tasks, graded."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.agents import Agent
from hone.config import Layer, RunSettings, assign
from hone.environment import prepare_workspace
from hone.front_door.arguments import Overrides, Recipe, resolved
from hone.front_door.blocking import Held
from hone.grading.assess import check_gradeable
from hone.launch.defaults import NO_RECIPE
from hone.launch.evaluate_engine import engine_settings, replaced_settings
from hone.launch.placement import place
from hone.launch.policy import NewChat, Policy, chats, load_policy, open_chats, open_engine
from hone.launch.reporter import Reporter, make_reporter, set_library_variables
from hone.launch.runtime import open_context, open_runtime
from hone.policy.engine import Engine
from hone.policy.settings import OpenAIEngineSettings
from hone.rollout.episode import Episode, RolloutContext, retry_infrastructure_faults, run_episode
from hone.rollout.groups import seed_of
from hone.types import Task, Trajectory
from hone.utils.concurrency import task_group
from hone.utils.errors import UsageError
from hone.utils.extras import extras_of
from hone.utils.files import default_cache_dir

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def run(
    task: Task,
    agent: str | Agent | None = None,
    *,
    model: str | Path | None = None,
    engine: str | None = None,
    recipe: Recipe | None = None,
    settings: Overrides | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Trajectory:
    """Run an agent on a task in a sandbox, grade its patch, and return the trajectory.

    How the rollout ended is in `outcome`, a failure of its sandbox, engine or grader included.

    Args: as `open_rollouts`; `seed` is that of the sampling.

    Raises: as `open_rollouts`.

    Example:
        rollout = hone.run(task, "bash", model="runs/quickstart/final", settings={"agent.prompts": "tiny"})
        print(rollout.outcome, rollout.patch)
    """
    with open_rollouts(
        agent, model=model, engine=engine, recipe=recipe, settings=settings, progress=progress
    ) as rollouts:
        ((rollout,),) = rollouts.run([task], seed=seed)
    return rollout


def open_rollouts(
    agent: str | Agent | None = None,
    *,
    model: str | Path | None = None,
    engine: str | None = None,
    recipe: Recipe | None = None,
    settings: Overrides | None = None,
    progress: bool = True,
) -> RolloutSession:
    """Return an agent with its engine and sandboxes, to open with `with` and run on many tasks.

    Args:
        agent: "bash", "debugger" or "mini-swe-agent", "blackbox:PROGRAM" such as "blackbox:qwen-code", the
            scripted "oracle", "noop" or "demonstrator", or an object with the method `run` of
            `hone.agents.Agent`. Default: the recipe's, else "bash".
        model: folder of a model or its name on the Hugging Face hub; with the address of a server, its name
            there.
        engine: "local" (in this process), or the address of a vLLM, SGLang or OpenAI-compatible server. The
            key of an endpoint is in the environment variable of the setting `engine.api_key_env`.
        recipe: file or name of a recipe whose settings are used.
        settings: setting -> value, such as {"sampling.temperature": 0.5}.
        progress: whether progress is printed to stderr.

    Raises:
        ConfigError, UsageError: an argument cannot be used.
        EngineError, PolicyError, ProviderUnavailable: when it is opened, and cannot be.
        MissingExtra: the extra that the engine needs is not installed.

    Example:
        with hone.open_rollouts("bash", engine="http://localhost:8000", model="qwen") as rollouts:
            groups = rollouts.run(tasks, samples=4)
    """
    asked = _Asked(agent=agent, model=model, engine=engine, recipe=recipe, settings=settings)
    return RolloutSession(asked, make_reporter(quiet=not progress))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The arguments of a caller."""

    agent: str | Agent | None
    model: str | Path | None
    engine: str | None
    recipe: Recipe | None
    settings: Overrides | None

    def resolve(self, run_dir: Path) -> RunSettings:
        """Return the settings; queries the server of `engine`, and blocks."""
        given = policy_layers(self.engine, self.model, self.settings, no_recipe=self.recipe is None)
        kind = self.agent if isinstance(self.agent, str) else None
        given += agent_layers(kind)
        if not isinstance(self.recipe, RunSettings):
            given.append(assign("run_dir", "run_dir", str(run_dir)))
        without = replaced(kind, self.engine)
        return resolved(self.recipe, self.settings, "eval", given, without)


def agent_layers(agent: str | None) -> list[str | Layer]:
    """Return the settings of an agent's name, such as "bash" or "blackbox:qwen-code"."""
    if agent is None:
        return []
    kind, _, program = agent.partition(":")
    programs = [assign("agent", "agent.program", program)] if program else []
    return [assign("agent", "agent.kind", kind), *programs]


def replaced(agent: str | None, engine: str | None) -> list[str]:
    """Return the settings of a recipe that the agent and the engine of a caller replace."""
    kind = None if agent is None else agent.partition(":")[0]
    return replaced_settings(kind, engine=engine is not None)


def policy_layers(
    engine: str | None, model: str | Path | None, settings: Overrides | None, *, no_recipe: bool
) -> list[str | Layer]:
    """Return the settings of `engine` and `model`, and without a recipe the defaults below them; blocks."""
    key_env = (settings or {}).get("engine.api_key_env")
    name = None if model is None else str(model)
    given, lengths = engine_settings(
        engine, None, name, key_env=None if key_env is None else str(key_env), no_recipe=no_recipe
    )
    base = NO_RECIPE if no_recipe else ()
    return [*base, *lengths, *(assign(flag, path, value) for path, (flag, value) in given.items())]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    context: RolloutContext
    settings: RunSettings
    policy: Policy | None  # None: a scripted agent, or an endpoint without token ids
    engine: Engine | None  # the same


class RolloutSession:
    """An agent with its engine and sandboxes; open inside of its `with` block."""

    def __init__(self, asked: _Asked, reporter: Reporter) -> None:
        self._asked, self._reporter = asked, reporter
        self._held = Held("the agent", self._open)
        self._opened: _Opened | None = None
        self._version = 0

    def __enter__(self) -> RolloutSession:
        set_library_variables()
        self._opened = self._held.enter()
        return self

    def __exit__(self, *exc: object) -> None:
        self._opened = None
        self._held.leave()

    def run(self, tasks: Sequence[Task], *, samples: int = 1, seed: int = 0) -> list[list[Trajectory]]:
        """Return `samples` rollouts of each task, in order of the tasks; they run concurrently.

        At most `rollout.concurrent_episodes` run at once. An infrastructure fault is retried; the last one
        is returned as the rollout's outcome. Equal seeds sample equal replies.

        Raises TaskError for a task that cannot be graded or prepared, UsageError outside of `with`.
        """
        return self._held.run(self._run(tasks, samples, seed))

    @property
    def model(self) -> PreTrainedModel:
        """The model of a local engine, which samples from these very weights.

        Raises UsageError for another engine.
        """
        return self._local().model

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the policy. Raises UsageError without token ids."""
        return self._policy().tokenizer

    @contextmanager
    def updating(self) -> Generator[PreTrainedModel]:
        """Yield the model of a local engine to change its weights; afterwards replies come from the new ones.

        No rollout may run meanwhile. Tokens sampled later have the next weight version.
        """
        engine = self._local()
        self._held.run(engine.pause())
        try:
            yield engine.model
            self._version += 1
            self._held.run(engine.set_version(self._version))
        finally:
            self._held.run(engine.resume())

    def _policy(self) -> Policy:
        if self._opened is None:
            raise UsageError("the agent is not open: use it inside of its `with` block")
        if self._opened.policy is None:
            raise UsageError("no model is at hand: open a local engine, with model= and without engine=")
        return self._opened.policy

    def _local(self) -> Any:
        self._policy()
        from hone.policy.local import LocalEngine  # imports torch

        engine = None if self._opened is None else self._opened.engine
        if not isinstance(engine, LocalEngine):
            raise UsageError("the model is in a server: open a local engine, with model= and without engine=")
        return engine

    async def _run(self, tasks: Sequence[Task], samples: int, seed: int) -> list[list[Trajectory]]:
        assert self._opened is not None, "it was entered"
        context = self._opened.context
        await asyncio.to_thread(check_gradeable, list(tasks))
        running = asyncio.Semaphore(context.settings.concurrent_episodes)
        with self._reporter, self._reporter.stage("rollouts", len(tasks) * samples) as stage:

            async def sample(task: Task, workspace: Path, index: int) -> Trajectory:
                async def attempt() -> Trajectory:
                    episode = Episode(
                        task=task,
                        rollout_id=f"{task.id}-{seed}-{index}",
                        group_id=f"{task.id}-{seed}",
                        workspace=workspace,
                        seed=seed_of(seed, task.id, index),
                    )
                    return await run_episode(episode, context)

                async with running:
                    rollout = await retry_infrastructure_faults(attempt, context.settings)
                stage.advance()
                return rollout

            async def group(task: Task) -> list[Trajectory]:
                workspace = await prepare_workspace(task, context.provider, context.workspaces)
                return await _gather([sample(task, workspace, index) for index in range(samples)])

            return await _gather([group(task) for task in tasks])

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[_Opened]:
        with extras_of("this agent"), tempfile.TemporaryDirectory(prefix="hone-run-") as folder:
            settings = await asyncio.to_thread(self._asked.resolve, Path(folder))
            cache = default_cache_dir() / "workspaces"
            agent = settings.agent
            if self._asked.agent is not None and not isinstance(self._asked.agent, str):
                agent = self._asked.agent
            async with (
                open_runtime(settings, workspaces=cache) as runtime,
                _open_policy(settings, agent, self._reporter.note) as (new_chat, policy, engine),
                open_context(runtime, settings, agent, new_chat, evaluation=True) as context,
            ):
                yield _Opened(context=context, settings=settings, policy=policy, engine=engine)


@asynccontextmanager
async def _open_policy(
    settings: RunSettings, agent: Any, say: Callable[[str], None]
) -> AsyncGenerator[tuple[NewChat | None, Policy | None, Engine | None]]:
    """Open the engine of an agent that uses one.

    An agent of the caller uses one if the settings have a model or the address of a server.
    """
    own = not hasattr(agent, "uses_policy")
    if not (settings.model or settings.engine.addresses if own else agent.uses_policy):
        yield None, None, None
        return
    placed = await asyncio.to_thread(place, settings, "eval")
    if isinstance(placed.engine, OpenAIEngineSettings):
        async with open_chats(placed, say) as new_chats:
            yield new_chats(placed), None, None
        return
    policy = await asyncio.to_thread(load_policy, placed)
    async with open_engine(policy, placed, say) as engine:
        await engine.health()
        yield chats(policy, engine, placed), policy, engine


async def _gather(work: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Return the results in order; the first error cancels the others and is raised."""
    async with task_group() as jobs:
        running = [jobs.create_task(each) for each in work]
    return [each.result() for each in running]
