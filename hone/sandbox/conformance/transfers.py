"""Large files, patches, trees and archives with odd members, and snapshots."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path

import pytest

from hone.sandbox.conformance.suite import assert_usable, check, start
from hone.sandbox.contract import Provider, Sandbox, SandboxError, SandboxSpec


@check()
async def a_patch_of_12_megabytes_applies_from_a_file_and_from_input(sandbox: Sandbox) -> None:
    lines = [f"{number:063d}\n" for number in range(180_000)]
    head = f"--- /dev/null\n+++ b/big.txt\n@@ -0,0 +1,{len(lines)} @@\n"
    patch = (head + "".join(f"+{line}" for line in lines)).encode()
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    assert len(patch) > 10 << 20
    await sandbox.write("change.patch", patch)
    for command, stdin in (("git apply change.patch", b""), ("git apply -", patch)):
        applied = await sandbox.exec(f"{command} && sha256sum < big.txt && rm big.txt", stdin=stdin)
        assert applied.text == f"{digest}  -\n", applied


@check()
async def a_hundred_megabytes_pass_both_ways(sandbox: Sandbox, folder: Path) -> None:
    block = hashlib.sha256(b"block").digest() * 32
    source, target = folder / "source", folder / "target"
    source.write_bytes(b"".join(b"%07d" % number + block for number in range(104_000)))
    digest = _digest(source)
    assert source.stat().st_size > 100 << 20
    await sandbox.upload(source, "big")
    assert (await sandbox.exec("sha256sum < big")).text == f"{digest}  -\n"
    await sandbox.download("big", target)
    assert _digest(target) == digest


@check()
async def a_sparse_file_of_a_tebibyte_is_not_read(sandbox: Sandbox) -> None:
    if (await sandbox.exec("truncate -s 1T sparse")).exit_code == 0:  # else it is refused even earlier
        with pytest.raises((SandboxError, OSError)):
            await sandbox.read("sparse")
        await assert_usable(sandbox)


@check()
async def large_and_deep_trees_travel_whole(sandbox: Sandbox, folder: Path) -> None:
    source, target = folder / "source", folder / "target"
    for number in range(600):
        path = source / f"d{number % 7}" / f"e{number % 31}" / f"f{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(str(number).encode() * (number % 50))
    deepest = source.joinpath(*(f"{depth:040d}" for depth in range(60)))
    deepest.mkdir(parents=True)
    (deepest / "leaf").write_bytes(b"leaf")
    await sandbox.upload(source, "tree")
    await sandbox.download("tree", target)
    assert _tree(target) == _tree(source)


@check()
async def names_that_are_not_unicode_travel_in_trees(sandbox: Sandbox, folder: Path) -> None:
    names = [b"\xff\xfe", b"caf\xe9", b"\x01\x7f", "\u202egnp.exe".encode()]
    source, target = folder / "source", folder / "target"
    source.mkdir()
    for name in names:
        (source / os.fsdecode(name)).write_bytes(name)
    await sandbox.upload(source, "tree")
    listed = await sandbox.exec(["find", "tree", "-type", "f", "-printf", "%f\\0"])
    assert sorted(listed.stdout.split(b"\0")[:-1]) == sorted(names)
    await sandbox.download("tree", target)
    assert _tree(target) == _tree(source)


@check()
async def a_path_that_is_not_unicode_is_read_or_refused(sandbox: Sandbox) -> None:
    await sandbox.exec("printf kept > $'\\xff'")
    try:
        assert await sandbox.read(os.fsdecode(b"\xff")) == b"kept"
    except ValueError:
        await assert_usable(sandbox)


@check()
async def a_download_refuses_special_files(sandbox: Sandbox, folder: Path) -> None:
    bind = "import socket; socket.socket(socket.AF_UNIX).bind('socket/s')"
    await sandbox.exec(f'mkdir fifo socket; mkfifo fifo/p; python3 -c "{bind}"')
    for number, source in enumerate(("fifo", "fifo/p", "socket", "socket/s", "/dev/null", "/dev")):
        with pytest.raises(SandboxError):
            await sandbox.download(source, folder / str(number))
        kinds = {stat.S_IFMT(mode) for mode in _modes(folder)}
        assert kinds <= {stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK}, source


@check()
async def downloads_lose_setuid_and_write_for_others(sandbox: Sandbox, folder: Path) -> None:
    target = folder / "tree"
    await sandbox.exec("mkdir -m 1777 tree; echo x > tree/a; chmod 6777 tree/a")
    with contextlib.suppress(SandboxError):  # refused altogether
        await sandbox.download("tree", target)
    assert not any(mode & 0o7022 for mode in _modes(folder))


@check()
async def hard_links_are_downloaded_as_separate_files(sandbox: Sandbox, folder: Path) -> None:
    target = folder / "tree"
    await sandbox.exec("mkdir tree; echo x > tree/a; ln tree/a tree/b; ln /etc/passwd tree/c")
    await sandbox.download("tree", target)
    assert (target / "a").read_bytes() == (target / "b").read_bytes() == b"x\n"
    assert {(target / name).stat().st_nlink for name in "ab"} == {1}


@check()
async def an_uploaded_link_brings_no_file_of_the_host(sandbox: Sandbox, folder: Path) -> None:
    (folder / "secret").write_text("s3cret")
    tree = folder / "tree"
    tree.mkdir()
    (tree / "absolute").symlink_to(folder / "secret")
    (tree / "relative").symlink_to("../secret")
    for number, source in enumerate((tree, tree / "absolute", tree / "relative")):
        with contextlib.suppress(SandboxError):  # refused altogether
            await sandbox.upload(source, f"there{number}")
    seen = await sandbox.exec("cat there* there0/* | grep s3cret")
    assert seen.stdout == b""


@check()
async def an_upload_refuses_special_files(sandbox: Sandbox, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(SandboxError):
        await sandbox.upload(folder, "there")
    await assert_usable(sandbox)


@check()
async def downloading_a_missing_path_raises(sandbox: Sandbox, folder: Path) -> None:
    for source in ("missing", "/no/such/place"):
        with pytest.raises(FileNotFoundError):
            await sandbox.download(source, folder / "target")
    assert not (folder / "target").exists()


@check()
async def sandboxes_start_with_the_files_of_a_snapshot(provider: Provider, folder: Path) -> None:
    target = folder / "snapshot"
    async with await start(provider) as sandbox:
        await sandbox.exec("echo new > new; mkdir -p /opt/kept; echo x > /opt/kept/x; rm /etc/hostname")
        try:
            await sandbox.snapshot(target)
        except NotImplementedError:
            pytest.skip("the provider has no snapshots")
        await sandbox.exec("echo later > later")
    for _ in range(2):
        async with await provider.start(SandboxSpec(snapshot=target)) as fork:
            seen = await fork.exec("cat new /opt/kept/x; ls /etc/hostname later; echo mine > new")
            assert seen.stdout == b"new\nx\n"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _modes(folder: Path) -> list[int]:
    return [path.lstat().st_mode for path in folder.rglob("*")]


def _tree(top: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(top)): path.read_bytes() if path.is_file() else b"" for path in top.rglob("*")
    }
