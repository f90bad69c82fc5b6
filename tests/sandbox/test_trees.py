"""Packed trees unpack unchanged, and hostile trees and links are refused."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hone.sandbox import SandboxError, TooLarge, trees
from tests.examples import examples

Change = Callable[[tarfile.TarInfo], None]
_names = st.binary(min_size=1, max_size=60).filter(lambda n: not {0, 47} & set(n) and n not in (b".", b".."))
_trees = st.recursive(
    st.binary(max_size=200),
    lambda inner: st.dictionaries(_names, inner, max_size=4),
    max_leaves=12,
)
_member = st.tuples(
    st.sampled_from(["content", "content/a", "content/a/b", "content/../x", "/x", "..", "a", "content/a/"]),
    st.sampled_from([*b"0123456789xgLKSVA\x00"]).map(lambda byte: bytes([byte])),
    st.sampled_from(["", "a", "../x", "/etc/passwd", "../../x", "content", "."]),
    st.sampled_from([0o644, 0o755, 0o4755, 0o2755, 0o1777, 0]),
    st.binary(max_size=30),
)


def _pack(source: Path) -> io.BytesIO:
    file = io.BytesIO()
    trees.pack(source, file)
    file.seek(0)
    return file


def _write(tree: object, path: Path) -> None:
    if isinstance(tree, bytes):
        path.write_bytes(tree)
        return
    assert isinstance(tree, dict)
    path.mkdir()
    for name, inner in tree.items():
        _write(inner, path / os.fsdecode(name))


def _read(path: Path) -> object:
    if path.is_dir():
        return {os.fsencode(child.name): _read(child) for child in path.iterdir()}
    return path.read_bytes()


def _crafted(*members: tuple[str, Change, bytes], format: int = tarfile.GNU_FORMAT) -> io.BytesIO:
    """An archive of a directory `content` and of these members."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as tar:
        top = tarfile.TarInfo("content")
        top.type, top.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(top)
        for name, change, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            change(member)
            tar.addfile(member, io.BytesIO(data))
    file.seek(0)
    return file


def _set(**values: object) -> Change:
    def change(member: tarfile.TarInfo) -> None:
        for name, value in values.items():
            setattr(member, name, value)

    return change


@given(tree=_trees)
@settings(deadline=None)
def test_unpacked_tree_packs_to_the_same_bytes(tree: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "source", Path(folder) / "out"
        _write(tree, source)
        out.mkdir()
        unpacked = trees.unpack(_pack(source), out)
        assert _read(unpacked) == tree
        assert trees.digest(unpacked) == trees.digest(source)


@given(members=st.lists(_member, max_size=6))
@settings(deadline=None, max_examples=examples(300))
def test_random_archives_write_nothing_outside(
    members: list[tuple[str, bytes, str, int, bytes]],
) -> None:
    crafted = _crafted(
        *((name, _set(type=kind, linkname=link, mode=mode), data) for name, kind, link, mode, data in members)
    )
    _unpack_alone(crafted)


@given(data=st.binary(max_size=3000), cut=st.integers(0, 5000), flip=st.integers(0, 5000))
@settings(deadline=None, max_examples=examples(300))
def test_damaged_archives_raise_typed_errors(data: bytes, cut: int, flip: int) -> None:
    whole = bytearray(_crafted(("content/f", _set(), data)).getvalue())
    whole[flip % len(whole)] ^= 0x41
    _unpack_alone(io.BytesIO(bytes(whole[: cut % len(whole)])))
    _unpack_alone(io.BytesIO(bytes(whole)))


def _unpack_alone(file: io.BytesIO) -> None:
    """Unpack in a directory of its own; fail when anything is outside of it, or odd inside."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "in"
        directory.mkdir()
        with contextlib.suppress(SandboxError, OSError):
            trees.unpack(file, directory)
        assert [path.name for path in Path(folder).iterdir()] == ["in"]
        for path in directory.rglob("*"):
            if path.is_symlink():
                assert path.resolve().is_relative_to(directory / "content")
            else:
                assert path.is_file() or path.is_dir()
                assert not path.stat().st_mode & 0o7022


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("/etc/owned", _set()),
        ("content/../../owned", _set()),
        ("content//owned", _set()),
        ("content/./owned", _set()),
        ("other/owned", _set()),
        ("other", _set()),
        ("content/missing/owned", _set()),
        ("content/link", _set(type=tarfile.SYMTYPE, linkname="/etc/passwd")),
        ("content/link", _set(type=tarfile.SYMTYPE, linkname="../outside")),
        ("content/link", _set(type=tarfile.SYMTYPE, linkname="x/../../outside")),
        ("content/link", _set(type=tarfile.LNKTYPE, linkname="content")),
        ("content/link", _set(type=tarfile.LNKTYPE, linkname="/etc/passwd")),
        ("content/device", _set(type=tarfile.CHRTYPE, devmajor=1, devminor=3)),
        ("content/device", _set(type=tarfile.BLKTYPE, devmajor=8)),
        ("content/pipe", _set(type=tarfile.FIFOTYPE)),
        ("content/sparse", _set(type=tarfile.GNUTYPE_SPARSE)),
        ("content/setuid", _set(mode=0o4755)),
        ("content/setgid", _set(mode=0o2755)),
        ("content", _set()),
    ],
)
def test_hostile_member_is_refused(name: str, change: Change, tmp_path: Path) -> None:
    directory = tmp_path / "in"
    directory.mkdir()
    with pytest.raises(SandboxError, match="refused"):
        trees.unpack(_crafted((name, change, b"")), directory)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert sorted(path.name for path in directory.rglob("*")) in (["content"], ["content", "link"])


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    link = ("content/a", _set(type=tarfile.SYMTYPE, linkname="."), b"")
    for name in ("content/a/b", "content/a"):
        with pytest.raises(SandboxError, match="refused"):
            trees.unpack(_crafted(link, (name, _set(), b"x")), _fresh(tmp_path))


def test_huge_header_is_refused_before_it_is_read(tmp_path: Path) -> None:
    for kind in (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE):
        member = tarfile.TarInfo("content/x")
        member.type, member.size = kind, 8 << 30
        with pytest.raises(SandboxError, match="refused"):
            trees.unpack(io.BytesIO(member.tobuf(tarfile.GNU_FORMAT)), _fresh(tmp_path))


def test_too_many_bytes_or_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(20):
        (source / str(number)).write_bytes(b"x" * 100)
    packed = _pack(source)
    with pytest.raises(TooLarge):
        trees.unpack(packed, _fresh(tmp_path), limit=1999)
    with pytest.raises(TooLarge):
        trees.pack(source, io.BytesIO(), limit=1999)
    monkeypatch.setattr(trees, "ENTRIES_MAX", 20)
    packed.seek(0)
    with pytest.raises(TooLarge):
        trees.unpack(packed, _fresh(tmp_path))
    with pytest.raises(TooLarge):
        trees.pack(source, io.BytesIO())


def test_pipes_and_outward_links_are_not_packed(tmp_path: Path) -> None:
    for number, make in enumerate(
        (
            lambda path: os.mkfifo(path / "pipe"),
            lambda path: (path / "link").symlink_to("/etc/passwd"),
            lambda path: (path / "link").symlink_to("../.."),
        )
    ):
        source = tmp_path / str(number)
        source.mkdir()
        make(source)
        with pytest.raises(SandboxError):
            trees.pack(source, io.BytesIO())


def test_modes_lose_setuid_and_write_for_others(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name, mode in (("a", 0o4755), ("b", 0o666), ("c", 0o600)):
        (source / name).touch()
        (source / name).chmod(mode)
    out = trees.unpack(_pack(source), _fresh(tmp_path))
    assert [oct((out / name).stat().st_mode & 0o7777) for name in "abc"] == ["0o755", "0o644", "0o600"]


def test_too_deep_tree_is_refused_and_can_be_removed(tmp_path: Path) -> None:
    depth = 1200
    opened = [os.open(tmp_path, os.O_RDONLY)]
    for _ in range(depth):
        os.mkdir("d", dir_fd=opened[-1])
        opened.append(os.open("d", os.O_RDONLY, dir_fd=opened[-1]))
    for fd in opened:
        os.close(fd)
    with pytest.raises(TooLarge):
        trees.pack(tmp_path / "d", io.BytesIO())
    trees.remove(tmp_path / "d")
    assert list(tmp_path.iterdir()) == []
    members = [("content" + "/d" * n, _set(type=tarfile.DIRTYPE), b"") for n in range(1, trees.DEPTH_MAX + 2)]
    trees.unpack(_crafted(*members[:-1]), _fresh(tmp_path))
    with pytest.raises(SandboxError, match="deeper"):
        trees.unpack(_crafted(*members), _fresh(tmp_path))


@pytest.mark.parametrize(
    ("folder", "link", "out"),
    [
        ("", "file", False),
        ("", "a/b/c", False),
        ("a/b", "../x", False),
        ("a/b", "../../x", False),
        ("a/b", "./../../x", False),
        ("a/b", "../../../x", True),
        ("", "..", True),
        ("", "/etc/passwd", True),
        ("", "", True),
        ("", "a\0b", True),
        ("a", "b/../x", True),  # b may be a link
        ("", "a/b/c/up/../secret", True),
    ],
)
def test_links_out_of_the_tree_are_recognised(folder: str, link: str, out: bool) -> None:
    assert trees.is_unsafe_symlink(folder, link) is out


NAMES = st.sampled_from(["a", "b", "c"])
LINKS = st.lists(st.sampled_from(["a", "b", "c", "..", "."]), min_size=1, max_size=5).map("/".join)


@settings(max_examples=examples(200), deadline=None)
@given(links=st.dictionaries(st.lists(NAMES, min_size=1, max_size=3).map("/".join), LINKS, max_size=6))
def test_safe_links_stay_in_the_tree_together(
    links: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    top = tmp_path_factory.mktemp("tree")
    for path, link in links.items():
        if trees.is_unsafe_symlink(str(Path(path).parent), link):
            continue
        place = top / path
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            if place.parent.resolve() == place.parent:  # as TreeWriter makes them: never through links
                place.symlink_to(link)
        except (FileExistsError, NotADirectoryError, OSError):
            continue
    for path in top.rglob("*"):
        try:
            found = path.resolve(strict=True)
        except (OSError, RuntimeError):  # it leads nowhere, or in a circle
            continue
        assert found.is_relative_to(top), (path, links)


def _fresh(tmp_path: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=tmp_path))
