"""Unpack a layer in a process that has access to its target directory only."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from pathlib import Path

from hone.sandbox.contract import ImageUnavailable, ProviderUnavailable
from hone.sandbox.images import unpack
from hone.sandbox.images.locks import kill
from hone.sandbox.namespaces import doctor

MAX_ENTRIES = 1_000_000  # of one layer; large ones with several Pythons have 300,000
MAX_RATIO, FREE_BYTES = 100, 1 << 30  # a layer may unpack to so many times its size, and so much more
TIMEOUT_S = 3600.0
_MAX_REPLY_BYTES = 1 << 16


async def unpack_layer(blob: Path, diff_id: str, directory: Path, *, image: str, budget_bytes: int) -> None:
    """Unpack `blob` into the empty `directory`.

    Raises:
        ImageUnavailable: the layer is damaged, unpacks to too much, or the disk is full.
        ProviderUnavailable: bubblewrap is missing, or the file system cannot hold layers.
    """
    max_bytes = min(budget_bytes, FREE_BYTES + MAX_RATIO * (await asyncio.to_thread(blob.stat)).st_size)
    with blob.open("rb") as source:
        process = await asyncio.create_subprocess_exec(
            *_confined(directory, diff_id, max_bytes),
            stdin=source,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    output = asyncio.create_task(_read_tail(process))
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reply = await asyncio.shield(output)
    except TimeoutError:
        why = f"unpacking the layer {diff_id} of {image} takes more than {TIMEOUT_S:.0f} seconds"
        raise ImageUnavailable(why, problem="damaged_image") from None
    finally:
        await kill(process, output)
    kind, detail = _parse(reply)
    if kind:
        raise _error(kind, detail, f"the layer {diff_id} of {image}", max_bytes, budget_bytes)


async def _read_tail(process: asyncio.subprocess.Process) -> bytes:
    """Return the end of a process's output, which may be any bytes and any amount, after its exit."""
    assert process.stdout is not None
    kept = b""
    while piece := await process.stdout.read(_MAX_REPLY_BYTES):
        kept = (kept + piece)[-_MAX_REPLY_BYTES:]
    await process.wait()
    return kept


def _parse(reply: bytes) -> tuple[str, str]:
    """Return kind and detail of the error in a reply, which may be any bytes; ("", "") for success."""
    last = (reply.decode("utf-8", "replace").strip().splitlines() or ["nothing"])[-1]
    if last.startswith("bwrap:"):
        return "not started", last
    try:
        outcome = json.loads(last)
        return ("", "") if outcome.get("ok") is True else (str(outcome["error"]), str(outcome["detail"]))
    except (ValueError, KeyError, AttributeError):
        return "damaged", f"unpacking it ended with {last[-200:]!r}"


def _error(kind: str, detail: str, layer: str, max_bytes: int, budget_bytes: int) -> ProviderUnavailable:
    match kind:
        case "not started":
            return doctor.start_error(detail)
        case "disk_full":
            return disk_full(f"the disk is full while {layer} is unpacked")
        case "too_large" if max_bytes == budget_bytes:
            return disk_full(f"{layer} is larger than all images may be together")
        case "too_large":
            why = f"{layer} unpacks to more than {max_bytes >> 20} MiB"
            return ImageUnavailable(why, problem="damaged_image")
        case "too_many":
            why = f"{layer} has more than {MAX_ENTRIES} files"
            return ImageUnavailable(why, problem="damaged_image")
        case "unsupported":
            why = f"the file system of the images cannot hold {layer} ({detail})"
            advice = "set sandbox.cache_dir to one with user attributes, such as ext4 or xfs"
            return ProviderUnavailable(f"{why}: {advice}", retryable=False)
        case _:
            return ImageUnavailable(f"{layer} is damaged: {detail}", problem="damaged_image")


def disk_full(why: str) -> ImageUnavailable:
    """Return the error for a full disk or an exceeded budget."""
    return ImageUnavailable(
        f"{why}: free some space, or raise sandbox.images_gib, the budget of all images",
        problem="disk_full",
    )


def _confined(directory: Path, diff_id: str, max_bytes: int) -> list[str]:
    """Return the command that unpacks its standard input into `directory`, isolated from everything else."""
    bwrap = doctor.require_bubblewrap()
    visible: list[str] = ["--ro-bind", "/usr", "/usr"]
    for path in map(Path, ("/lib", "/lib64", "/lib32", "/bin")):
        if path.is_symlink():
            visible += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            visible += ["--ro-bind", str(path), str(path)]
    if sys.base_prefix != "/usr":
        visible += ["--ro-bind", sys.base_prefix, sys.base_prefix]
    visible += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    visible += ["--ro-bind", str(Path(unpack.__file__)), "/unpack.py"]
    pyarrow = importlib.util.find_spec("pyarrow")
    assert pyarrow and pyarrow.origin, "a requirement of Hone"  # noqa: PT018
    visible += ["--ro-bind", str(Path(pyarrow.origin).parent), "/modules/pyarrow"]
    return [
        *(bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"),
        *visible,
        *("--bind", str(directory), "/layer", "--remount-ro", "/", "--chdir", "/layer", "--"),
        *(str(Path(sys.executable).resolve()), "-I", "-S", "/unpack.py"),
        *("/layer", diff_id, str(max_bytes), str(MAX_ENTRIES), "/modules"),
    ]
