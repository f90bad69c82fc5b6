"""Snapshots and forks: the file state of a sandbox, and nothing else, begins others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hone.sandbox import IncompleteSnapshot, Limits, Sandbox, SandboxError, SandboxLost, SandboxSpec, trees
from hone.sandbox.namespaces.provider import NamespacesProvider
from hone.sandbox.settings import SandboxSettings

pytestmark = pytest.mark.sandbox


def _with_provider(tmp_path: Path, scenario: Callable[[NamespacesProvider], Awaitable[None]]) -> None:
    async def run() -> None:
        settings = SandboxSettings(state_dir=tmp_path / "state", cache_dir=tmp_path.parent / "cache")
        async with NamespacesProvider(settings) as provider:
            await scenario(provider)
        assert list((tmp_path / "state").iterdir()) == []

    asyncio.run(run())


def test_fork_copies_the_files_and_is_independent(tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    (layer / "sub").mkdir(parents=True)
    (layer / "kept").write_text("kept\n")
    (layer / "sub/gone").write_text("gone\n")

    async def scenario(provider: NamespacesProvider) -> None:
        async with await provider.start(SandboxSpec(layer=layer)) as first:
            await first.exec(
                "rm -r sub && mkdir sub && echo new > sub/new && ln sub/new sub/other && ln -s sub link;"
                "echo changed > kept; touch /usr/bin/tool /etc/entry ~/note; chmod 751 sub;"
                "mkfifo pipe; sleep 1000 &"
            )
            async with await provider.fork(first) as second:
                seen = await second.exec(
                    "cat kept sub/new; ls sub; readlink link; stat -c %a sub; ls /usr/bin/tool /etc/entry;"
                    "ls ~; stat -c %h sub/new; pgrep -c sleep"
                )
                assert seen.text.split() == [
                    *("changed", "new", "new", "other", "sub", "751", "/etc/entry", "/usr/bin/tool"),
                    *("note", "2", "0"),
                ]
                await second.exec("echo second > kept; rm sub/other")
            assert (await first.exec("cat kept sub/other")).text == "changed\nnew\n"
        assert (layer / "sub/gone").read_text() == "gone\n"

    _with_provider(tmp_path, scenario)


def test_nested_forks_keep_removals(tmp_path: Path) -> None:
    async def scenario(provider: NamespacesProvider) -> None:
        sandbox = await provider.start(SandboxSpec())
        await sandbox.exec("echo 1 > one; mkdir d; echo d > d/file; rm -r /var/log")
        for number in range(2, 5):
            forked = await provider.fork(sandbox)
            await sandbox.close()
            sandbox = forked
            await sandbox.exec(
                f"echo {number} >> one; rm -r d; mkdir d; echo {number} > d/{number}; rm -f /var/tmp/x"
            )
        seen = await sandbox.exec("tr '\\n' ' ' < one; ls d; ls /var")
        assert seen.text.split() == ["1", "2", "3", "4", "4", "cache", "lib", "tmp"]
        await sandbox.close()

    _with_provider(tmp_path, scenario)


def test_snapshot_is_unchanged_by_its_sandboxes(tmp_path: Path) -> None:
    async def scenario(provider: NamespacesProvider) -> None:
        target = tmp_path / "snapshot"
        async with await provider.start(SandboxSpec()) as sandbox:
            await sandbox.exec("echo begun > state")
            await sandbox.snapshot(target)
            with pytest.raises(FileExistsError):
                await sandbox.snapshot(target)

        async def use(number: int) -> str:
            async with await provider.start(SandboxSpec(snapshot=target)) as sandbox:
                return (await sandbox.exec(f"echo {number} >> state; cat state")).text

        assert await asyncio.gather(*map(use, range(6))) == [f"begun\n{n}\n" for n in range(6)]

    _with_provider(tmp_path, scenario)


def test_snapshot_of_another_image_is_refused(tmp_path: Path) -> None:
    async def scenario(provider: NamespacesProvider) -> None:
        async with await provider.start(SandboxSpec()) as sandbox:
            await sandbox.snapshot(tmp_path / "of-host")
        (tmp_path / "root/bin").mkdir(parents=True)
        with pytest.raises(ValueError, match="a snapshot of host"):
            await provider.start(
                SandboxSpec(image=f"rootfs:{tmp_path / 'root'}", snapshot=tmp_path / "of-host")
            )
        with pytest.raises(ValueError, match="not a finished snapshot"):
            await provider.start(SandboxSpec(snapshot=tmp_path / "root"))

    _with_provider(tmp_path, scenario)


def test_snapshot_holds_two_plain_files_whatever_the_sandbox_has(tmp_path: Path) -> None:
    async def scenario(provider: NamespacesProvider) -> None:
        async with await provider.start(SandboxSpec(limits=Limits(disk_mib=64))) as sandbox:
            await sandbox.exec(
                f"ln -s {tmp_path} out; ln -s /etc/shadow shadow; cp /bin/true set; chmod 6755 set;"
                "touch \"$(printf 'a\\377b')\"; mkdir d; chmod 0 d; touch closed; chmod 0 closed; mkfifo pipe"
            )
            await sandbox.snapshot(tmp_path / "snapshot")
            files = [path for path in (tmp_path / "snapshot").iterdir() if path.is_file()]
            assert sorted(path.name for path in files) == ["data", "snapshot.json"]
        async with await provider.start(SandboxSpec(snapshot=tmp_path / "snapshot")) as sandbox:
            seen = await sandbox.exec("readlink out shadow; stat -c %a set d closed; ls pipe; ls | head -c 3")
        assert seen.stdout == f"{tmp_path}\n/etc/shadow\n755\n0\n0\n".encode() + b"a\xffb"

    _with_provider(tmp_path, scenario)


def test_failed_snapshot_leaves_nothing(tmp_path: Path) -> None:
    async def scenario(provider: NamespacesProvider) -> None:
        async with await provider.start(SandboxSpec()) as sandbox:
            deep = "import os\nfor _ in range(400):\n os.mkdir('d'); os.chdir('d')"
            assert (await sandbox.exec(["python3", "-c", deep])).exit_code == 0
            with pytest.raises(SandboxError, match="deeper"):
                await sandbox.snapshot(tmp_path / "deep")
            assert not (tmp_path / "deep").exists()
            assert (await sandbox.exec("echo fine")).text == "fine\n"
        with pytest.raises(SandboxLost):
            await sandbox.snapshot(tmp_path / "late")
        assert not (tmp_path / "late").exists()

    _with_provider(tmp_path, scenario)


# --- whole snapshots

# Prints all that a command can see of the files below some directories.
_SURVEY = """
import hashlib, os, stat, sys
for top in sys.argv[1:]:
    for folder, folders, files in os.walk(top):
        print(folder, os.listdir(folder))
        for path in [folder, *(os.path.join(folder, name) for name in files + folders)]:
            try:
                info = os.lstat(path)
            except PermissionError:  # in a folder that can be listed and not entered
                print([path])
                continue
            facts = [path, oct(info.st_mode), info.st_uid, info.st_gid, info.st_mtime_ns]
            if stat.S_ISLNK(info.st_mode):
                facts += [os.readlink(path), info.st_size]
            elif stat.S_ISREG(info.st_mode):
                content = open(path, "rb").read() if os.access(path, os.R_OK) else b""
                facts += [info.st_size, info.st_nlink, hashlib.md5(content).hexdigest()]
            print(facts)
"""
# As an agent leaves a sandbox: files made, changed, removed and linked, in workdir and elsewhere.
_WORK = """
mkdir made made/empty; echo 1 > made/a; ln made/a made/b; ln -s a made/link; ln -s /etc/passwd out
chmod 750 made; chmod 600 made/a; echo changed >> kept; rm -r sub; mkdir sub; echo new > sub/new
truncate -s 40M sparse; echo end >> sparse; touch -d 2001-02-03 old; touch -h -d 2002-03-04 made/link
echo x > /tmp/x; mkdir /tmp/build; echo y > /var/tmp/y; echo z > ~/z; rm /etc/hostname; echo t > /etc/tool
mkdir closed; echo s > closed/s; chmod 0 closed; touch "$(printf 'a\\377b')"; touch c b a
"""


async def survey(sandbox: Sandbox) -> str:
    places = ["/testbed", "/tmp", "/var", "/home", "/etc", "/run"]
    seen = await sandbox.exec(["python3", "-c", _SURVEY, *places])
    assert seen.exit_code == 0, seen.stderr
    return seen.text


def _layer(tmp_path: Path) -> Path:
    layer = tmp_path / "layer"
    (layer / "sub/deep").mkdir(parents=True)
    for name in ("kept", "sub/gone", "sub/deep/file"):
        (layer / name).write_text(name)
    return layer


async def _restored(provider: NamespacesProvider, sandbox: Sandbox, target: Path) -> Sandbox:
    """A sandbox from a whole snapshot of one that is closed."""
    await sandbox.snapshot(target, whole=True)
    await sandbox.close()
    return await provider.start(replace(sandbox.spec, snapshot=target))


def test_sandbox_from_a_whole_snapshot_looks_the_same(tmp_path: Path) -> None:
    async def scenario(provider: NamespacesProvider) -> None:
        spec = SandboxSpec(layer=_layer(tmp_path), env={"A": "b"}, limits=Limits(output_kib=4096))
        sandbox = await provider.start(spec)
        assert (await sandbox.exec(_WORK)).exit_code == 0
        before = await survey(sandbox)
        facts = "pwd; id; env | sort; stat -c %b sparse; df -B1 --output=size,used / | tail -1"
        first = await sandbox.exec(facts)
        for number in range(3):
            sandbox = await _restored(provider, sandbox, tmp_path / str(number))
            assert await survey(sandbox) == before
            assert (await sandbox.exec(facts)).text == first.text
        await sandbox.close()

    _with_provider(tmp_path, scenario)


def test_restored_files_can_be_used_as_before(tmp_path: Path) -> None:
    async def scenario(provider: NamespacesProvider) -> None:
        sandbox = await provider.start(SandboxSpec(layer=_layer(tmp_path)))
        await sandbox.exec(_WORK)
        sandbox = await _restored(provider, sandbox, tmp_path / "snapshot")
        rename = 'python3 -c \'import os; os.rename("made", "renamed"); os.rename("sub", "renamed/sub")\''
        seen = await sandbox.exec(f"echo 2 >> made/b; cat made/a; {rename}; ls renamed renamed/sub; ls sub")
        assert seen.text.split() == [
            "1",
            "2",
            "renamed:",
            "a",
            "b",
            "empty",
            "link",
            "sub",
            "renamed/sub:",
            "new",
        ]
        await sandbox.close()

    _with_provider(tmp_path, scenario)


_HELD_NOWHERE = {
    "a process": ("sleep 1000 & disown", "pkill sleep; while pgrep sleep; do :; done"),
    "a file in /dev/shm": ("echo x > /dev/shm/x", "rm /dev/shm/x"),
    "a System V object": ("ipcmk -S 2", "ipcrm --all"),
    "a message queue": ("touch /dev/mqueue/queue", "rm /dev/mqueue/queue"),
    "a mount that was moved": ("mv /sys/devices /sys/moved", "mv /sys/moved /sys/devices"),
    "a socket or a pipe": ("mkfifo pipe", "rm pipe"),
    "a setuid or setgid bit": ("cp /bin/true set; chmod u+s set", "chmod u-s set"),
    "an extended attribute of a file": (
        'touch a; python3 -c \'import os; os.setxattr("a", "user.a", b"b")\'',
        "rm a",
    ),
}


def test_whole_snapshot_is_refused_while_it_would_lack_state(tmp_path: Path) -> None:
    async def scenario(provider: NamespacesProvider) -> None:
        target = tmp_path / "snapshot"
        async with await provider.start(SandboxSpec()) as sandbox:
            for state, (make, remove) in _HELD_NOWHERE.items():
                assert (await sandbox.exec(make)).exit_code == 0
                with pytest.raises(IncompleteSnapshot, match=f"has {state}, which"):
                    await sandbox.snapshot(target, whole=True)
                assert not target.exists()
                await sandbox.exec(remove)
                await sandbox.snapshot(target, whole=True)  # the control: nothing else was in the way
                await asyncio.to_thread(trees.remove, target)

    _with_provider(tmp_path, scenario)


def test_whole_snapshot_leaves_room_for_its_sandbox(tmp_path: Path) -> None:
    async def scenario(provider: NamespacesProvider) -> None:
        target, limits = tmp_path / "snapshot", Limits(disk_mib=32, memory_mib=64)
        async with await provider.start(SandboxSpec(limits=limits)) as sandbox:
            await sandbox.exec("head -c 17M /dev/zero > big")
            with pytest.raises(SandboxError, match="larger than the disk limit"):
                await sandbox.snapshot(target, whole=True)
            await sandbox.exec("rm big; mkdir many; cd many; seq 5000 | xargs touch")
            with pytest.raises(SandboxError, match="too many files"):
                await sandbox.snapshot(target, whole=True)
            assert not target.exists()
            await sandbox.exec("rm -r many; head -c 15M /dev/zero > big")
            restored = await _restored(provider, sandbox, target)
            assert (await restored.exec("head -c 15M /dev/zero > more && wc -c < more")).text == "15728640\n"
            await restored.close()

    _with_provider(tmp_path, scenario)
