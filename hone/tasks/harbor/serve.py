"""What Hone's sandboxes serve of a Harbor task, and what of it is graded; the rest is refused."""

from __future__ import annotations

import base64
import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from hone.tasks.errors import TaskError
from hone.tasks.harbor.config import Artifact, Environment, Phase, Step, TaskConfig, parse_config
from hone.tasks.harbor.folder import CONFIG, DOCKERFILE, INSTRUCTION, SOLUTION, TEST, below, text_of, unpack
from hone.types import Task
from hone.utils.dockerfile import last_workdir, read_instructions
from hone.utils.text import digest

PARSER = "harbor"  # of the checks of a task that its own verifier grades
_SOLVE = SOLUTION.removeprefix("solution/")
SCRIPT = TEST.removeprefix("tests/")
DOCKERFILE_IMAGE = "dockerfile:"  # and the digest of the build context: an image that is yet to be built
ARTIFACTS = "/logs/artifacts"  # where every task may leave artifacts
_TEMPLATE = re.compile(r"\$\{[^}]*\}")
_HOST = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_PORTS = (443, 80)  # of an allowed host
# Directories from which the programs of the verifier come, or where it works: nothing of an agent's result is
# put there. A root of a result may neither be one of them nor lie around or below one.
_SYSTEM = (
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/logs", "/opt/hone", "/proc",
    "/run",    "/sbin", "/solution", "/srv/hone", "/sys", "/tests", "/usr", "/var/lib", "/var/spool",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One run of the verifier: that of a task, or of one of its steps."""

    name: str  # of the step; "" for a task without steps
    tests: Mapping[str, str]  # packed files by path below /tests, among them SCRIPT
    env: Mapping[str, str]
    timeout_s: float
    network: tuple[str, ...]
    min_reward: Mapping[str, float]  # by the name of the reward; the later steps are not run below it


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborTask:
    """A Harbor task as Hone serves it."""

    config: TaskConfig
    image: str
    workdir: str
    roots: tuple[str, ...]  # whose changed files are the result of the agent
    env: Mapping[str, str]
    network: tuple[str, ...]  # `host:port` that the agent may reach
    uploads: Mapping[str, str]  # packed files by path below workdir, put there before the agent starts
    stages: tuple[Stage, ...]
    context: Mapping[str, str] = field(default_factory=dict[str, str])  # packed files, see DOCKERFILE_IMAGE


def is_harbor(task: Task) -> bool:
    """Return whether a task is graded by the verifier in its folder."""
    return task.checks.parser == PARSER


def read_task(files: Mapping[str, str]) -> HarborTask:
    """Return a task from the packed files of its folder.

    Raises TaskError, one sentence, for what is wrong with it or what Hone does not serve.
    """
    config = parse_config(text_of(files, CONFIG))
    _check_environment(config.environment, files, "environment")
    for name, phase in _phases(config):
        if phase.user not in (None, 0, "0", "root"):
            raise TaskError(
                f"{name}.user is {phase.user!r}, but a sandbox of Hone has one user: remove the setting"
            )
    if any(
        verifier.collect for verifier in (config.verifier, *(step.verifier for step in config.steps or ()))
    ):
        raise TaskError("it has verifier.collect hooks, which Hone does not run")
    image = config.environment.docker_image or ""
    workdir = config.environment.workdir or dockerfile_workdir(files)
    return HarborTask(
        config=config,
        image=image_of(image, files),
        workdir=workdir,
        roots=result_roots(config, workdir, separate=is_separate(config)),
        env=plain_env(config.environment.env, "environment.env"),
        network=_network(config.environment, config.agent, "agent"),
        uploads=dict(below(files, "environment")) if image and DOCKERFILE not in files else {},
        stages=tuple(_stages(config, files)),
        context={} if image else dict(below(files, "environment")),
    )


def image_of(docker_image: str, files: Mapping[str, str]) -> str:
    """Return the image in Hone's notation: `host` and `rootfs:DIRECTORY` are names of Hone's own."""
    if docker_image == "host" or docker_image.startswith("rootfs:"):
        return docker_image
    if docker_image:
        return f"docker://{docker_image}"
    return f"{DOCKERFILE_IMAGE}{digest(dict(below(files, 'environment')))}"


def tests_of(files: Mapping[str, str], step: str) -> Mapping[str, str]:
    """Return the packed files of a verifier by path below /tests: a step's own over those of the task.

    Raises TaskError where no script is among them.
    """
    tests = dict(below(files, "tests"))
    if step:
        tests |= dict(below(files, f"steps/{step}/tests"))
    if SCRIPT not in tests:
        raise TaskError(f"it has no {TEST}" + (f" and no steps/{step}/{TEST}" if step else ""))
    return tests


def instruction_of(files: Mapping[str, str], config: TaskConfig) -> str:
    """Return what the agent is asked; the instructions of several steps one after the other."""
    if not config.steps:
        return text_of(files, INSTRUCTION)
    parts = [
        f"Step {number} of {len(config.steps)}: {step.name}\n\n"
        + text_of(files, f"steps/{step.name}/{INSTRUCTION}")
        for number, step in enumerate(config.steps, start=1)
    ]
    return "\n\n".join(parts)


def result_roots(config: TaskConfig, workdir: str, *, separate: bool) -> tuple[str, ...]:
    """Return the directories and files whose changes are graded: workdir and the task's artifacts.

    Of a separate verifier, which sees the artifacts alone, only those. Raises TaskError.
    """
    listed = [*config.artifacts, *(each for step in config.steps or () for each in step.artifacts)]
    paths: list[str] = []
    for artifact in listed:
        entry = Artifact(source=artifact) if isinstance(artifact, str) else artifact
        if entry.service not in (None, "main"):
            raise TaskError(
                f"its artifact {entry.source} is of the service {entry.service!r}: Hone has no compose"
            )
        paths.append(posixpath.normpath(posixpath.join(workdir, entry.source)))
    roots = [*paths, ARTIFACTS] if separate else [posixpath.normpath(workdir), *paths]
    for root in roots:
        if not is_root(root):
            raise TaskError(
                f"its result would be {root}, from which the verifier's own programs and files come: name a "
                "directory of its own in environment.workdir or in artifacts"
            )
    return tuple(dict.fromkeys(root for root in roots if not _inside(root, roots)))


def is_root(path: str) -> bool:
    """Return whether an agent's changes of `path` may be put where the verifier works."""
    if path == ARTIFACTS:
        return True
    around = any(name == path or name.startswith(f"{path.rstrip('/')}/") for name in _SYSTEM)
    return path.startswith("/") and not around and not any(path.startswith(f"{name}/") for name in _SYSTEM)


def is_separate(config: TaskConfig) -> bool:
    """Return whether the verifier sees the artifacts alone. Raises TaskError where steps disagree."""
    whole = config.verifier.mode or "shared"
    modes = {step.verifier.mode or whole for step in config.steps or ()} or {whole}
    if len(modes) > 1:
        raise TaskError(
            "some of its steps have a separate verifier and some a shared one, which Hone does not mix"
        )
    return modes == {"separate"}


def plain_env(env: Mapping[str, str], where: str) -> Mapping[str, str]:
    """Return variables. Raises TaskError for a value that is a variable of this machine."""
    for name, value in env.items():
        if _TEMPLATE.search(value):
            raise TaskError(
                f"{where}.{name} takes {value!r} from this machine, which no sandbox of Hone may see: write "
                "the value itself"
            )
    return env


def allowed(hosts: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return an allow-list as `host:port`. Raises TaskError for what a proxy by name cannot enforce."""
    for host in hosts or ():
        if not _HOST.fullmatch(host.strip().lower().rstrip(".")):
            raise TaskError(
                f"it allows {host!r}: Hone's proxy allows single hosts by name or IPv4 address, not "
                "patterns or ranges"
            )
    return tuple(f"{host.strip().lower().rstrip('.')}:{port}" for host in hosts or () for port in _PORTS)


def _inside(root: str, roots: list[str]) -> bool:
    return any(root.startswith(f"{other}/") for other in roots)


def _phases(config: TaskConfig) -> Iterator[tuple[str, Phase]]:
    yield "agent", config.agent
    yield "verifier", config.verifier
    for step in config.steps or ():
        yield f"steps.{step.name}.agent", step.agent
        yield f"steps.{step.name}.verifier", step.verifier


def _network(environment: Environment, phase: Phase, name: str) -> tuple[str, ...]:
    mode, hosts = phase.network_mode or environment.network, phase.allowed_hosts or environment.allowed_hosts
    if mode == "allowlist":
        return allowed(hosts)
    return ()


def _check_environment(environment: Environment, files: Mapping[str, str], where: str) -> None:
    """Raise TaskError for what no sandbox of Hone has."""
    missing = {
        "Docker Compose": any(name.endswith(("docker-compose.yaml", "docker-compose.yml")) for name in files),
        "Windows": environment.os == "windows",
        "GPUs": bool(environment.gpus or environment.gpu_types),
        "a TPU": environment.tpu is not None,
        "MCP servers": bool(environment.mcp_servers),
        "a skills directory": environment.skills_dir is not None,
        "a health check": environment.healthcheck is not None,
    }
    if wanted := [name for name, needed in missing.items() if needed]:
        raise TaskError(f"its {where} needs {', '.join(wanted)}, which Hone's sandboxes do not have")
    if not environment.docker_image and DOCKERFILE not in files and where == "environment":
        raise TaskError(f"it has neither environment.docker_image nor {DOCKERFILE}")


def dockerfile_workdir(files: Mapping[str, str]) -> str:
    """Return the last WORKDIR of the Dockerfile, where the task names none. Raises TaskError."""
    found = "/"
    if DOCKERFILE in files:
        found = last_workdir(read_instructions(text_of(files, DOCKERFILE)))
    if found == "/" or "$" in found:
        raise TaskError("it names no directory to work in: set environment.workdir, such as /app")
    return found


def _stages(config: TaskConfig, files: Mapping[str, str]) -> Iterator[Stage]:
    if not config.steps:
        yield _stage(config, None, files)
    for step in config.steps or ():
        if any(True for _ in below(files, f"steps/{step.name}/workdir")):
            raise TaskError(
                f"its step {step.name} brings files (steps/{step.name}/workdir) between the steps, "
                "which Hone does only under `harbor run`"
            )
        if step.healthcheck is not None:
            raise TaskError(f"its step {step.name} needs a health check, which Hone's sandboxes do not have")
        yield _stage(config, step, files)


def _stage(config: TaskConfig, step: Step | None, files: Mapping[str, str]) -> Stage:
    verifier = config.verifier if step is None else step.verifier
    environment = verifier.environment or config.verifier.environment
    if environment is not None:
        _check_environment(environment, {}, "verifier.environment")
        if environment.docker_image not in (None, config.environment.docker_image):
            raise TaskError(
                f"its verifier runs in the image {environment.docker_image}, but Hone grades in that of "
                "the agent"
            )
    name = step.name if step is not None else ""
    env = {**config.verifier.env, **(verifier.env if step is not None else {})}
    timeout_s = verifier.timeout_sec if step is None or "timeout_sec" in verifier.model_fields_set else None
    least = step.min_reward if step is not None else None
    return Stage(
        name=name,
        tests=tests_of(files, name),
        env=plain_env(env, "verifier.env"),
        timeout_s=timeout_s or config.verifier.timeout_sec or 600.0,
        network=_network(environment or config.environment, _phase(config.verifier, verifier), "verifier"),
        min_reward=dict(least) if isinstance(least, dict) else {} if least is None else {"reward": least},
    )


def _phase(whole: Phase, own: Phase) -> Phase:
    return own if own.network_mode is not None else whole


# --- the solution


def solutions_of(files: Mapping[str, str], stages: Iterable[Stage]) -> list[Mapping[str, str]]:
    """Return the packed files of each stage's solution, by path below /solution; none without one."""
    found: list[Mapping[str, str]] = []
    for stage in stages:
        own = dict(below(files, f"steps/{stage.name}/solution")) if stage.name else {}
        found.append(own or dict(below(files, "solution")))
    return found


def solution_commands(files: Mapping[str, str]) -> list[str]:
    """Return commands that bring each solution of a task into a sandbox and run it. Raises TaskError."""
    harbor = read_task(files)
    commands: list[str] = []
    for packed in filter(None, solutions_of(files, harbor.stages)):
        lines = ["rm -rf /solution"]
        for name, text in packed.items():
            data, executable = unpack(text)
            path, content = shlex.quote(f"/solution/{name}"), base64.b64encode(data).decode()
            lines.append(f'mkdir -p "$(dirname {path})" && echo {content} | base64 -d > {path}')
            if executable or name == _SOLVE:
                lines.append(f"chmod +x {path}")
        env = plain_env(harbor.config.solution.env, "solution.env")
        variables = "".join(f"{name}={shlex.quote(value)} " for name, value in env.items())
        commands.append("\n".join([*lines, f"{variables}/solution/{_SOLVE} < /dev/null"]))
    return commands
