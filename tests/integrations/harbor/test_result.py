"""What travels of an agent's files, from the tar stream that its sandbox gives."""

from __future__ import annotations

import asyncio
import io
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.environment import (
    BrokenTree,
    EnvironmentSettings,
    PatchRefused,
    extract_result,
    filter_patch,
    put_result,
    result_tree,
)
from hone.environment.result import take_base
from hone.environment.result_tree import (
    changed_files,
    commit_stream,
    diff_stream,
    make_directory,
    stays_inside,
)
from hone.sandbox import ExecResult
from hone.sandbox.contract import Command
from tests.environment.scripted import ScriptedSandbox, ended

NAMES = st.text(
    st.characters(blacklist_characters="/\0", blacklist_categories=("Cs",)), min_size=1, max_size=8
)
TREES = st.dictionaries(
    NAMES.map(lambda name: f"d{name}"), st.tuples(st.binary(max_size=30), st.booleans()), max_size=5
)
ROOTS = ("/app",)


def archive(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def member(name: str, data: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def base_of(folder: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    make_directory(folder / "base")
    commit_stream(archive(folder / "base.tar", *members), folder / "base", ROOTS)
    return folder / "base"


def changed(
    folder: Path, base: Path, *members: tuple[tarfile.TarInfo, bytes]
) -> dict[str, tuple[str, bytes]]:
    """Return path -> kind and content of what a patch to these members changes."""
    patch = diff_stream(archive(folder / "now.tar", *members), base, ROOTS, max_kib=1024)
    return {file.path: (file.kind, file.content) for file in changed_files(patch, base)}


def members_of(tree: Mapping[str, tuple[bytes, bool]]) -> list[tuple[tarfile.TarInfo, bytes]]:
    return [member(f"app/{name}", data, mode=0o755 if run else 0o644) for name, (data, run) in tree.items()]


@given(before=TREES, after=TREES)
def test_every_change_of_a_tree_travels(before: Mapping[str, tuple[bytes, bool]], after: Mapping[str, tuple[bytes, bool]], tmp_path_factory: pytest.TempPathFactory) -> None:  # fmt: skip  # noqa: E501
    folder = tmp_path_factory.mktemp("result")
    base = base_of(folder, *members_of(before))
    expected = {
        f"app/{name}": ("program" if run else "file", data)
        for name, (data, run) in after.items()
        if before.get(name) != (data, run)
    } | {f"app/{name}": ("deleted", b"") for name in before.keys() - after.keys()}
    kept = {path: entry for path, entry in expected.items() if not path.endswith(".pyc")}
    assert changed(folder, base, *members_of(after)) == kept


def test_links_within_the_tree_travel_and_others_do_not(tmp_path: Path) -> None:
    base = base_of(tmp_path, member("app/a", b"1"))
    links = {"app/in": "a", "app/up": "../etc/passwd", "app/out": "/etc/passwd"}
    made = [member(name, type=tarfile.SYMTYPE, linkname=to) for name, to in links.items()]
    assert changed(tmp_path, base, member("app/a", b"1"), *made) == {"app/in": ("link", b"a")}


def test_second_name_of_a_file_is_a_file(tmp_path: Path) -> None:
    base = base_of(tmp_path, member("app/a", b"1"))
    second = member("app/b", type=tarfile.LNKTYPE, linkname="app/a")
    assert changed(tmp_path, base, member("app/a", b"1"), second) == {"app/b": ("file", b"1")}


@pytest.mark.parametrize(
    "name",
    ["etc/passwd", "logs/verifier/reward.txt", "app/../etc/x", "/etc/x", "app/.git/hooks/x",
     "app/.gitmodules",     "app/__pycache__/x.py", "app/x.pyc", "appendix/x", "app//x", "app/./x"],
)  # fmt: skip
def test_names_outside_of_a_result_do_not_travel(name: str, tmp_path: Path) -> None:
    base = base_of(tmp_path, member("app/a", b"1"))
    assert changed(tmp_path, base, member("app/a", b"1"), member(name, b"evil")) == {}


def test_devices_do_not_travel(tmp_path: Path) -> None:
    base = base_of(tmp_path, member("app/a", b"1"))
    special = [member("app/pipe", type=tarfile.FIFOTYPE), member("app/disk", type=tarfile.CHRTYPE)]
    assert changed(tmp_path, base, member("app/a", b"1"), *special) == {}


def test_attributes_in_the_tree_change_nothing(tmp_path: Path) -> None:
    base = base_of(tmp_path, member("app/a", b"1\r\n"))
    found = changed(tmp_path, base, member("app/a", b"2\r\n"), member("app/x", b"\xff\r\n"))
    assert found == {"app/a": ("file", b"2\r\n"), "app/x": ("file", b"\xff\r\n")}


def test_damaged_stream_is_the_agents_fault(tmp_path: Path) -> None:
    base = base_of(tmp_path, member("app/a", b"1"))
    (tmp_path / "bad.tar").write_bytes(b"nonsense" * 200)
    with pytest.raises(BrokenTree, match="cannot be read"):
        diff_stream(tmp_path / "bad.tar", base, ROOTS, max_kib=1024)


def header(kind: bytes, *, name: str = "app/x", **numbers: int) -> bytes:
    """Return the header of a member; numbers by field, also those that no tar program writes."""
    offsets = {"size": 124, "real_size": 483}
    data = bytearray(tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT))
    data[156:157] = kind
    for field, number in numbers.items():
        data[offsets[field] : offsets[field] + 12] = bytes([255 if number < 0 else 128]) + (
            number % (1 << 88)
        ).to_bytes(11, "big")
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    return bytes(data)


LONG_NAME = header(tarfile.GNUTYPE_LONGNAME, size=6) + b"app/x".ljust(512, b"\0")
LONG_RECORD = header(tarfile.XHDTYPE, size=512) + (b"9" * 20 + b" path=app/x\n").ljust(512, b"\0")


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param(header(tarfile.REGTYPE, name="etc/x", size=1 << 62), id="size beyond the end"),
        pytest.param(header(b"V", size=1 << 80), id="size beyond any file"),
        pytest.param(header(tarfile.GNUTYPE_SPARSE, size=0, real_size=-1 << 40), id="negative size"),
        pytest.param(LONG_NAME * 2000, id="names of names"),
        pytest.param(LONG_RECORD, id="record beyond its header"),
    ],
)
def test_forged_header_is_the_agents_fault(headers: bytes, tmp_path: Path) -> None:
    (tmp_path / "now.tar").write_bytes(headers + bytes(20480))
    with pytest.raises(BrokenTree, match="cannot be read"):
        commit_stream(tmp_path / "now.tar", tmp_path / "base", ROOTS)


def test_result_above_the_limit_is_refused(tmp_path: Path) -> None:
    base = base_of(tmp_path, member("app/a", b"1"))
    large = archive(tmp_path / "now.tar", member("app/a", bytes(range(256)) * 400))
    with pytest.raises(BrokenTree, match="larger than 1 KiB"):
        diff_stream(large, base, ROOTS, max_kib=1)


def test_patch_that_does_not_apply_is_refused(tmp_path: Path) -> None:
    base = base_of(tmp_path, member("app/a", b"1\n"))
    patch = "--- a/app/a\n+++ b/app/a\n@@ -1 +1 @@\n-other\n+new\n"
    with pytest.raises(PatchRefused, match="does not apply"):
        changed_files(patch, base)


def test_result_holds_as_many_bytes_as_the_limit_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = base_of(tmp_path, member("app/a", b"1"))
    patch = "--- /dev/null\n+++ b/app/c\n@@ -0,0 +1 @@\n+1234"
    monkeypatch.setattr(result_tree, "MAX_BYTES", 5)
    commit_stream(archive(tmp_path / "now.tar", member("app/b", bytes(5))), base, ROOTS)
    with pytest.raises(BrokenTree, match="hold more than"):
        commit_stream(archive(tmp_path / "now.tar", member("app/b", bytes(6))), base, ROOTS)
    assert [file.content for file in changed_files(f"{patch}\n", base)] == [b"1234\n"]
    with pytest.raises(PatchRefused, match="files of more than"):
        changed_files(f"{patch}5\n", base)


@pytest.mark.parametrize(
    ("path", "link", "inside"),
    [
        ("app/deep/x", "../a", True),
        ("app/x", "../b", False),
        ("app/logs/x", "../a", False),  # the innermost root counts
        ("etc/x", "a", False),
    ],
)
def test_link_stays_inside_the_root_that_it_is_in(path: str, link: str, inside: bool) -> None:
    assert stays_inside(path, link, ("app", "app/logs")) is inside


def test_result_is_what_changes_below_the_roots_that_exist(tmp_path: Path) -> None:
    app, settings = tmp_path / "app", EnvironmentSettings()
    roots = (str(app), str(tmp_path / "missing"))

    def run_here(command: Command) -> ExecResult:
        done = subprocess.run(command.argv, cwd=command.cwd, capture_output=True, check=False)
        assert command.on_output is not None
        command.on_output("stdout", done.stdout)
        return ended(done.returncode, stderr=done.stderr)

    async def run() -> str:
        sandbox = ScriptedSandbox(run_here)
        await take_base(sandbox, roots, tmp_path / "base", timeout_s=9)  # no root exists yet
        app.mkdir()
        for name in ("app/new", "outside"):
            (tmp_path / name).write_text("1\n")
        return await extract_result(sandbox, roots, tmp_path / "base", settings)

    patch = asyncio.run(run())
    (file,) = changed_files(patch, tmp_path / "base")
    assert (f"/{file.path}", file.kind, file.content) == (str(app / "new"), "file", b"1\n")


class ResultSandbox(ScriptedSandbox):
    """Records files that are written, and lines of commands."""

    def __init__(self) -> None:
        super().__init__(lambda command: ended())
        self.steps: list[object] = []

    async def _exec(self, command: Command) -> ExecResult:
        self.steps += command.stdin.decode().splitlines()
        return await super()._exec(command)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        self.steps.append((path, data, mode))


def put(patch: str, base: Path) -> list[object]:
    sandbox = ResultSandbox()
    asyncio.run(put_result(sandbox, filter_patch(patch, ()), ROOTS, base, timeout_s=9))
    return sandbox.steps


def test_result_is_put_in_after_links_in_its_way_are_removed(tmp_path: Path) -> None:
    base = base_of(tmp_path, member("app/old", b"1"))
    now = (
        member("app/deep/x", b"\xff"),
        member("app/run", b"2", mode=0o755),
        member("app/to/link", type=tarfile.SYMTYPE, linkname="../run"),
    )
    patch = diff_stream(archive(tmp_path / "now.tar", *now), base, ROOTS, max_kib=1024)
    assert put(patch, base) == [
        "set -e",
        "[ ! -L /app ] || rm -f -- /app",
        "[ ! -L /app/deep ] || rm -f -- /app/deep",
        "[ ! -L /app/to ] || rm -f -- /app/to",
        "rm -rf -- /app/deep/x",
        "rm -rf -- /app/old",
        "rm -rf -- /app/run",
        "rm -rf -- /app/to/link",
        ("/app/deep/x", b"\xff", 0o644),
        ("/app/run", b"2", 0o755),
        "set -e",
        "mkdir -p -- /app/to && ln -s -- ../run /app/to/link",
    ]
    assert put("", base) == []


@pytest.mark.parametrize(
    ("path", "mode", "said"),
    [
        ("etc/x", "100644", "changes /etc/x, which is not part of"),
        ("app/x", "120000", "makes /app/x a link to '../y', outside of the result"),
    ],
)
def test_result_that_leaves_its_roots_is_refused(path: str, mode: str, said: str, tmp_path: Path) -> None:
    base = base_of(tmp_path, member("app/a", b"1"))
    patch = f"diff --git a/{path} b/{path}\nnew file mode {mode}\n--- /dev/null\n+++ b/{path}\n"
    with pytest.raises(PatchRefused, match=said):
        put(f"{patch}@@ -0,0 +1 @@\n+../y\n\\ No newline at end of file\n", base)
