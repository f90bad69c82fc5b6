"""The host's files stay unread and unwritten, by whatever name or number they are named."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from hone.sandbox import Mount, Sandbox, SandboxError, SandboxSpec
from tests.attacks.sandbox.attack_target import APART, AttackTarget, attack, control


def test_host_file_is_unreachable_by_any_name(attacked: AttackTarget, secret: Path) -> None:
    attacked.assert_denied(
        """
path, pid = arguments
for prefix in ("", "/proc/self/root", "/proc/self/root/../../..", "/proc/self/cwd/" + "../" * 20):
    attempt(prefix or "its own", read, prefix + path)
attempt("another's root", read, f"/proc/{pid}/root{path}")
""",
        str(secret),
        "1",
        outside=(str(secret), str(os.getpid())),
    )


def test_search_of_the_tree_finds_no_host_file(attacked: AttackTarget, secret: Path) -> None:
    attacked.assert_denied(
        """
token, top = arguments
def search():
    for folder, folders, files in os.walk(top):
        if folder == "/":
            folders[:] = set(folders) - {"proc", "sys", "usr", "opt"}
        for name in files:
            path = os.path.join(folder, name)
            try:
                if token.encode() in (read(path, 1 << 20) or b""):
                    return path
            except OSError:
                continue
attempt("walk", search)
""",
        secret.read_text(),
        "/",
        outside=(secret.read_text(), str(secret.parent)),
    )


def test_host_accounts_and_keys_are_absent(attacked: AttackTarget, tmp_path: Path) -> None:
    private = tmp_path / "id_rsa"
    private.write_text("PRIVATE KEY")
    attacked.assert_denied(
        """
attempt("password hashes", read, "/etc/shadow")
attempt("a key", read, arguments[0])
attempt("the machine's name", lambda: open("/proc/sys/kernel/hostname").read().strip() == arguments[1])
""",
        str(private),
        os.uname().nodename,
    )


def test_link_to_a_host_file_is_dangling(attacked: AttackTarget, secret: Path) -> None:
    code = """
import tempfile
folder = tempfile.mkdtemp()
os.symlink(arguments[0], folder + "/link")
os.symlink("/", folder + "/top")
attempt("a link", read, folder + "/link")
attempt("a link above it", read, folder + "/top" + arguments[0])
os.symlink(folder + "/link", folder + "/chain")
attempt("a chain of links", read, folder + "/chain")
"""
    attacked.assert_denied(code, str(secret))

    async def act(sandbox: Sandbox) -> None:
        await sandbox.exec(["ln", "-s", str(secret), "link"])
        with pytest.raises(FileNotFoundError):
            await sandbox.read("link")
        with pytest.raises((SandboxError, OSError)):
            await sandbox.download("link", secret.parent / "stolen")

    attacked.run(act)
    assert not (secret.parent / "stolen").exists()


def test_host_file_cannot_be_opened_by_handle(attacked: AttackTarget, secret: Path) -> None:
    """A handle names a file by its number in a file system, whatever directories are shown of that."""
    raw = ctypes.create_string_buffer(128 + 8)
    ctypes.memmove(raw, (128).to_bytes(4, "little"), 4)
    libc, mount_id = ctypes.CDLL(None, use_errno=True), ctypes.c_int()
    if libc.name_to_handle_at(-100, os.fsencode(secret), raw, ctypes.byref(mount_id), 0):
        pytest.skip(f"no handles on this file system: {os.strerror(ctypes.get_errno())}")
    attacked.assert_denied(
        """
handle, *folders = arguments
def open_by_handle(folder):
    mount = os.open(folder, os.O_RDONLY)
    return os.read(call("open_by_handle_at", mount, bytes.fromhex(handle), os.O_RDONLY), 100)
attempt("by handle", lambda: next(filter(None, map(open_by_handle, folders))))
""",
        raw.raw.hex(),
        "/opt/hone/venv",
        outside=(raw.raw.hex(), str(secret.parent)),
    )


def test_devices_cannot_be_made_or_opened(attacked: AttackTarget) -> None:
    attacked.assert_denied(
        """
import stat, tempfile
folder = tempfile.mkdtemp()
def make(kind, major, minor):
    path = f"{folder}/{kind}{major}.{minor}"
    os.mknod(path, 0o600 | kind, os.makedev(major, minor))
    return path
attempt("a disk", lambda: make(stat.S_IFBLK, 8, 0))
attempt("a device, and what it gives", lambda: read(make(stat.S_IFCHR, 1, 5)))
attempt("memory", lambda: make(stat.S_IFCHR, 1, 1))
attempt("the kernel's log", lambda: os.open(make(stat.S_IFCHR, 1, 11), os.O_RDONLY | os.O_NONBLOCK))
attempt("a new name in /dev", lambda: os.open("/dev/hone-attack", os.O_CREAT | os.O_WRONLY))
if os.path.exists("/dev/hone-attack"):
    os.unlink("/dev/hone-attack")
"""
    )


def test_read_only_mount_cannot_be_changed(attacked: AttackTarget, tmp_path: Path) -> None:
    folder = tmp_path / "shown"
    folder.mkdir()
    (folder / "file").write_text("original")
    (folder / "file").chmod(0o666)
    folder.chmod(0o777)
    code = """
top = arguments[0]
file = top + "/file"
attempt("overwrite", lambda: os.write(os.open(file, os.O_WRONLY), b"X"))
descriptor = f"/proc/self/fd/{os.open(file, os.O_RDONLY)}"
attempt("by its descriptor", lambda: os.write(os.open(descriptor, os.O_RDWR), b"X"))
attempt("truncate", lambda: os.truncate(file, 1) or True)
attempt("new mode", lambda: os.chmod(file, 0o777) or True)
attempt("new time", lambda: os.utime(file, (1, 1)) or True)
attempt("attribute", lambda: os.setxattr(file, "user.x", b"y") or True)
attempt("new file", lambda: os.open(top + "/new", os.O_CREAT | os.O_WRONLY))
attempt("link", lambda: os.link(file, top + "/hard") or True)
attempt("rename", lambda: os.rename(file, top + "/moved") or True)
attempt("remove", lambda: os.unlink(top + "/moved") or True)
"""
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "file").write_text("original")
    before = folder.stat().st_mtime_ns, (folder / "file").stat().st_mtime_ns
    spec = SandboxSpec(mounts=(Mount(source=folder, target="/mnt/shown"),))
    attacked.assert_denied(code, "/mnt/shown", outside=(str(copy),), spec=spec)
    assert (folder / "file").read_text() == "original"
    assert (folder.stat().st_mtime_ns, (folder / "file").stat().st_mtime_ns) == before


def test_layer_is_never_changed(attacked: AttackTarget, tmp_path: Path) -> None:
    """Inside, the layer may be changed at will: that is a private copy."""
    beside = tmp_path / "beside"
    beside.write_text("beside")

    def make(name: str) -> Path:
        layer = tmp_path / name
        (layer / "sub").mkdir(parents=True)
        (layer / "file").write_text("original")
        (layer / "absolute").symlink_to(beside)
        (layer / "relative").symlink_to("../beside")
        return layer

    def look(layer: Path) -> list[tuple[str, int, int, bytes]]:
        return sorted(
            (
                str(path),
                path.lstat().st_mtime_ns,
                path.lstat().st_mode,
                b"" if path.is_dir() else path.read_bytes(),
            )
            for path in [layer, *layer.rglob("*"), beside]
        )

    code = """
import shutil
os.chdir(arguments[0])
def change():
    os.link("file", "hard")
    for name in ("file", "hard", "absolute", "relative"):
        try:
            with open(name, "a") as file:
                file.write("x")
        except OSError:
            continue
    os.chmod("sub", 0o777)
    os.utime("file", (1, 1))
    os.rename("file", "sub/file")
    shutil.rmtree("sub")
change()
"""
    for layer, inside in ((make("control"), False), (make("layer"), True)):
        before = look(layer)
        if inside:

            async def act(sandbox: Sandbox) -> None:
                await attack(sandbox, code, "/testbed")

            attacked.run(act, SandboxSpec(layer=layer))
        else:
            control(code, str(layer))
        assert (look(layer) == before) is inside


def test_overlays_cannot_be_made_or_redirected(attacked: AttackTarget, tmp_path: Path) -> None:
    """An upper layer that someone prepared makes an overlay show, or write, what lies elsewhere."""
    attacked.assert_denied(
        """
top = arguments[0]
for name in ("lower", "lower/hidden", "upper", "upper/shown", "work", "merged"):
    os.makedirs(f"{top}/{name}", exist_ok=True)
open(f"{top}/lower/hidden/file", "w").close()
attempt("redirect", lambda: os.setxattr(top + "/upper/shown", "trusted.overlay.redirect", b"/hidden") or True)
options = f"lowerdir={top}/lower,upperdir={top}/upper,workdir={top}/work,redirect_dir=on".encode()
attempt("mount", lambda: call("mount", b"overlay", f"{top}/merged".encode(), b"overlay", 0, options) or True)
attempt("see", lambda: os.listdir(top + "/merged/shown"))
""",
        "/tmp/overlay",
        outside=(str(tmp_path),),
        wrapped=(*APART, "sh", "-c", f'mount -t tmpfs none {tmp_path} && exec "$@"', "sh"),
    )
