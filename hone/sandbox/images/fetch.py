"""Copy an image from its source into a staging directory, at most a few at a time from one registry."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hone.sandbox.contract import ImageUnavailable
from hone.sandbox.images.locks import wait_for_one
from hone.sandbox.images.records import check_machine, other_machine
from hone.sandbox.images.skopeo import Report, is_retryable, skopeo
from hone.sandbox.images.sources import Source
from hone.sandbox.images.staging import Staging
from hone.utils.retry import backoff_delays, retry

PULLS_PER_REGISTRY = 3  # at a time, of all processes that share a store
ATTEMPTS = 5
FIRST_DELAY_S = 1.0  # doubled after every attempt
LAYOUT = "image"


async def fetch(source: Source, made: Staging, *, blobs: Path, locks: Path, report: Report) -> str:
    """Copy the image's blobs into `made.blobs`; return the digest of its OCI manifest.

    Args:
        blobs: directory of stored blobs, which are not fetched again.
    Raises:
        ImageUnavailable: `retryable` when the registry answered no attempt.
    """
    if not source.registry:
        return await _copy(source, made, report)
    names = [f"registry-{quote(source.registry, safe='')}-{number}" for number in range(PULLS_PER_REGISTRY)]

    async def attempt() -> str:
        await _link_known(source, made, blobs)
        return await _copy(source, made, report)

    report("waiting for other pulls")
    with await wait_for_one([locks / name for name in names]):
        return await retry(
            attempt,
            attempts=ATTEMPTS,
            delays=backoff_delays(FIRST_DELAY_S, jitter=0.5),
            transient=is_retryable,
            on_retry=lambda _, delay_s: report(f"the registry does not answer, again in {delay_s:.0f} s"),
        )


async def _link_known(source: Source, made: Staging, blobs: Path) -> None:
    """Link the stored blobs where skopeo looks for them."""
    try:
        described = await _inspect(source, made, "--no-tags")
    except ImageUnavailable as error:
        if error.problem != "other_architecture":
            raise
        listed = (await _inspect(source, made, "--raw")).get("manifests") or ()
        platforms: list[dict[str, Any]] = [manifest.get("platform") or {} for manifest in listed]
        offered = (f"{platform.get('os')}/{platform.get('architecture')}" for platform in platforms)
        raise other_machine(source.name, ", ".join(sorted(set(offered)))) from None
    check_machine(source.name, str(described.get("Os")), str(described.get("Architecture")))
    for digest in described.get("Layers") or ():
        name = Path(str(digest).removeprefix("sha256:")).name
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            os.link(blobs / name, made.blobs / name)


async def _inspect(source: Source, made: Staging, form: str) -> dict[str, Any]:
    return json.loads(await skopeo(["inspect", form, *source.flags, source.transport], source.name, made))


async def _copy(source: Source, made: Staging, report: Report) -> str:
    flags = [flag.replace("--", "--src-", 1) for flag in source.flags]
    await skopeo(
        [
            *("copy", "--quiet", "--remove-signatures", *flags, "--dest-shared-blob-dir", "blobs"),
            *(source.transport, f"oci:{LAYOUT}:latest"),
        ],
        source.name,
        made,
        report,
    )
    index: dict[str, Any] = json.loads((made.directory / LAYOUT / "index.json").read_bytes())
    return str(index["manifests"][0]["digest"])
