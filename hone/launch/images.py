"""Build the images of tasks before the first sandbox needs them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from hone.environment import sandbox_image
from hone.sandbox import ProviderUnavailable, make_provider
from hone.sandbox.settings import SandboxSettings
from hone.tasks.harbor import HarborTask, is_harbor, read_task
from hone.types import Task
from hone.utils.concurrency import task_group


def dockerfiles_of(tasks: Sequence[Task]) -> Mapping[str, HarborTask]:
    """Return the first task of each Dockerfile to build, by the id of that task. Raises TaskError."""
    found: dict[tuple[str, str], tuple[str, HarborTask]] = {}
    for task in tasks:
        if is_harbor(task) and (harbor := read_task(task.checks.folder)).context:
            found.setdefault((harbor.image, harbor.config.environment.network), (task.id, harbor))
    return dict(found.values())


async def build_images(
    wanted: Mapping[str, HarborTask],
    settings: SandboxSettings,
    *,
    at_once: int,
    done: Callable[[], None] = lambda: None,
) -> dict[str, str]:
    """Build images that are not stored; return the error messages of those that failed, by id of the task.

    Args:
        done: called for each image, built or not.
    Raises:
        ProviderUnavailable: the provider cannot be opened.
    """
    gate = asyncio.Semaphore(at_once)
    failures: dict[str, str] = {}
    async with make_provider(settings) as provider:

        async def build(name: str, harbor: HarborTask) -> None:
            async with gate:
                try:
                    await sandbox_image(harbor, provider)
                except ProviderUnavailable as error:
                    failures[name] = str(error)
                done()

        async with task_group() as group:
            for name, harbor in wanted.items():
                group.create_task(build(name, harbor))
    return {name: failures[name] for name in wanted if name in failures}
