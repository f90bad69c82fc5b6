"""Killed in the middle: the next opening finds nothing half-made, and the next pull works."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hone.sandbox.images import ImageStore, layers
from tests.sandbox.images.answering import answering
from tests.sandbox.images.oci import entry, listing, make_layout, push, tar
from tests.sandbox.images.traces import left
from tests.services.registry import Registry

pytestmark = pytest.mark.sandbox

_PULL = """
import asyncio, sys
from pathlib import Path
from hone.sandbox.images import ImageStore, layers

if sys.argv[3:]:
    layers.unpack.__file__ = sys.argv[3]
asyncio.run(ImageStore(Path(sys.argv[1]), budget_gib=1).ensure(sys.argv[2]))
"""
_SLOWLY = """
import os, time
_open = os.open

def _open_slowly(*arguments, **options):
    time.sleep(0.002)
    return _open(*arguments, **options)

os.open = _open_slowly
"""


def start(directory: Path, name: str, *unpack: Path) -> subprocess.Popen[bytes]:
    """Pull in another process; `unpack` is the program that unpacks there."""
    return subprocess.Popen([sys.executable, "-c", _PULL, str(directory), name, *map(str, unpack)])


def wait_until(condition: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it never came so far"
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.001)


def workers(directory: Path) -> list[int]:
    """Processes that work below a directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            named = str(directory).encode() in (process / "cmdline").read_bytes()
            if named or (process / "cwd").readlink().is_relative_to(directory):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def runs(pid: int) -> bool:
    """Whether any thread of a process is left, which may hold its locks when its first one has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return "State:\tZ" not in status or "Threads:\t1\n" not in status


def kill(process: subprocess.Popen[bytes], directory: Path) -> None:
    busy = workers(directory)
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 60
    while workers(directory) or any(map(runs, busy)):
        assert time.monotonic() < deadline, "what it had started outlived it"
        time.sleep(0.01)


def test_killed_while_it_fetches(directory: Path, registry: Registry, tmp_path: Path) -> None:
    layout = make_layout(tmp_path / "layout", [tar(entry("f", os.urandom(1 << 20)))])
    push(layout, f"{registry.address}/fetching:v1")
    hold = threading.Event()
    with answering([], then=registry.address, hold=hold) as slow:
        name = f"{slow.address}/fetching:v1"
        process = start(directory, name)
        wait_until(lambda: slow.asked, process)
        assert len(list((directory / "staging").iterdir())) == 1
        kill(process, directory)
        hold.set()
        store = ImageStore(directory, budget_gib=1)
        assert left(directory) == []
        image = asyncio.run(store.ensure(name))
    assert list(listing(image.layers[0])) == ["f"]
    assert [place for place in left(directory) if place.startswith(("staging", "locks"))] == []


def test_killed_while_it_unpacks(directory: Path, registry: Registry, tmp_path: Path) -> None:
    files = [entry(f"d/{n}", os.urandom(2000)) for n in range(4000)]
    layout = make_layout(tmp_path / "layout", [tar(*files), tar(entry("small", b"x"))])
    name = push(layout, f"{registry.address}/unpacking:v1")
    slow = tmp_path / "unpack.py"  # works for seconds, so that the kill meets it however quick the machine is
    first = "from __future__ import annotations\n"
    head, _, rest = Path(layers.unpack.__file__).read_text().partition(first)
    slow.write_text(head + first + _SLOWLY + rest)
    process = start(directory, name, slow)
    wait_until(lambda: list(directory.glob("staging/*/layer-*/d/1*")), process)
    kill(process, directory)
    assert len(list(directory.glob("staging/*/layer-*/d/*"))) < 4000, "what unpacks outlived it"
    store = ImageStore(directory, budget_gib=1)
    assert list((directory / "staging").iterdir()) == []
    assert list((directory / "records").iterdir()) == []
    image = asyncio.run(store.ensure(name))
    assert len(listing(image.layers[0])) == 4001
    assert [place for place in left(directory) if place.startswith(("staging", "locks"))] == []
    assert len(list((directory / "layers").iterdir())) == 2


def test_killed_at_any_moment(directory: Path, registry: Registry, tmp_path: Path) -> None:
    layers = [tar(*(entry(f"{layer}/{n}", b"x" * 3000) for n in range(300))) for layer in "abc"]
    name = push(make_layout(tmp_path / "layout", layers), f"{registry.address}/moments:v1")
    started = time.monotonic()
    ImageStore(directory, budget_gib=1)
    assert start(directory, name).wait(timeout=120) == 0
    whole_s = time.monotonic() - started
    for step in range(12):
        asyncio.run(ImageStore(directory, budget_gib=1).prune(0))
        process = start(directory, name)
        try:
            process.wait(timeout=whole_s * (step + 1) / 12)
        except subprocess.TimeoutExpired:
            kill(process, directory)
    store = ImageStore(directory, budget_gib=1)
    image = asyncio.run(store.ensure(name))
    assert [len(listing(layer)) for layer in image.layers] == [301] * 3
    asyncio.run(store.prune(0))
    deadline = time.monotonic() + 30
    while left(directory) and time.monotonic() < deadline:  # a child of the killed may have been dying still
        ImageStore(directory, budget_gib=1)
        time.sleep(0.05)
    assert left(directory) == []


_USE = """
import asyncio, sys
from pathlib import Path
from hone.sandbox.images import ImageStore

store = ImageStore(Path(sys.argv[1]), budget_gib=1)
with store.use(asyncio.run(store.ensure(sys.argv[2]))):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_process_used_is_free(directory: Path, registry: Registry, tmp_path: Path) -> None:
    name = push(make_layout(tmp_path / "layout", [tar(entry("f", b"x"))]), f"{registry.address}/held:v1")
    store = ImageStore(directory, budget_gib=1)
    image = asyncio.run(store.ensure(name))
    process = subprocess.Popen(
        [sys.executable, "-c", _USE, str(directory), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    assert asyncio.run(store.prune(0)) == 0
    process.kill()
    process.communicate()
    assert asyncio.run(store.prune(0)) == 1
    assert not image.layers[0].exists()
