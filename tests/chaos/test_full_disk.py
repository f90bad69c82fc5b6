"""Disks that are full below the pool's store and below a node: typed errors, and recovery with the space."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.chaos.client_process import Ended
from tests.chaos.stack import LONG_TTL_S, UPLOAD_BYTES, Stack, stack
from tests.services.process import require

pytestmark = [pytest.mark.sandbox, pytest.mark.full]


@contextlib.contextmanager
def full(disk: Path) -> Iterator[None]:
    """Nothing more can be written to a disk in the block."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 10))
    try:
        yield
    finally:
        filler.unlink()


def mount(disk: Path, size: str) -> None:
    """A small disk; unmounted with the directory of the stack."""
    disk.mkdir(mode=0o700, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "none", str(disk)], check=True)


def outcome(floor: Stack, call: str) -> Ended:
    client = floor.client(call)
    try:
        client.call()
        ended = client.ended()
        client.leave()
    finally:
        client.kill()
    return ended


def test_a_full_disk_below_the_store_refuses_leases_and_loses_none() -> None:
    require()

    def prepare(folder: Path) -> Mapping[str, str]:
        mount(folder / "store", "8m")
        return {}

    with stack(ttl_s=LONG_TTL_S, prepare=prepare) as floor, floor.caught("exec") as (client, _):
        with full(floor.folder / "store"):
            ended = outcome(floor, "start")
            assert "ProviderUnavailable" in ended.raised
            assert "the pool's store cannot be written" in ended.said
        assert outcome(floor, "start").said == "0"
        floor.pool.kill()
        floor.pool.start()  # what was written is whole
        client.finish_commands()
        assert client.ended().said == "137"
        client.leave()
        floor.assert_healed()


def test_a_full_disk_below_a_node_fails_uploads_and_leaves_nothing_half_made() -> None:
    require()

    def prepare(folder: Path) -> Mapping[str, str]:
        mount(folder / "cache", "96m")
        return {"XDG_CACHE_HOME": str(folder / "cache")}

    with stack(prepare=prepare) as floor:
        with full(floor.folder / "cache"):
            ended = outcome(floor, "upload")
            assert "SandboxError" in ended.raised or "OSError" in ended.raised, ended
            assert "No space left" in ended.said
            floor.assert_healed()
        assert outcome(floor, "upload").said == str(UPLOAD_BYTES)
        floor.assert_healed()


def test_a_node_whose_disk_is_full_does_not_start_and_says_so_in_a_sentence() -> None:
    require()

    def prepare(folder: Path) -> Mapping[str, str]:
        mount(folder / "node-0" / "run", "16m")
        return {}

    with stack(prepare=prepare) as floor:
        disk = floor.node.folder / "run"
        floor.node.stop()
        with full(disk):
            done = subprocess.run(
                floor.node.command, env=floor.node.environment(), capture_output=True, text=True, timeout=60
            )
            assert done.returncode != 0
            assert f"hone: the disk is full ({disk}/" in done.stderr, done.stderr
            assert "Traceback" not in done.stderr, done.stderr
            assert [path for path in disk.rglob("*") if path.name not in ("hone", "filler")] == []
        floor.node.start()
        assert outcome(floor, "start").said == "0"
        floor.assert_healed()
