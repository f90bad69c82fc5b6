"""The image `host`: what of this machine a sandbox of it shows."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from hone.sandbox import Provider, make_provider
from hone.sandbox.conformance.suite import Run, open_provider, start
from hone.sandbox.settings import SandboxSettings

pytestmark = pytest.mark.sandbox


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    base = tmp_path_factory.mktemp("hone")
    settings = SandboxSettings(state_dir=base / "state", cache_dir=base / "cache")
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
