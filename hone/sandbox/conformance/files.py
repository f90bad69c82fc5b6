"""Files both ways, layers, mounts, system directories."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from hone.sandbox.conformance.suite import check, start
from hone.sandbox.contract import Mount, Provider, Sandbox, SandboxError, SandboxSpec


@check()
async def files_are_written_and_read_as_bytes(sandbox: Sandbox) -> None:
    data = bytes(range(256))
    await sandbox.write("deep/er/file.bin", data, mode=0o755)
    assert await sandbox.read("/testbed/deep/er/file.bin") == data
    assert (await sandbox.exec("stat -c %a deep/er/file.bin")).text == "755\n"
    await sandbox.write("deep/er/file.bin", b"")
    assert await sandbox.read("deep/er/file.bin") == b""


@check()
async def reading_a_path_that_is_no_file_raises(sandbox: Sandbox) -> None:
    await sandbox.exec("mkfifo pipe")
    wrong: tuple[tuple[str, type[Exception]], ...] = (
        ("missing", FileNotFoundError),
        ("/tmp", IsADirectoryError),  # noqa: S108
        ("pipe", OSError),
        ("/dev/zero", OSError),
        ("null\0byte", OSError),
    )
    for path, kind in wrong:
        with pytest.raises(kind):
            await sandbox.read(path)


@check()
async def trees_travel_in_and_out(sandbox: Sandbox, folder: Path) -> None:
    source, target = folder / "source", folder / "target"
    (source / "sub" / "empty").mkdir(parents=True)
    (source / "sub" / "run.sh").write_bytes(b"#!/bin/sh\necho ran\n")
    (source / "sub" / "run.sh").chmod(0o755)
    (source / "link").symlink_to("sub/run.sh")
    await sandbox.upload(source, "tree")
    assert (await sandbox.exec("./tree/link")).text == "ran\n"
    await sandbox.exec("echo more > tree/sub/more")
    await sandbox.download("tree", target)
    await sandbox.download("tree/sub/more", folder / "one")
    found = sorted(str(path.relative_to(target)) for path in target.rglob("*"))
    assert found == ["link", "sub", "sub/empty", "sub/more", "sub/run.sh"]
    assert (target / "link").readlink() == Path("sub/run.sh")
    assert (target / "sub" / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (folder / "one").read_bytes() == b"more\n"


@check()
async def a_download_refuses_links_that_leave_the_tree(sandbox: Sandbox, folder: Path) -> None:
    for number, link in enumerate(("/etc/passwd", "../../x", "sub/../../x")):
        await sandbox.exec(f"mkdir -p t{number}/sub && ln -s {link} t{number}/out")
        with pytest.raises(SandboxError):
            await sandbox.download(f"t{number}", folder / str(number))
        assert not (folder / str(number) / "out").is_symlink()


@check()
async def a_layer_is_the_workdirs_content_and_stays_unwritten(provider: Provider, folder: Path) -> None:
    layer = folder / "layer"
    (layer / "pkg").mkdir(parents=True)
    (layer / "pkg" / "a.py").write_text("a = 1\n")
    (layer / "private").write_text("mine\n")
    (layer / "private").chmod(0o600)
    async with await provider.start(SandboxSpec(layer=layer)) as sandbox:
        assert (await sandbox.exec("cat pkg/a.py private")).text == "a = 1\nmine\n"
        changes = "echo 'a = 2' > pkg/a.py && echo new > pkg/b.py && rm private && touch pkg/a.py"
        assert (await sandbox.exec(changes)).exit_code == 0
        assert (await sandbox.exec("rm -r pkg && mkdir pkg && ls pkg")).text == ""
    assert (layer / "pkg" / "a.py").read_text() == "a = 1\n"
    assert sorted(path.name for path in layer.rglob("*")) == ["a.py", "pkg", "private"]
    async with await provider.start(SandboxSpec(layer=layer)) as sandbox:
        assert (await sandbox.exec("cat pkg/a.py")).text == "a = 1\n"


@check()
async def git_works_in_a_layer(provider: Provider, folder: Path) -> None:
    layer = folder / "layer"
    layer.mkdir()
    identity = "-c user.name=a -c user.email=a@b"
    async with await start(provider) as sandbox:
        setup = f"git init -q && echo one > f && git add . && git {identity} commit -qm one"
        assert (await sandbox.exec(setup)).exit_code == 0
        layer.rmdir()
        await sandbox.download("/testbed", layer)
    async with await provider.start(SandboxSpec(layer=layer)) as sandbox:
        result = await sandbox.exec("echo two > f; git diff --stat; git stash -q; git status --short")
    assert "f | 2 +-" in result.text, result
    assert result.stderr == b"" or b"Please tell me who you are" in result.stderr


@check()
async def mounts_are_visible_and_read_only(provider: Provider, folder: Path) -> None:
    (folder / "data").write_text("shared\n")
    one = Mount(source=folder, target="/mnt/all")
    two = Mount(source=folder / "data", target="/testbed/data.txt")
    async with await provider.start(SandboxSpec(mounts=(one, two))) as sandbox:
        assert (await sandbox.exec("cat /mnt/all/data data.txt")).text == "shared\nshared\n"
        for command in (
            "echo > /mnt/all/new",
            "echo > /mnt/all/data",
            "echo > data.txt",
            "rm /mnt/all/data",
        ):
            assert (await sandbox.exec(command)).exit_code != 0, command
    assert (folder / "data").read_text() == "shared\n"


def _exists_on_host(path: str) -> bool:
    return Path(path).exists()


def _contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@check()
async def system_directories_are_writable_for_one_sandbox(provider: Provider) -> None:
    paths = ("/usr/local/bin/hone-probe", "/usr/bin/hone-probe", "/etc/hone-probe", "/opt/hone-probe")
    async with await start(provider) as sandbox:
        for path in paths:
            assert (await sandbox.exec(["touch", path])).exit_code == 0, path
    async with await start(provider) as sandbox:
        for path in paths:
            assert (await sandbox.exec(["test", "-e", path])).exit_code == 1, path
            assert not _exists_on_host(path)


@check()
async def python_and_pytest_are_installed(sandbox: Sandbox) -> None:
    await sandbox.write("test_x.py", b"def test_x():\n    assert 1 + 1 == 2\n")
    for command in ("python3 -m pytest -q", "python -m pytest -q", "pytest -q"):
        result = await sandbox.exec(command)
        assert result.exit_code == 0, result
        assert "1 passed" in result.text


@check()
async def names_of_files_may_be_odd(sandbox: Sandbox, folder: Path) -> None:
    names = ["two words", "line\nbreak", "-rf", "é", "$(touch x)", "q'\"", "n" * 255, "...", "*"]
    for name in names:
        await sandbox.write(f"odd/{name}", name.encode())
    assert await sandbox.read("odd/line\nbreak") == b"line\nbreak"
    listed = await sandbox.exec(["find", "odd", "-type", "f", "-printf", "%f\\0"])
    assert sorted(listed.stdout.decode().split("\0")[:-1]) == sorted(names)
    await sandbox.download("odd", folder / "odd")
    assert _contents(folder / "odd") == {name: name for name in names}


@check()
async def writing_to_a_directory_raises_and_keeps_it(sandbox: Sandbox) -> None:
    await sandbox.write("folder/file", b"kept")
    for path in ("folder", "folder/file/below"):
        with pytest.raises(OSError):  # noqa: PT011
            await sandbox.write(path, b"lost")
    assert await sandbox.read("folder/file") == b"kept"


@check()
async def files_travel_concurrently_without_mixing(sandbox: Sandbox) -> None:
    sizes = [0, 1, 4095, 65_537, 1 << 20, (1 << 20) + 1, 15_060_000]
    data = {f"f{i}": bytes([i]) * size for i, size in enumerate(sizes)}
    await asyncio.gather(*(sandbox.write(name, content) for name, content in data.items()))
    read = await asyncio.gather(*(sandbox.read(name) for name in data))
    assert list(read) == list(data.values())


@check()
async def a_write_through_a_link_stays_inside(sandbox: Sandbox, folder: Path) -> None:
    victim = folder / "victim"
    victim.write_text("untouched")
    await sandbox.exec(["ln", "-s", str(victim), "trap"])
    await sandbox.exec(["ln", "-s", str(folder), "trapdoor"])
    for path in ("trap", "trapdoor/victim", "trapdoor/other"):
        with contextlib.suppress(OSError):
            await sandbox.write(path, b"reached")
    assert _contents(folder) == {"victim": "untouched"}


@check()
async def uploading_a_missing_file_raises(sandbox: Sandbox) -> None:
    for path in ("/no/such/file", "/no/such/../tree"):
        with pytest.raises(FileNotFoundError):
            await sandbox.upload(Path(path), "target")
    assert (await sandbox.exec("ls")).text == ""
