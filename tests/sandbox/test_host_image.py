"""The image `host`: what of this machine a sandbox of it shows."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hone.sandbox import Provider, make_provider
from hone.sandbox.conformance.suite import Run, open_provider, start
from hone.sandbox.namespaces import host
from hone.sandbox.settings import SandboxSettings

pytestmark = pytest.mark.sandbox


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    base = tmp_path_factory.mktemp("hone")
    settings = SandboxSettings(state_dir=base / "state", cache_dir=base.parent / "cache")
    with open_provider(make_provider(settings)) as run:
        yield run


def test_homes_are_empty_and_host_secrets_absent(run: Run) -> None:
    async def look(provider: Provider) -> None:
        async with await start(provider) as sandbox:
            for path in ("/etc/shadow", "/etc/sudoers"):
                assert (await sandbox.exec(["test", "-e", path])).exit_code == 1, path
            assert (await sandbox.exec("ls -A /root /home /mnt /media /srv /boot 2>/dev/null")).text == (
                "/home:\nagent\n\n/media:\n\n/mnt:\n\n/root:\n\n/srv:\n"
            )

    run(look)


def test_commands_run_as_agent_with_three_variables(run: Run) -> None:
    async def look(provider: Provider) -> None:
        async with await start(provider) as sandbox:
            assert (await sandbox.exec("id -u")).text != "0\n"
            seen = (await sandbox.exec(["env"])).text.splitlines()
        assert sorted(line.split("=")[0] for line in seen) == ["HOME", "LANG", "PATH"]

    run(look)


def test_interpreter_is_the_running_one_with_extensions(run: Run) -> None:
    look_up = "import ctypes, sys, sysconfig; print(sys.version, sysconfig.get_config_var('MULTIARCH'))"
    extensions = "import _ctypes, _sqlite3, _ssl, _struct, lzma, zlib"

    async def look(provider: Provider) -> None:
        async with await start(provider) as sandbox:
            ran = await sandbox.exec(["python3", "-c", f"{look_up}; {extensions}"])
        assert ran.exit_code == 0, ran.stderr
        assert ran.text.startswith(sys.version.split("(")[0])

    run(look)


@pytest.fixture
def etc(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory in place of /etc, below directories that every user may search."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setattr(host, "_ETC", Path(folder))
        yield Path(folder)


def _write(path: Path, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("text")
    path.chmod(mode)


def test_copy_of_etc_has_only_files_that_every_user_may_read(etc: Path, tmp_path: Path) -> None:
    _write(etc / "profile", 0o600)
    _write(etc / "shells", 0o640)
    _write(etc / "ld.so.conf.d" / "key.conf", 0o660)
    _write(etc / "alternatives" / "inner" / "editor", 0o644)
    (etc / "alternatives" / "inner").chmod(0o711)
    _write(etc / "ssl" / "openssl.cnf", 0o644)
    (etc / "ssl").chmod(0o700)
    _write(etc / "private" / "zone", 0o644)
    (etc / "private").chmod(0o750)
    (etc / "timezone").symlink_to("private/zone")
    (etc / "localtime").symlink_to("profile")
    os.mkfifo(etc / "magic", 0o644)
    _write(etc / "services", 0o444)  # the honest ones
    _write(etc / "ld.so.conf.d" / "libc.conf", 0o644)
    _write(etc / "zones" / "zone", 0o644)
    (etc / "os-release").symlink_to("zones/zone")
    host.build_etc(tmp_path / "built")
    built = tmp_path / "built" / "etc"
    written = {"passwd", "group", "hosts", "hostname", "nsswitch.conf", "resolv.conf"}
    names = {str(path.relative_to(built)) for path in built.rglob("*") if path.is_file()}
    assert names - written == {"services", "ld.so.conf.d/libc.conf", "os-release"}
