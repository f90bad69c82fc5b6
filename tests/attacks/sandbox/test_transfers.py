"""Files on their way in and out: what an attacker prepares there leads nowhere on the host, and ends."""

from __future__ import annotations

import io
import os
import shutil
import stat
import tarfile
from pathlib import Path

import pytest

from hone.sandbox import Limits, Sandbox, SandboxError, SandboxSpec, trees
from hone.sandbox.init import transfer
from tests.attacks.sandbox.attack_target import AttackTarget, watched

REFUSED = (SandboxError, OSError)


def _followed(tree: Path, target: Path) -> str:
    """The control: a copy that follows links, and all the text that it brought along."""
    shutil.copytree(tree, target, symlinks=False)
    return "".join(path.read_text() for path in target.rglob("*") if path.is_file())


@pytest.mark.parametrize("form", ["{secret}", "../{name}", "../../{folder}/{name}", "/proc/self/cwd{secret}"])
def test_downloaded_link_exposes_no_host_file(attacked: AttackTarget, secret: Path, form: str) -> None:
    tree = secret.parent / "tree"
    tree.mkdir()
    link = form.format(secret=secret, name=secret.name, folder=secret.parent.name)
    (tree / "link").symlink_to(link if "cwd" not in link else str(secret))
    assert secret.read_text() in _followed(tree, secret.parent / "followed")

    async def act(sandbox: Sandbox) -> None:
        await sandbox.exec(["mkdir", "tree"])
        await sandbox.exec(["ln", "-s", link, "tree/link"])
        with pytest.raises(REFUSED):
            await sandbox.download("tree", secret.parent / "out")

    attacked.run(act)
    assert not any(path.is_symlink() for path in (secret.parent / "out").glob("*"))


def test_combined_links_out_of_the_tree_are_not_downloaded(attacked: AttackTarget, secret: Path) -> None:
    """`up` leads to the top of the tree; so `up/..` leads out of it, though its text says `a/b/c`."""
    tree = secret.parent / "tree"
    (tree / "a/b/c").mkdir(parents=True)
    (tree / "a/b/c/up").symlink_to("../../..")
    (tree / "out").symlink_to(f"a/b/c/up/../{secret.name}")
    assert secret.read_text() in (tree / "out").read_text()

    async def act(sandbox: Sandbox) -> None:
        make = f"mkdir -p tree/a/b/c; ln -s ../../.. tree/a/b/c/up; ln -s a/b/c/up/../{secret.name} tree/out"
        await sandbox.exec(make)
        try:
            await sandbox.download("tree", secret.parent / "got")
        except REFUSED:
            return
        assert not (secret.parent / "got" / "out").exists(), "it shows a file of the host"

    attacked.run(act)


def test_combined_links_out_of_an_archive_are_refused(secret: Path) -> None:
    """Archives are what trees travel in to and from a node; the control is an unpacking without checks."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for folder in ("", "/a", "/a/b", "/a/b/c"):
            info = tarfile.TarInfo(trees.TOP + folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(info)
        for name, link in (("a/b/c/up", "../../.."), ("out", f"a/b/c/up/../../{secret.name}")):
            info = tarfile.TarInfo(f"{trees.TOP}/{name}")
            info.type, info.linkname = tarfile.SYMTYPE, link
            tar.addfile(info)
    packed.seek(0)
    with tarfile.open(fileobj=packed) as tar:
        tar.extractall(secret.parent / "control", filter="fully_trusted")
    assert (secret.parent / "control" / trees.TOP / "out").read_text() == secret.read_text()
    packed.seek(0)
    (secret.parent / "got").mkdir()
    with pytest.raises(SandboxError):
        trees.unpack(packed, secret.parent / "got")


def test_download_never_writes_through_a_link(attacked: AttackTarget, tmp_path: Path) -> None:
    """A tree in which a link stands where another entry's parent would be; and links left by earlier ones."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("untouched")
    (tmp_path / "control").symlink_to(victim / "file")
    (tmp_path / "control").write_text("evil")
    assert (victim / "file").read_text() == "evil"
    (victim / "file").write_text("untouched")

    async def act(sandbox: Sandbox) -> None:
        await sandbox.exec(
            "mkdir e a; echo evil > e/x; ln -s x e/y; ln -s . a/here; mkdir a/d; ln -s ../d a/d/d"
        )
        (tmp_path / "planted").symlink_to(victim / "file")
        await sandbox.download("e/x", tmp_path / "planted")
        with pytest.raises(FileExistsError):
            await sandbox.download("e", victim)
        await sandbox.download("e", tmp_path / "tree")
        await sandbox.download("a", tmp_path / "loops")

    attacked.run(act)
    assert [path.name for path in victim.iterdir()] == ["file"]
    assert (victim / "file").read_text() == "untouched"
    assert (tmp_path / "planted").read_text() == "evil\n"
    assert not (tmp_path / "planted").is_symlink()


@pytest.mark.parametrize(
    "source", ["/proc/self/root", "/dev/zero", "/dev/stdin", "/proc/1/root", "/dev", "/proc/1/fd"]
)
def test_special_file_is_not_downloaded(attacked: AttackTarget, tmp_path: Path, source: str) -> None:
    async def act(sandbox: Sandbox) -> None:
        with pytest.raises(REFUSED):
            await sandbox.download(source, tmp_path / "out")

    attacked.run(act)


@pytest.mark.parametrize(
    "make", ["mkfifo", "python3 -c 'import socket,sys;socket.socket(1).bind(sys.argv[1])'"]
)
def test_pipe_or_socket_in_a_tree_stops_the_download(
    attacked: AttackTarget, tmp_path: Path, make: str
) -> None:
    """Opening one, as a plain copy does, would wait for ever."""

    async def act(sandbox: Sandbox) -> None:
        await sandbox.exec(f"mkdir tree; {make} tree/odd")
        with pytest.raises(REFUSED):
            await sandbox.download("tree", tmp_path / "out")
        with pytest.raises(REFUSED):
            await sandbox.read("tree/odd")
        with pytest.raises(REFUSED):
            await sandbox.write("tree/odd", b"x")

    attacked.run(act)


def test_download_drops_setuid_and_open_modes(attacked: AttackTarget, tmp_path: Path) -> None:
    async def act(sandbox: Sandbox) -> None:
        await sandbox.exec("mkdir -m 7777 tree; cp $(command -v env) tree/env; chmod 6777 tree/env")
        await sandbox.download("tree", tmp_path / "out")

    attacked.run(act)
    for path in ((tmp_path / "out"), (tmp_path / "out" / "env")):
        assert not path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IWOTH), path


def test_undecodable_names_are_kept(attacked: AttackTarget, tmp_path: Path) -> None:
    names = [
        bytes(range(1, 47)) + bytes(range(48, 256)) + b"\xff",
        b"\xff" * 255,
        b"-rf",
        b"\n",
        b"..\n",
        b"\xed\xa0\x80",
        b" .",
        b"\\..\\x",
    ]
    assert len(names[0]) == 255

    async def act(sandbox: Sandbox) -> None:
        code = (
            "import os, sys\nfor name in sys.argv[1:]: open(b'odd/' + bytes.fromhex(name), 'w').write(name)"
        )
        await sandbox.exec(["mkdir", "odd"])
        done = await sandbox.exec(["python3", "-c", code, *(name.hex() for name in names)])
        assert done.exit_code == 0, done
        await sandbox.download("odd", tmp_path / "out")
        await sandbox.upload(tmp_path / "out", "back")
        listing = "import os; print(sorted(os.listdir(b'back')) == sorted(os.listdir(b'odd')))"
        assert (await sandbox.exec(["python3", "-c", listing])).text == "True\n"

    attacked.run(act)
    found = {os.fsencode(path.name): path.read_text() for path in (tmp_path / "out").iterdir()}
    assert found == {name: name.hex() for name in names}


def test_download_of_thousands_of_circular_links_ends(attacked: AttackTarget, tmp_path: Path) -> None:
    """A naive walk that follows links would visit 2 to the power of 3,000 places."""

    async def act(sandbox: Sandbox) -> None:
        code = """
import os
os.mkdir("loops"); os.chdir("loops")
for number in range(1500):
    os.symlink(f"b{number}", f"a{number}")
    os.symlink(f"a{number}", f"b{number}")
os.mkdir("deep"); os.symlink("..", "deep/up"); os.symlink("deep/up/deep/up", "round")
"""
        assert (await sandbox.exec(["python3", "-c", code])).exit_code == 0
        await sandbox.download("loops", tmp_path / "out")
        with pytest.raises(REFUSED):
            await sandbox.read("loops/a0")

    attacked.run(act)
    assert len(list((tmp_path / "out").iterdir())) == 3002


def test_tree_deeper_than_any_path_is_refused(attacked: AttackTarget, tmp_path: Path) -> None:
    async def act(sandbox: Sandbox) -> None:
        await sandbox.exec("for i in $(seq 50); do n=$(printf %0200d $i); mkdir $n; cd $n; done")
        with pytest.raises(REFUSED):
            await sandbox.download(f"{1:0200d}", tmp_path / "out")

    attacked.run(act)


def test_changing_tree_stays_in_its_target(attacked: AttackTarget, tmp_path: Path) -> None:
    """A directory that turns into a link to elsewhere, and back, while it is read."""
    outside = tmp_path / "outside"
    outside.mkdir()

    async def act(sandbox: Sandbox) -> None:
        swap = f"rm -rf tree/d; ln -s {outside} tree/d; rm tree/d; mkdir tree/d; echo x > tree/d/f"
        await sandbox.exec(f"mkdir tree; (while :; do {swap}; done) > /dev/null 2>&1 &")
        for number in range(30):
            try:
                await sandbox.download("tree", tmp_path / f"out{number}")
            except REFUSED:
                continue

    attacked.run(act)
    assert list(outside.iterdir()) == []
    for out in tmp_path.glob("out[0-9]*"):
        assert not [path for path in out.rglob("*") if path.is_symlink()]


def test_download_of_a_growing_file_ends(
    attacked: AttackTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "BYTES_MAX", 32 << 20)  # of 1 GiB, for the sake of time

    async def act(sandbox: Sandbox) -> None:
        grow = "while :; do truncate -s +4M grows || truncate -s 0 grows; done"
        large = '[ "$(stat -c %s grows)" -gt $((64 << 20)) ]'  # already, so that no reader comes to its end
        await sandbox.exec(f"({grow}) > /dev/null 2>&1 & until {large} 2> /dev/null; do :; done")
        async with watched(attacked.provider, attacked.with_image(SandboxSpec())):
            with pytest.raises(REFUSED):
                await sandbox.download("grows", tmp_path / "out")

    attacked.run(act, SandboxSpec(limits=Limits(disk_mib=8)))


def test_sparse_tebibyte_file_is_not_read(
    attacked: AttackTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "BYTES_MAX", 32 << 20)  # of 1 GiB, for the sake of time

    async def act(sandbox: Sandbox) -> None:
        await sandbox.exec("mkdir tree; truncate -s 1T huge tree/huge")
        async with watched(attacked.provider, attacked.with_image(SandboxSpec())):
            with pytest.raises(REFUSED):
                await sandbox.read("huge")
            with pytest.raises(REFUSED):
                await sandbox.download("tree", tmp_path / "out")

    attacked.run(act)


def test_upload_follows_no_planted_link(attacked: AttackTarget, tmp_path: Path) -> None:
    """Inside, such a link leads to what the attacker may write anyway; never to the host."""
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_text("uploaded")
    shutil.copytree(source, tmp_path / "control")
    (tmp_path / "control" / "file").unlink()
    (tmp_path / "control" / "file").symlink_to(victim)
    shutil.copytree(source, tmp_path / "control", dirs_exist_ok=True)
    assert victim.read_text() == "uploaded"
    victim.write_text("untouched")

    async def act(sandbox: Sandbox) -> None:
        await sandbox.exec(f"mkdir target; ln -s {victim} target/file; ln -s {tmp_path} target/folder")
        for attempt in (
            sandbox.upload(source, "target"),
            sandbox.write("target/folder/victim", b"evil"),
            sandbox.write(f"/proc/self/root{victim}", b"evil"),
            sandbox.write(f"/proc/1/root{victim}", b"evil"),
            sandbox.write("../../../../.." + str(victim), b"evil"),
        ):
            try:
                await attempt
            except REFUSED:
                continue

    attacked.run(act)
    assert victim.read_text() == "untouched"


def test_upload_copies_no_link_target_and_no_device(attacked: AttackTarget, secret: Path) -> None:
    tree = secret.parent / "tree"
    tree.mkdir()
    (tree / "link").symlink_to(secret)
    assert secret.read_text() in _followed(tree, secret.parent / "followed")
    devices = secret.parent / "devices"
    devices.mkdir()
    os.mknod(devices / "zero", 0o666 | stat.S_IFCHR, os.makedev(1, 5))

    async def act(sandbox: Sandbox) -> None:
        await sandbox.upload(tree, "tree")
        assert (await sandbox.exec(["readlink", "tree/link"])).text.strip() == str(secret)
        assert (await sandbox.exec(["cat", "tree/link"])).exit_code != 0
        with pytest.raises(REFUSED):
            await sandbox.upload(devices, "devices")

    attacked.run(act)
