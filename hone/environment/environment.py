"""What a task's sandboxes show, the Python that runs the tests there, and the errors of preparing them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hone.environment.settings import EnvironmentSettings
from hone.sandbox.contract import Mount, SandboxLost
from hone.tasks.errors import TaskError
from hone.tasks.harbor import is_harbor
from hone.tasks.python import SITE_TARGET, find_interpreter, install
from hone.tasks.workspace import is_local, prepare
from hone.types import Environment, Task
from hone.utils import git
from hone.utils.files import default_cache_dir


class EnvironmentFailed(Exception):
    """The environment cannot be prepared, and no patch caused that: an infrastructure failure."""


class BrokenTree(SandboxLost):
    """The agent left a tree that git cannot turn into a patch; its sandbox is unusable."""


class PatchRefused(Exception):
    """The patch is malformed or reaches outside the repository; it is not applied."""


# For git commands of Hone in a sandbox, where the repository may belong to another user.
GIT_ENV: Mapping[str, str] = {**git.ISOLATED, **git.config({"safe.directory": "*"})}

# Images of SWE-bench keep the tests' interpreter in a conda environment of this name.
_CONDA = "/opt/miniconda3/envs/testbed/bin"
# The system's bash: PATH may name directories of the repository.
_ACTIVATE = ("/bin/bash", "-p", "-c", f'PATH="{_CONDA}:$PATH"; exec "$@"', "bash")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnvironment:
    """A task's environment, resolved for sandboxes."""

    image: str
    layer: Path | None  # initial content of workdir; None: the image holds the repository
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])  # for the agent's commands
    python: str = "python3"
    wrapper: tuple[str, ...] = ()  # prefix of the command that runs the tests
    paths: tuple[str, ...] = ()  # import paths of the repository's packages
    sites: tuple[str, ...] = ()  # directories of installed distributions, besides the interpreter's own
    bare: bool = True  # the interpreter has nothing installed that the tests need
    build_mounts: tuple[Mount, ...] = ()  # for a sandbox that compiles, in place of `mounts`
    libraries: Path | None = None  # compiled with the patch that is graded; see `hone.environment.compile`


async def resolve_environment(task: Task, cache: Path, settings: EnvironmentSettings) -> TaskEnvironment:
    """Return what the task's sandboxes show; repositories and requirements are prepared on first use.

    Args:
        cache: directory of the tasks' repositories.
    Raises:
        TaskError: the repository or its commit is missing, or a requirement cannot be installed.
    """
    return await asyncio.to_thread(_resolve, task, cache, settings)


def _resolve(task: Task, cache: Path, settings: EnvironmentSettings) -> TaskEnvironment:
    environment = task.environment
    if is_harbor(task):
        return TaskEnvironment(image=environment.image, layer=None, bare=False)
    if has_own_repository(environment):
        return TaskEnvironment(image=environment.image, layer=None, wrapper=_ACTIVATE, bare=False)
    layer = prepare(task, cache)
    if not is_local(environment):
        return TaskEnvironment(image=environment.image, layer=layer)
    paths = tuple(f"{environment.workdir}/{path}".rstrip("/") for path in environment.paths)
    if settings.venv is not None:
        return _with_venv(settings.venv, layer, paths)
    site = install(environment, default_cache_dir() / "sites")
    sites = () if site is None else (SITE_TARGET,)
    mounts = () if site is None else (Mount(source=site, target=SITE_TARGET),)
    env = {"PYTHONPATH": ":".join([*paths, *sites])} if paths or sites else {}
    interpreter = find_interpreter(environment.python)
    if not interpreter.is_own:
        mounts += _mounts_of(interpreter.prefix)
        env["PATH"] = ":".join(dict.fromkeys([str(interpreter.path.parent), "/usr/bin", "/bin"]))
    return TaskEnvironment(
        image="host",
        layer=layer,
        mounts=mounts,
        build_mounts=(*_build_mounts(environment), *mounts[len(sites) :]),
        env=env,
        python="python3" if interpreter.is_own else str(interpreter.path),
        paths=paths,
        sites=sites,
    )


def _build_mounts(environment: Environment) -> tuple[Mount, ...]:
    """Return the mount of what the build requires, beside what the tests require."""
    if not environment.build:
        return ()
    needed = dataclasses.replace(
        environment, requirements=(*environment.requirements, *environment.build[1:])
    )
    site = install(needed, default_cache_dir() / "sites")
    return () if site is None else (Mount(source=site, target=SITE_TARGET),)


def has_own_repository(environment: Environment) -> bool:
    """Return whether the image holds the repository, in workdir."""
    return environment.image.startswith(("docker://", "rootfs:")) and not environment.history


def _with_venv(venv: Path, layer: Path, paths: tuple[str, ...]) -> TaskEnvironment:
    """Mount a given virtual environment and its interpreter at their paths on this machine."""
    python = venv / "bin" / "python"
    if not (venv / "pyvenv.cfg").is_file() or not python.exists():
        raise TaskError(f"{venv} is not a virtual environment: it has no pyvenv.cfg or no bin/python")
    venv = venv.resolve()
    return TaskEnvironment(
        image="host",
        layer=layer,
        mounts=(Mount(source=venv, target=str(venv)), *_mounts_of(python.resolve().parent.parent)),
        env={"PYTHONPATH": ":".join(paths), "VIRTUAL_ENV": str(venv), "PATH": f"{venv}/bin:/usr/bin:/bin"},
        python=str(venv / "bin" / "python"),
        paths=paths,
        bare=False,
    )


def _mounts_of(prefix: Path) -> tuple[Mount, ...]:
    """Return the mount of a Python installation at its own path; none where every sandbox has it."""
    return () if str(prefix) == "/usr" else (Mount(source=prefix, target=str(prefix)),)
