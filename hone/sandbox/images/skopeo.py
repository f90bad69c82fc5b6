"""Fetch images with skopeo, at most a few at a time from one registry, and explain its errors."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hone.sandbox.contract import ImageProblem, ImageUnavailable, ProviderUnavailable
from hone.sandbox.images.locks import Staging, child, disk_usage, wait_for_one
from hone.sandbox.images.records import check_machine
from hone.sandbox.images.sources import Source
from hone.utils.retry import backoff_delays, retry

STALL_S = 180.0  # without a byte; an engine may take a minute before it exports the first one
POLL_S = 0.5
Report = Callable[[str], None]  # receives progress messages
PULLS_PER_REGISTRY = 3  # at a time, of all processes that share a store
ATTEMPTS = 5
FIRST_DELAY_S = 1.0  # doubled after every attempt
LAYOUT = "image"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    pattern: str  # regular expression of skopeo's message
    problem: ImageProblem
    message: str  # with the image's name
    retryable: bool = False


_FAILURES = (  # the first whose pattern matches
    _Failure(
        pattern="no space left on device|disk quota exceeded",
        problem="disk_full",
        message="the disk is full while {} is fetched: free some space, or lower sandbox.images_gib",
    ),
    _Failure(
        pattern="no image found in (manifest list|image index)",
        problem="other_architecture",
        message="{} has no image for this machine",
    ),
    _Failure(
        pattern=r"(manifest|name|repository name) (unknown|not known)|404 \(Not Found\)|No such image"
        "|no such file or directory|reference does not exist|not found",
        problem="unknown_image",
        message="there is no image {}",
    ),
    _Failure(
        pattern=r"unauthorized|denied|\b40[13]\b",
        problem="registry_unavailable",
        message="the registry refuses {}: it does not exist there, or needs a login (skopeo login)",
    ),
    _Failure(
        pattern="server gave HTTP response to HTTPS client|x509:",
        problem="registry_unavailable",
        message="the registry of {} has no valid certificate; if you trust it, pass --insecure-registry",
    ),
    _Failure(
        pattern="did not match|does not match|incorrect size|invalid (tar header|checksum|character)"
        "|gzip: invalid|[Uu]nsupported MIME type|error parsing|unexpected (end of|EOF)|loading tar component",
        problem="damaged_image",
        message="{} is damaged",
    ),
    _Failure(
        pattern=r"too ?many ?requests|\b429\b|\b5\d\d\b|connection re(fused|set)|no such host|timeout"
        "|timed out|server misbehaving|unreachable|EOF|broken pipe|Cannot connect to the Docker daemon|TLS",
        problem="registry_unavailable",
        message="the source of {} does not answer",
        retryable=True,
    ),
)


async def skopeo(arguments: Sequence[str], image: str, made: Staging, report: Report = lambda _: None) -> str:
    """Run skopeo in a staging directory and return its stdout.

    Relative paths keep colons out of its arguments, where skopeo takes them for separators.

    Raises:
        ProviderUnavailable: skopeo is missing.
        ImageUnavailable: it failed; `retryable` when the failure may pass.
    """
    if shutil.which("skopeo") is None:
        raise ProviderUnavailable(
            "skopeo, which fetches images, is missing; install it: apt-get install skopeo", retryable=False
        )
    command = ["skopeo", "--tmpdir", ".", *arguments]
    env = _environment(made.directory)
    async with child(command, made, stderr=asyncio.subprocess.PIPE, env=env) as (process, output):
        if not await _watch(output, made.directory, report):
            raise ImageUnavailable(
                f"no byte of {image} arrived for {STALL_S:.0f} seconds",
                problem="registry_unavailable",
                retryable=True,
            )
        stdout, stderr = output.result()
    if process.returncode:
        raise explain(stderr.decode("utf-8", "replace"), image)
    return stdout.decode("utf-8", "replace")


def is_retryable(error: Exception) -> bool:
    """Return whether an error is an image that may be available later."""
    return isinstance(error, ImageUnavailable) and error.retryable


def _environment(staging: Path) -> dict[str, str]:
    """Without a runtime directory, skopeo looks for logins in root's and fails if it may not read it."""
    here = dict(os.environ)
    if not os.access(f"/run/containers/{os.getuid()}", os.X_OK):
        here.setdefault("XDG_RUNTIME_DIR", str(staging))
    return here


async def _watch(done: asyncio.Task[tuple[bytes, bytes]], directory: Path, report: Report) -> bool:
    """Wait until `done`; return False when the files in `directory` have not grown for STALL_S."""
    clock = asyncio.get_running_loop().time
    size, grown = -1, clock()
    while not done.done():
        await asyncio.wait([done], timeout=POLL_S)
        now = await asyncio.to_thread(disk_usage, directory)
        if now != size:
            size, grown = now, clock()
            report(f"fetched {size >> 20} MiB")
        elif clock() - grown > STALL_S:
            return False
    return True


def explain(stderr: str, image: str) -> ImageUnavailable:
    """Return the error of the contract for skopeo's stderr."""
    reason = _reason(stderr)
    repository = image.rpartition("@")[0] or image.rpartition(":")[0]
    message = re.sub(r"manifest \S+ in", "", reason.replace(image, "").replace(repository, ""))
    for failure in _FAILURES:
        if re.search(failure.pattern, message):
            text = f"{failure.message.format(image)} ({reason})"
            return ImageUnavailable(text, problem=failure.problem, retryable=failure.retryable)
    return ImageUnavailable(f"{image} cannot be fetched ({reason})", problem="registry_unavailable")


def _reason(stderr: str) -> str:
    """Return the last fatal message of skopeo's log, or all of its output."""
    logged = re.findall(r'level=fatal msg="((?:[^"\\]|\\.)*)"', stderr)
    message = logged[-1].replace('\\"', '"') if logged else " ".join(stderr.split()) or "it gave no reason"
    return re.sub(r'^Error parsing image name "[^"]*": ', "", message)[-400:]


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
    arguments = ["inspect", "--no-tags", *source.flags, source.transport]
    described: dict[str, Any] = json.loads(await skopeo(arguments, source.name, made))
    check_machine(source.name, str(described.get("Os")), str(described.get("Architecture")))
    for digest in described.get("Layers") or ():
        name = Path(str(digest).removeprefix("sha256:")).name
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            os.link(blobs / name, made.blobs / name)


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
