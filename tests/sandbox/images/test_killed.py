"""After a kill, opening the store removes unfinished files, and the next pull succeeds."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hone.sandbox.images import ImageStore, layers
from tests.sandbox.images.answering import answering
from tests.sandbox.images.oci import entry, listing, make_layout, push, tar
from tests.sandbox.images.traces import left
from tests.services.registry import Registry
from tests.waiting import wait_until

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


def wait_while_running(condition: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
    wait_until(lambda: condition() or process.poll() is not None)
    assert process.poll() is None, "it ended before it could be killed"


def workers(directory: Path) -> list[int]:
    """Return the processes whose command line or working directory is in a directory."""
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
    wait_until(lambda: not workers(directory) and not any(map(runs, busy)), "a child outlived it")


@pytest.mark.full
def test_killed_during_the_fetch(directory: Path, registry: Registry, tmp_path: Path) -> None:
    layout = make_layout(tmp_path / "layout", [tar(entry("f", os.urandom(1 << 20)))])
    push(layout, f"{registry.address}/fetching:v1")
    hold = threading.Event()
    with answering([], then=registry.address, hold=hold) as slow:
        name = f"{slow.address}/fetching:v1"
        process = start(directory, name)
        wait_while_running(lambda: slow.requests, process)
        assert len(list((directory / "staging").iterdir())) == 1
        kill(process, directory)
        hold.set()
        store = ImageStore(directory, budget_gib=1)
        assert left(directory) == []
        image = asyncio.run(store.ensure(name))
    assert list(listing(image.layers[0])) == ["f"]
    assert [place for place in left(directory) if place.startswith(("staging", "locks"))] == []


def test_killed_during_the_unpacking(directory: Path, registry: Registry, tmp_path: Path) -> None:
    files = [entry(f"d/{n}", os.urandom(2000)) for n in range(4000)]
    layout = make_layout(tmp_path / "layout", [tar(*files), tar(entry("small", b"x"))])
    name = push(layout, f"{registry.address}/unpacking:v1")
    slow = tmp_path / "unpack.py"  # takes seconds on any machine, so the kill comes before its end
    first = "from __future__ import annotations\n"
    head, _, rest = Path(layers.unpack.__file__).read_text().partition(first)
    slow.write_text(head + first + _SLOWLY + rest)
    process = start(directory, name, slow)
    wait_while_running(lambda: list(directory.glob("staging/*/layer-*/d/1*")), process)
    kill(process, directory)
    assert len(list(directory.glob("staging/*/layer-*/d/*"))) < 4000, "the unpacking process outlived it"
    store = ImageStore(directory, budget_gib=1)
    assert list((directory / "staging").iterdir()) == []
    assert list((directory / "records").iterdir()) == []
    image = asyncio.run(store.ensure(name))
    assert len(listing(image.layers[0])) == 4001
    assert [place for place in left(directory) if place.startswith(("staging", "locks"))] == []
    assert len(list((directory / "layers").iterdir())) == 2


_KILL_ITSELF = """
import os, signal, sys
from pathlib import Path

calls_left = int(sys.argv.pop())

def counted(function):
    def call(*arguments):
        global calls_left
        if calls_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        calls_left -= 1
        return function(*arguments)
    return call

os.link = counted(os.link)
Path.rename = counted(Path.rename)
"""


@pytest.mark.full
def test_killed_before_each_change_of_the_store(directory: Path, registry: Registry, tmp_path: Path) -> None:
    layers = [tar(*(entry(f"{layer}/{n}", b"x" * 3000) for n in range(100))) for layer in "ab"]
    name = push(make_layout(tmp_path / "layout", layers), f"{registry.address}/changes:v1")
    kills, code = 0, -1
    while code != 0:  # kill it before its first rename or link, then before its second, ...
        script = _KILL_ITSELF + _PULL
        process = subprocess.Popen([sys.executable, "-c", script, str(directory), name, str(kills)])
        code = process.wait(timeout=120)
        assert code in (0, -signal.SIGKILL)
        wait_until(lambda: not workers(directory), "a child outlived it")
        store = ImageStore(directory, budget_gib=1)
        for image in asyncio.run(store.list()):
            assert [len(listing(layer)) for layer in image.layers] == [101] * 2
        asyncio.run(store.prune(0))
        assert left(directory) == []
        kills += 1
    assert kills > 2 + 4 + 2, "2 layers, 4 blobs, a record and a name"


_USE = """
import asyncio, sys
from pathlib import Path
from hone.sandbox.images import ImageStore

store = ImageStore(Path(sys.argv[1]), budget_gib=1)
with store.use(asyncio.run(store.ensure(sys.argv[2]))):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_kill_releases_the_image_in_use(directory: Path, registry: Registry, tmp_path: Path) -> None:
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
