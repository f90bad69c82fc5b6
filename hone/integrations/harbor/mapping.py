"""From what Harbor knows of a task to what Hone's sandboxes and grading take; pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hone.sandbox.contract import Limits
from hone.tasks.formats import harbor as harbor_format
from hone.tasks.harbor import PARSER, HarborTask, Stage
from hone.tasks.harbor.config import parse_config
from hone.tasks.harbor.folder import CONFIG, RECORD, TEST, read_folder, text_of
from hone.tasks.harbor.serve import allowed, result_roots, tests_of
from hone.types import Checks, Environment, Task


def exported_task(folder: Path) -> Task | None:
    """Return the task of Hone that a folder was exported from; else None. Raises TaskError."""
    if not (folder / RECORD).is_file():
        return None
    return harbor_format.to_task({"name": folder.name, "folder": read_folder(folder)})


def limits_of(
    default: Limits, *, cpus: float | None, memory_mb: int | None, storage_mb: int | None
) -> Limits:
    """Return the limits of a sandbox: those that the task asks for, and Hone's own for the rest."""
    return Limits(
        memory_mib=memory_mb or default.memory_mib,
        pids=default.pids,
        cpus=float(cpus or default.cpus),
        disk_mib=storage_mb or default.disk_mib,
        output_kib=default.output_kib,
    )


def network_of(mode: str, hosts: Sequence[str]) -> tuple[str, ...]:
    """Return the `host:port`s that a sandbox may reach. Raises TaskError for patterns and ranges."""
    return allowed(tuple(hosts)) if mode == "allowlist" else ()


def harbor_task(
    folder: Path,
    step: str | None,
    *,
    separate: bool,
    image: str,
    workdir: str,
    env: Mapping[str, str],
    uploads: Mapping[str, str],
    network: tuple[str, ...],
    verifier_env: Mapping[str, str],
    timeout_s: float,
) -> tuple[HarborTask, Task]:
    """Return a task as its environment runs it, with one stage: the verification that is due; and its checks.

    Harbor itself runs the steps, their files, health checks and variables, so none of these is refused here.

    Args:
        step: name of the step; None for a task without steps.
        separate: whether the environment is that of a separate verifier.
    Raises:
        TaskError: the configuration cannot be read, or the result would hold what the verifier runs.
    """
    files = read_folder(folder)
    config = parse_config(text_of(files, CONFIG))
    stage = Stage(
        name=step or "",
        tests=tests_of(files, step or ""),
        env=verifier_env,
        timeout_s=timeout_s,
        network=network,
        min_reward={},
    )
    harbor = HarborTask(
        config=config,
        image=image,
        workdir=workdir,
        roots=result_roots(config, workdir, separate=separate),
        env=env,
        network=network,
        uploads=uploads,
        stages=(stage,),
    )
    checks = Checks(
        fail_to_pass=(TEST,), pass_to_pass=(), test_files={}, gold_patch="", parser=PARSER, folder=files
    )
    environment = Environment(image=image, workdir=workdir)
    task = Task(id=folder.name, problem="", environment=environment, checks=checks, source=PARSER)
    return harbor, task
