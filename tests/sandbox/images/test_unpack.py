"""Odd and hostile layers are unpacked completely or refused without a trace."""

from __future__ import annotations

import asyncio
import gzip
import os
import socket
import stat
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from hone.sandbox import ImageUnavailable
from hone.sandbox.images import ImageStore, layers
from tests.sandbox.images.oci import (
    MTIME,
    digest,
    entry,
    hard_link,
    link,
    listing,
    make_layout,
    plain,
    tar,
    zstd,
)  # fmt: skip
from tests.sandbox.images.traces import left

pytestmark = pytest.mark.sandbox


def unpack(store: ImageStore, tmp_path: Path, *archives: bytes, **options: Any) -> list[Path]:
    layout = make_layout(tmp_path / f"layout-{len(list(tmp_path.iterdir()))}", archives, **options)
    return list(asyncio.run(store.import_(str(layout), name="odd")).layers)


def refused(store: ImageStore, tmp_path: Path, *archives: bytes, **options: Any) -> ImageUnavailable:
    with pytest.raises(ImageUnavailable) as raised:
        unpack(store, tmp_path, *archives, **options)
    return raised.value


def merge(layers: list[Path], target: Path) -> dict[str, tuple[str, int, str]]:
    """Return the files that a sandbox sees: the layers mounted with overlayfs and copied out."""
    for name in ("upper", "work", "merged"):
        (target / name).mkdir(parents=True)
    lower = ":".join(str(layer) for layer in reversed(layers))
    options = f"lowerdir={lower},upperdir={target}/upper,workdir={target}/work,userxattr"
    script = 'mount -t overlay overlay -o "$0" "$1/merged" && cp -a "$1/merged" "$1/copy"'
    subprocess.run(["unshare", "-Urm", "bash", "-c", script, options, str(target)], check=True)
    return listing(target / "copy")


def umoci(layout: Path, target: Path) -> dict[str, tuple[str, int, str]]:
    subprocess.run(
        ["umoci", "unpack", "--rootless", "--image", f"{layout}:latest", str(target)],
        check=True,
        capture_output=True,
    )
    return listing(target / "rootfs")


def test_whiteouts_give_the_same_files_as_umoci(store: ImageStore, tmp_path: Path) -> None:
    lower = tar(
        entry("etc"),
        entry("etc/deleted", b"1"),
        entry("etc/replaced", b"2"),
        entry("etc/kept", b"3", mode=0o640),
        entry("gone"),
        entry("gone/with/all/below", b"4"),
        entry("cleared", mode=0o700),
        entry("cleared/old", b"5"),
        entry("cleared/old-directory"),
        entry("file-to-directory", b"6"),
        entry("directory-to-file"),
        entry("directory-to-file/x", b"7"),
        link("link", "etc/kept"),
        hard_link("hard", "etc/kept"),
        entry("reborn"),
        entry("reborn/old", b"8"),
        entry("late"),
        entry("late/old", b"9"),
    )
    upper = tar(
        entry("etc"),
        entry("etc/.wh.deleted", b""),
        entry("etc/replaced", b"new"),
        entry(".wh.gone", b""),
        entry("cleared", mode=0o700),
        entry("cleared/.wh..wh..opq", b""),
        entry("cleared/new", b"new"),
        entry("file-to-directory"),
        entry("file-to-directory/inside", b"new"),
        entry("directory-to-file", b"new"),
        link("link", "elsewhere"),
        entry(".wh.reborn", b""),
        entry("reborn"),
        entry("reborn/new", b"new"),
        entry("late"),
        entry("late/new", b"new"),
        entry(".wh.late", b""),
        entry(".wh.never-was", b""),
    )
    top = tar(entry("etc"), entry("etc/deleted", b"back"), entry("cleared"), entry("cleared/.wh.new", b""))
    layers = unpack(store, tmp_path, lower, upper, top)
    seen = merge(layers, tmp_path / "overlay")
    expected = umoci(next(tmp_path.glob("layout-*")), tmp_path / "bundle")
    assert seen == expected
    assert "gone" not in seen
    assert seen["etc/deleted"][2] == "back"
    assert "cleared/old" not in seen
    assert not {"reborn/old", "late/old"} & set(seen)
    assert {"reborn/new", "late/new"} <= set(seen)


def in_two_gzip_members(data: bytes) -> bytes:
    return gzip.compress(data[:700]) + gzip.compress(data[700:])


def test_every_compression_gives_the_same_files(tmp_path: Path) -> None:
    archive = tar(entry("a"), entry("a/b", os.urandom(300_000)), entry("c", b"", mode=0o755))
    found = []
    for compress in (gzip.compress, zstd, plain, in_two_gzip_members):
        here = ImageStore(tmp_path / f"store-{len(found)}", budget_gib=1)
        found.append(listing(unpack(here, tmp_path, archive, compress=compress)[0]))
    assert found == [found[0]] * 4
    assert set(found[0]) == {"a", "a/b", "c"}


def test_times_and_modes_are_kept_readable_for_the_owner(store: ImageStore, tmp_path: Path) -> None:
    (layer,) = unpack(
        store,
        tmp_path,
        tar(
            entry("d", mode=0),
            entry("d/f", b"x", mode=0, uid=1234, gid=4321),
            entry("t", mode=0o1777),
            entry("s", b"x", mode=0o6755),
            entry("g", mode=0o2755),
        ),
    )
    modes = {path: (layer / path).stat().st_mode & 0o7777 for path in ("d", "d/f", "t", "s", "g")}
    assert modes == {"d": 0o700, "d/f": 0o400, "t": 0o1777, "s": 0o755, "g": 0o755}
    assert {(layer / path).stat().st_mtime for path in modes} == {MTIME}
    assert {(layer / path).stat().st_uid for path in modes} == {os.getuid()}


@pytest.mark.parametrize(
    "name", ["/evil", "../../evil", "a/../../../evil", "//evil", "./evil", "/../evil/", "a/./../evil"]
)
def test_no_name_leads_out_of_the_layer(store: ImageStore, tmp_path: Path, name: str) -> None:
    (layer,) = unpack(store, tmp_path, tar(entry(name, b"x")))
    assert (layer / "evil").read_bytes() == b"x"
    assert not (layer.parent / "evil").exists()


@pytest.mark.parametrize("target", ["/", "/etc", "../../../../..", "..", "/proc/self/root", "../staging"])
def test_writes_through_links_stay_in_the_layer(
    store: ImageStore, directory: Path, tmp_path: Path, target: str
) -> None:
    before = sorted(Path("/etc").iterdir())
    (layer,) = unpack(store, tmp_path, tar(link("way", target), entry("way/hone-evil", b"x")))
    assert len(list(layer.rglob("hone-evil"))) == 1
    assert len(list(directory.rglob("hone-evil"))) == 1
    assert sorted(Path("/etc").iterdir()) == before
    assert not Path("/hone-evil").exists()


def test_file_replaces_a_link_without_following_it(store: ImageStore, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    (layer,) = unpack(store, tmp_path, tar(link("x", str(victim)), entry("x", b"new")))
    assert (layer / "x").read_bytes() == b"new"
    assert victim.read_text() == "untouched"


@pytest.mark.parametrize("target", ["/etc/passwd", "../../../../etc/passwd", "nowhere", "way/passwd", "d"])
def test_hard_link_out_of_the_layer_is_refused(
    store: ImageStore, directory: Path, tmp_path: Path, target: str
) -> None:
    error = refused(store, tmp_path, tar(entry("d"), link("way", "/etc"), hard_link("x", target)))
    assert error.problem == "damaged_image"
    assert "hard link" in str(error)
    assert left(directory) == []


def test_hard_links_stay_linked(store: ImageStore, tmp_path: Path) -> None:
    (layer,) = unpack(store, tmp_path, tar(entry("a", b"x"), hard_link("d/b", "/a"), hard_link("c", "d/b")))
    assert len({(layer / name).stat().st_ino for name in ("a", "d/b", "c")}) == 1


def test_devices_pipes_and_attributes_are_dropped(store: ImageStore, tmp_path: Path) -> None:
    attributes = {"SCHILY.xattr.user.overlay.redirect": "/etc", "SCHILY.xattr.security.capability": "x"}
    (layer,) = unpack(
        store,
        tmp_path,
        tar(
            entry("zero", b"", type=tarfile.CHRTYPE, devmajor=1, devminor=5),
            entry("whiteout", b"", type=tarfile.CHRTYPE, devmajor=0, devminor=0),
            entry("disk", b"", type=tarfile.BLKTYPE, devmajor=8, devminor=0),
            entry("pipe", b"", type=tarfile.FIFOTYPE),
            entry("d", pax_headers=attributes),
            entry("f", b"x", pax_headers=attributes),
        ),
    )
    assert sorted(path.name for path in layer.iterdir()) == ["d", "f"]
    assert [os.listxattr(layer / name) for name in ("d", "f")] == [[], []]


def test_deletion_becomes_a_whiteout_device(store: ImageStore, tmp_path: Path) -> None:
    (layer,) = unpack(store, tmp_path, tar(entry("d/.wh.x", b""), entry("o/.wh..wh..opq", b"")))
    info = (layer / "d/x").lstat()
    assert stat.S_ISCHR(info.st_mode)
    assert info.st_rdev == 0
    assert os.getxattr(layer / "o", "user.overlay.opaque") == b"y"


def test_names_of_any_bytes_are_kept(store: ImageStore, tmp_path: Path) -> None:
    names = [b"\xff\xfe", b"new\nline", b" ", b"-rf", b"a\\b", "é".encode(), b"x" * 255, b"\x01\x7f"]
    archive = tar(*(entry(os.fsdecode(name), b"x") for name in names), link("l", os.fsdecode(b"\xff/\xfe")))
    (layer,) = unpack(store, tmp_path, archive)
    assert {os.fsencode(path.name) for path in layer.iterdir()} == {*names, b"l"}
    assert os.fsencode((layer / "l").readlink()) == b"\xff/\xfe"


def test_later_entry_of_the_same_name_wins(store: ImageStore, tmp_path: Path) -> None:
    (layer,) = unpack(
        store,
        tmp_path,
        tar(
            entry("a", b"1"), entry("a", b"2"),
            entry("b"), entry("b/c", b"1"), entry("b", b"file"),
            entry("d", b"1"), entry("d"), entry("d/e", b"2"),
            link("f", "a"), entry("f"), entry("f/g", b"3"),
            entry("h"), entry("h/i", b"4"), entry("h", mode=0o711),
        ),
    )  # fmt: skip
    found = {name: content for name, (kind, _, content) in listing(layer).items() if kind == "file"}
    assert found == {"a": "2", "b": "file", "d/e": "2", "f/g": "3", "h/i": "4"}
    assert (layer / "h").stat().st_mode & 0o777 == 0o711


@pytest.mark.parametrize(
    "entries",
    [
        [entry("f", b"x"), entry("f/below", b"x")],
        [link("a", "b"), link("b", "a"), entry("a/x", b"x")],
        [entry("x" * 256, b"x")],
        [entry("d/" * 3000 + "x", b"x")],
        [entry("d/" * 1400 + "x", b"x")],
        [entry("d/" * 300), link("l", "d/" * 300), entry("l/" + "d/" * 300 + "x", b"x")],
        [
            entry("d" * 250),
            *(link(f"l{n}", f"{'d' * 250}/" * n) for n in range(2, 12)),
            link("far", "/l11/l11"),
            entry("x" * 250 + "/" + f"{'d' * 250}/" * 13),
        ],
        [entry(".wh.", b"")],
        [entry(".wh...", b"")],
        [entry("bad\0name", b"x", pax_headers={"path": "bad\0name"})],
    ],
    ids=[
        "through a file",
        "links in a circle",
        "long name",
        "long path",
        "deep",
        "deep by a link",
        "longer still",
        "no name",
        "up",
        "nul",
    ],
)
def test_impossible_names_are_refused(
    store: ImageStore, directory: Path, tmp_path: Path, entries: list[Any]
) -> None:
    assert refused(store, tmp_path, tar(*entries)).problem == "damaged_image"
    assert left(directory) == []


@pytest.mark.parametrize(
    "archive",
    [b"", b"no archive" * 1000, tar(entry("a", b"x" * 5000))[:3000], tar(entry("a"))[:512] + b"\1" * 1024],
    ids=["empty", "text", "cut", "garbage behind a member"],
)
def test_incomplete_archive_is_refused(
    store: ImageStore, directory: Path, tmp_path: Path, archive: bytes
) -> None:
    error = refused(store, tmp_path, archive)
    assert (error.problem, error.retryable) == ("damaged_image", False)
    assert "\n" not in str(error)
    assert left(directory) == []


def test_layer_with_another_digest_is_refused(store: ImageStore, directory: Path, tmp_path: Path) -> None:
    error = refused(store, tmp_path, tar(entry("a", b"x")), diff_ids=[digest(b"other")])
    assert error.problem == "damaged_image"
    assert digest(tar(entry("a", b"x"))) in str(error)
    assert left(directory) == []


@pytest.mark.parametrize("spoil", [lambda data: data[:-20], lambda data: data[:40] + b"\0\0\0\0" + data[44:]])
def test_damaged_compression_is_refused(
    store: ImageStore, directory: Path, tmp_path: Path, spoil: Any
) -> None:
    archive = tar(entry("a", os.urandom(3000)))
    error = refused(store, tmp_path, archive, compress=lambda data: spoil(gzip.compress(data)))
    assert error.problem == "damaged_image"
    assert left(directory) == []


_SPARSE = {f"GNU.sparse.{key}": value for key, value in
           {"major": "1", "minor": "0", "name": "bomb", "realsize": str(64 << 20)}.items()}  # fmt: skip


@pytest.mark.parametrize(
    "archive",
    [
        tar(entry("bomb", bytes(64 << 20))),
        tar(entry("f", b"x")) + bytes(64 << 20),
        tar(entry("bomb", f"1\n{64 << 20}\n0\n".encode().ljust(512, b"\0"), pax_headers=_SPARSE)),
    ],
    ids=["a large file", "behind the end", "a file of holes"],
)
def test_decompression_bomb_is_refused_early(
    store: ImageStore, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, archive: bytes
) -> None:
    monkeypatch.setattr(layers, "FREE_BYTES", 1 << 20)
    error = refused(store, tmp_path, archive)
    assert error.problem == "damaged_image"
    assert "unpacks to more than" in str(error)
    assert left(directory) == []


def test_layer_above_the_budget_names_the_setting(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "images", budget_gib=0.001)
    error = refused(store, tmp_path, tar(entry("large", os.urandom(4 << 20))), compress=plain)
    assert error.problem == "disk_full"
    assert "sandbox.images_gib" in str(error)
    assert left(tmp_path / "images") == []


def test_too_many_entries_are_refused(
    store: ImageStore, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "MAX_ENTRIES", 100)
    assert refused(store, tmp_path, tar(*(entry(str(n), b"") for n in range(101)))).problem == "damaged_image"
    assert refused(store, tmp_path, tar(entry("d/" * 101, b""))).problem == "damaged_image"
    assert left(directory) == []


def test_header_that_needs_all_memory_is_refused(store: ImageStore, directory: Path, tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1 << 40
    archive = info.tobuf(tarfile.GNU_FORMAT) + bytes(4096)
    assert refused(store, tmp_path, archive).problem == "damaged_image"
    assert left(directory) == []


_TAKEN_OVER = """
import json, os, socket, sys
reached = []
for path in ("/etc/passwd", {secret!r}, "/proc/self/status", "/dev/null"):
    if os.path.exists(path):
        reached.append(path)
for path in ("/evil", "/usr/evil", "/modules/evil", "/unpack.py"):
    try:
        open(path, "a").close()
        reached.append("write " + path)
    except OSError:
        pass
try:
    os.chroot("/layer")
    reached.append("chroot")
except OSError:
    pass
try:
    socket.create_connection(("127.0.0.1", {port}), timeout=5)
    reached.append("network")
except OSError:
    pass
detail = f"reached {{reached}}, environment {{sorted(os.environ)}}"
print(json.dumps({{"error": "damaged", "detail": detail}}))
"""


def test_compromised_unpacker_reaches_nothing(
    store: ImageStore, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        taken_over = tmp_path / "taken_over.py"
        taken_over.write_text(_TAKEN_OVER.format(secret=str(secret), port=listening.getsockname()[1]))
        monkeypatch.setattr(layers.unpack, "__file__", str(taken_over))
        monkeypatch.setenv("TOKEN", "secret")
        error = refused(store, tmp_path, tar(entry("f", b"x")))
    assert "reached [], environment ['LC_CTYPE', 'PWD']" in str(error)
    assert left(directory) == []


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "nonsense",
        "[]",
        '{"ok": 1}',
        '{"error": 7}',
        pytest.param("x" * 10_000_000, id="ten_megabytes"),
        pytest.param("\xff\0", id="no_utf8"),
    ],
)
def test_unexpected_reply_of_the_unpacker_is_an_error(
    store: ImageStore, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: str
) -> None:
    script = tmp_path / "saying.py"
    text, times = reply[:100], len(reply) // 100 or 1
    script.write_text(f"import sys; sys.stdout.buffer.write({text!r}.encode('latin1') * {times})")
    monkeypatch.setattr(layers.unpack, "__file__", str(script))
    error = refused(store, tmp_path, tar(entry("f", b"x")))
    assert error.problem == "damaged_image"
    assert len(str(error)) < 1000
    assert left(directory) == []
