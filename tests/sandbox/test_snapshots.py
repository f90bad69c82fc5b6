"""Snapshots and forks: the file state of a sandbox, and nothing else, begins others."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from hone.sandbox import Limits, SandboxError, SandboxLost, SandboxSpec
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


def test_hostile_files_stay_in_the_snapshot(tmp_path: Path) -> None:
    async def scenario(provider: NamespacesProvider) -> None:
        secret = tmp_path / "secret"
        secret.write_text("secret")
        async with await provider.start(SandboxSpec(limits=Limits(disk_mib=64))) as sandbox:
            await sandbox.exec(
                f"ln -s {tmp_path} out; ln -s /etc/shadow shadow; cp /bin/true set; chmod 6755 set;"
                "touch \"$(printf 'a\\377b')\"; mkdir d; chmod 0 d; touch closed; chmod 0 closed"
            )
            target = tmp_path / "snapshot"
            await sandbox.snapshot(target)
        tree = target / "root/testbed"
        assert (tree / "out").is_symlink()
        assert (tree / "shadow").is_symlink()
        assert stat.S_IMODE((tree / "set").stat().st_mode) == 0o755
        assert os.fsencode(str(tree)) + b"/a\xffb" in [os.fsencode(str(path)) for path in tree.iterdir()]
        assert secret.read_text() == "secret"

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
