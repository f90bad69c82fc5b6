"""Pull many images from a list, through a proxy if there is one, and report those that failed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.sandbox.contract import ImageUnavailable
from hone.sandbox.images.reference import parse
from hone.sandbox.images.skopeo import Report, is_retryable
from hone.sandbox.images.store import ImageStore
from hone.utils.concurrency import task_group
from hone.utils.retry import retry


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The source of an image and the number of retries.

    Example: proxy `mirror.lan:5000/hub/` and prefix `docker.io/` fetch docker.io/library/x:v1 as
    mirror.lan:5000/hub/library/x:v1.
    """

    proxy: str = ""
    prefix: str = ""  # replaced by the proxy at the front of a full name
    retries: int = 0
    retry_sleep_s: float = 15.0

    def source(self, name: str) -> str:
        """Return the name to fetch for the image that is stored as `name`."""
        return self.proxy + parse(name).name.removeprefix(self.prefix) if self.proxy else name


def read_list(file: Path) -> list[str]:
    """Return the names in a file, one per line, each once; # starts a comment."""
    lines = (line.partition("#")[0].strip() for line in file.read_text().splitlines())
    return list(dict.fromkeys(line for line in lines if line))


async def prepull(
    store: ImageStore,
    names: Sequence[str],
    route: Route,
    renew: Collection[str] = (),
    *,
    at_once: int = 3,
    report: Report = lambda _: None,
    done: Callable[[], None] = lambda: None,
) -> dict[str, str]:
    """Pull images; return the error message of each that failed.

    Args:
        renew: names to pull even when they are stored; other stored names are skipped.
        done: called for each image, pulled or not.
    Raises:
        ProviderUnavailable: no image can be pulled, because a program is missing.
    """
    gate = asyncio.Semaphore(at_once)
    failures: dict[str, str] = {}

    async def pull(name: str) -> None:
        if name in renew or await store.find(name) is None:
            await store.pull(route.source(name), name=name, report=lambda text: report(f"{name}: {text}"))

    async def pull_with_retries(name: str) -> None:
        async with gate:
            try:
                await retry(
                    lambda: pull(name),
                    attempts=1 + route.retries,
                    delays=itertools.repeat(route.retry_sleep_s),
                    transient=is_retryable,
                )
            except ImageUnavailable as error:
                failures[name] = str(error)
            done()

    async with task_group() as group:
        for name in names:
            group.create_task(pull_with_retries(name))
    return {name: failures[name] for name in names if name in failures}
