"""Limits of a container, the settings that its image decides, and isolation from the engine."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from hone.sandbox import Limits, Mount, ProviderUnavailable, Sandbox, SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings
from tests.sandbox.docker.looking import containers, volumes
from tests.services.engines import Engine
from tests.services.image import derive

pytestmark = pytest.mark.sandbox

# Each line is an attempt on process 1 of the sandbox, whose descriptors are the channel.
ATTEMPTS = (
    "cat /proc/1/environ",
    "readlink /proc/1/fd/0",
    "cat /proc/1/fd/0",
    "head -c 1 /proc/1/mem",
    "echo rubbish > /proc/1/fd/1",
    "echo rubbish > /proc/1/fd/4",
    "ls /proc/1/root/ /proc/1/cwd/ && ls /proc/1/map_files/",
    "python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL(None).ptrace(16, 1, 0, 0) != 0)'",
    "kill -STOP 1 && kill -KILL 1 && ! kill -0 1",
    "mount -t tmpfs none /mnt",
    "mount -o remount,rw /opt/hone/init",
    "touch /opt/hone/init/x",
    "rm -r /opt/hone/init/lib",
    "unshare --user --map-root-user true",
    "mknod /dev/disk b 8 0",
    "echo 1 > /proc/sys/kernel/sysrq",
    "echo 1 > /sys/fs/cgroup/memory/memory.limit_in_bytes || echo max > /sys/fs/cgroup/memory.max",
)


def _inside(
    settings: SandboxSettings, scenario: Callable[[Sandbox], Awaitable[None]], spec: SandboxSpec
) -> None:
    async def run() -> None:
        async with make_provider(settings) as provider, await provider.start(spec) as sandbox:
            await scenario(sandbox)

    asyncio.run(run())


def test_container_has_the_limits_and_no_capabilities(
    settings: SandboxSettings, engine: Engine, tmp_path: Path
) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        (described,) = containers(engine).values()
        host = described["HostConfig"]
        assert (host["Memory"], host["MemorySwap"]) == (300 << 20, 300 << 20)
        assert host["PidsLimit"] == 61
        assert host["NanoCpus"] == 500_000_000
        assert host["NetworkMode"] == "none"
        assert described["HostConfig"]["AutoRemove"] is True
        labels = described["Config"]["Labels"]
        assert labels["hone.run"] == "run-7"
        assert f"{labels['hone.owner']}/{labels['hone.lease']}" == sandbox.id
        status = dict(
            line.split(":\t", 1)
            for line in (await sandbox.exec("cat /proc/self/status")).text.splitlines()
            if ":\t" in line
        )
        assert (status["Seccomp"], status["NoNewPrivs"], int(status["CapBnd"], 16)) == ("2", "1", 0)
        assert 1024 <= int((await sandbox.exec("ulimit -n")).text) <= 8192

    limits = Limits(memory_mib=300, pids=60, cpus=0.5)
    _inside(settings, scenario, SandboxSpec(limits=limits, run="run-7"))


def test_init_process_and_host_are_unreachable(settings: SandboxSettings) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        for attempt in ATTEMPTS:
            result = await sandbox.exec(attempt, timeout_s=20)
            assert result.exit_code != 0, (attempt, result)
            assert (await sandbox.exec("echo alive")).text == "alive\n", attempt

    _inside(settings, scenario, SandboxSpec())


@pytest.mark.parametrize("user", ["1234:4321", "nobody"])
def test_image_configuration_is_used(
    settings: SandboxSettings, engine: Engine, tmp_path: Path, user: str
) -> None:
    name = f"configured-{user.partition(':')[0]}:1"
    config = {
        "User": user,
        "WorkingDir": "/srv/app/deep",
        "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "ONE=1", "LD_PRELOAD=/nowhere.so", "BOTH=image"],
        "Entrypoint": ["false"],
        "Cmd": ["false"],
        "Volumes": {"/data": {}},
        "Healthcheck": {"Test": ["CMD", "touch", "/tmp/checked"], "Interval": 1_000_000_000},
    }
    derive(tmp_path / "image.tar", name, {"srv/app/deep/readme": b"hello"}, config)
    engine.load(tmp_path / "image.tar")

    async def scenario(sandbox: Sandbox) -> None:
        uid = "1234" if user.startswith("1234") else "65534"
        assert (await sandbox.exec("id -u; pwd; cat readme")).text == f"{uid}\n/srv/app/deep\nhello"
        assert (await sandbox.exec("echo $ONE $BOTH $SPEC")).text == "1 spec s\n"
        assert (await sandbox.exec("echo $HOME")).text == ("/\n" if uid == "1234" else "/nonexistent\n")
        await sandbox.write("sub/file", b"mine")
        assert (await sandbox.exec("echo more > other && cat sub/file")).text == "mine"
        assert "tmpfs" in (await sandbox.exec("cat /proc/mounts | grep ' /data '")).text
        (described,) = containers(engine).values()
        assert "LD_PRELOAD=" in described["Config"]["Env"]  # the supervisor is loaded without it
        assert described["State"].get("Health", {}).get("Status", "") in ("", "none")

    spec = SandboxSpec(image=f"docker://{name}", env={"BOTH": "spec", "SPEC": "s"})
    _inside(settings, scenario, spec)
    assert volumes(engine) == []


@pytest.mark.skipif(not Path("/usr/share/i18n/locales/POSIX").exists(), reason="no sources of locales")
def test_image_with_another_locale_works(settings: SandboxSettings, engine: Engine, tmp_path: Path) -> None:
    define = ["localedef", "--quiet", "-i", "POSIX", "-f", "ISO-8859-1", str(tmp_path / "latin")]
    subprocess.run(define, check=False)  # it warns, and ends with 1
    parts = [path for path in (tmp_path / "latin").rglob("*") if path.is_file()]
    locale = {f"usr/lib/locale/{path.relative_to(tmp_path)}": path.read_bytes() for path in parts}
    derive(tmp_path / "image.tar", "latin:1", locale, {"Env": ["PATH=/usr/bin:/bin", "LC_ALL=latin"]})
    engine.load(tmp_path / "image.tar")

    async def scenario(sandbox: Sandbox) -> None:
        told = await sandbox.exec("python3 -c 'import locale; print(locale.getpreferredencoding())'")
        assert told.text == "ISO-8859-1\n"
        assert (await sandbox.exec("echo \u00e9")).text == "\u00e9\n"

    _inside(settings, scenario, SandboxSpec(image="docker://latin:1"))


def test_layer_belongs_to_the_images_user(settings: SandboxSettings, engine: Engine, tmp_path: Path) -> None:
    derive(tmp_path / "image.tar", "as-nobody:1", {}, {"User": "nobody", "Env": ["PATH=/usr/bin:/bin"]})
    engine.load(tmp_path / "image.tar")
    layer = tmp_path / "layer"
    (layer / "pkg").mkdir(parents=True)
    (layer / "pkg" / "secret").write_text("s")
    (layer / "pkg" / "secret").chmod(0o600)

    async def scenario(sandbox: Sandbox) -> None:
        assert (await sandbox.exec("cat pkg/secret && echo x > pkg/secret && rm -r pkg && ls")).text == "s"

    _inside(settings, scenario, SandboxSpec(image="docker://as-nobody:1", layer=layer))
    assert (layer / "pkg" / "secret").read_text() == "s"


def test_nested_mount_is_read_only(settings: SandboxSettings, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "below").mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", source / "below"], check=True)

    async def scenario(sandbox: Sandbox) -> None:
        for command in ("touch /mnt/x", "touch /mnt/below/x", "rmdir /mnt/below"):
            assert (await sandbox.exec(command)).exit_code != 0, command

    try:
        _inside(settings, scenario, SandboxSpec(mounts=(Mount(source=source, target="/mnt"),)))
        assert list((source / "below").iterdir()) == []
    finally:
        subprocess.run(["umount", source / "below"], check=True)


def test_unsupported_spec_is_refused_without_retry(settings: SandboxSettings, tmp_path: Path) -> None:
    async def run() -> None:
        async with make_provider(settings) as provider:
            for spec in (
                SandboxSpec(image="rootfs:/srv/image"),
                SandboxSpec(image="docker://two words"),
                SandboxSpec(image="docker://"),
                SandboxSpec(snapshot=tmp_path),
            ):
                with pytest.raises(ProviderUnavailable) as refusal:
                    await provider.start(spec)
                assert not refusal.value.retryable
            for spec in (
                SandboxSpec(workdir="relative"),
                SandboxSpec(workdir="/a/../b"),
                SandboxSpec(workdir="/proc/x"),
                SandboxSpec(network=("*.org:443",)),
            ):
                with pytest.raises(ValueError):
                    await provider.start(spec)

    asyncio.run(run())
