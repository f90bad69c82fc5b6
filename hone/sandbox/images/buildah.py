"""Build Dockerfiles with buildah, which needs no engine, in a storage that only Hone uses.

    builds/storage/, builds/run/   buildah's layers, which builds with equal first steps share
    builds/lock                    held (shared) while buildah works on them

Every process of a build is in a PID namespace, whose first process dies with Hone or on cancellation; all
mounts are in a mount namespace that ends with it. What a killed build leaves in the storage, the next one
removes. Instructions run as root in a container of runc, for an ordinary user in a user namespace.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import pwd
import re
import shutil
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from hone.sandbox.contract import ProviderUnavailable
from hone.sandbox.images.dockerfile import NO_NETWORK, refusal
from hone.sandbox.images.layers import disk_full
from hone.sandbox.images.locks import POLL_S, Lock, Staging, child, disk_usage, lock
from hone.utils.concurrency import run_in_thread

TIMEOUT_S = 7200.0
Descriptor = Mapping[str, Any]  # of a blob: mediaType, digest and size, as in the OCI image specification
_END_S = 10.0  # for the processes of a cancelled build to leave their control groups
_LAST_CHARACTERS = 400  # of a build's output, in a message
_CGROUPS = Path("/sys/fs/cgroup")
_SUBIDS = (Path("/etc/subuid"), Path("/etc/subgid"))
_NAMESPACES = ("--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_OFFLINE = re.compile(
    r"network is (?:unreachable|down)|name resolution|resolve host|no such host|getaddrinfo|unknown host"
    r"|name or service not known|could ?n[o']t (?:resolve|connect)|connection (?:refused|timed out)"
    r"|unable to (?:resolve|connect)|failed to establish a new connection|EAI_AGAIN|ENOTFOUND",
    re.IGNORECASE,
)
_FULL = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
_ERROR = re.compile(r"^Error: ", re.MULTILINE)  # the last one is buildah's own
_STEP = re.compile(r'building at STEP "(?P<step>.*?)": (?P<reason>.*?)(?: &imagebuilder\..*)?$', re.DOTALL)
_NOISE = re.compile(r"^(?:\[\d+/\d+\] )?(?:STEP \d+/\d+:|COMMIT|--> ).*|^time=.*", re.MULTILINE)
_NO_HISTORY = "history lists"  # the error about a base image whose history does not name its layers


def is_installed() -> bool:
    """Return whether buildah can be started."""
    return shutil.which("buildah") is not None


class Buildah:
    """buildah on the storage below `directory`, which many processes may share. Use `open_buildah`."""

    def __init__(self, directory: Path, made: Staging, group: str) -> None:
        self._directory, self._made, self._group = directory, made, group

    async def add_image(self, layout: Path, name: str) -> str:
        """Bring the image of an OCI layout into the storage, under its full name; return its id."""
        image_id = (await self._checked("pull", "--quiet", f"oci:{layout}:latest")).split()[-1]
        if "@" not in name:  # a FROM with variables is looked up by its name
            await self._checked("tag", image_id, name)
        return image_id

    async def build(self, context: Path, bases: Mapping[str, str], *, network: bool) -> str:
        """Build the Dockerfile of a directory; return the id of the image.

        Args:
            bases: ids of the images that it names.
        Raises:
            ProviderUnavailable: the Dockerfile cannot be built.
        """
        id_file = self._made.directory / "id"
        runtime = shutil.which("runc")
        arguments = [
            # The format of OCI has no SHELL and no ONBUILD.
            *("bud", "--format", "docker", "--force-rm", "--identity-label=false", "--pull=never"),
            *("--isolation", "oci" if os.geteuid() == 0 else "rootless"),
            *(("--runtime", runtime) if runtime else ()),
            *("--runtime-flag", f"root={self._made.new_directory('runtime')}"),
            *(("--cgroup-parent", f"/{self._group}") if os.geteuid() == 0 else ()),
            *(("--network", "host") if network else ("--network", "none", "--http-proxy=false")),
            *(f"--build-context={name}=docker-image://{base}" for name, base in bases.items()),
            *("--file", str(context / "Dockerfile"), "--iidfile", str(id_file)),
        ]
        code, output = await self._run(*arguments, "--layers", str(context))
        if code and _NO_HISTORY in output:  # such an image is built in one layer, which nothing can share
            code, output = await self._run(*arguments, "--layers=false", str(context))
        if code:
            raise explain(output, network=network)
        return await asyncio.to_thread(id_file.read_text)

    async def write_blobs(self, image: str, known: Mapping[str, Descriptor]) -> str:
        """Write the blobs of an image into the staging directory; return the digest of its OCI manifest.

        Args:
            known: by diff id, layers that are left out; the manifest names the blob of the descriptor.
        """
        layout, blobs = self._made.new_directory("built"), self._made.blobs
        (layout / "blobs").symlink_to(blobs.parent)
        # buildah writes no layer of which there is a file already, whatever the file holds.
        places = [blobs / diff_id.removeprefix("sha256:") for diff_id in known]
        for place in places:
            place.touch()
        await self._checked("push", "--quiet", image, f"oci:{layout}:latest")
        for place in places:
            place.unlink()
        written = json.loads((layout / "index.json").read_bytes())["manifests"][0]["digest"]
        manifest = json.loads((blobs / written.removeprefix("sha256:")).read_bytes())
        manifest["layers"] = [known.get(layer["digest"], layer) for layer in manifest["layers"]]
        data = json.dumps(manifest).encode()
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return f"sha256:{digest}"

    async def remove_containers(self) -> None:
        """Remove the containers of builds that were killed."""
        if await asyncio.to_thread(self._has_containers):
            await self._run("rm", "--all")

    def _has_containers(self) -> bool:
        for path in self._directory.glob("storage/*-containers/containers.json"):
            if json.loads(path.read_text() or "[]"):
                return True
        return False

    async def remove_storage(self) -> None:
        """Remove everything that builds have kept."""
        paths = [str(self._directory / name) for name in ("storage", "run")]
        await self._start(["rm", "-rf", "--", *paths])

    async def _checked(self, *arguments: str) -> str:
        code, output = await self._run(*arguments)
        if code:
            raise explain(output, network=True)
        return output

    async def _run(self, *arguments: str) -> tuple[int, str]:
        """Run buildah; return its exit code and its output."""
        empty = self._made.directory / "no-registries"
        await asyncio.to_thread(empty.mkdir, exist_ok=True)
        return await self._start(
            [
                *self._buildah(),
                *("--registries-conf-dir", str(empty), "--short-name-alias-conf", str(empty / "aliases")),
                *arguments,
            ]
        )

    def _buildah(self) -> list[str]:
        storage, run = self._directory / "storage", self._directory / "run"
        return ["buildah", "--root", str(storage), "--runroot", str(run)]

    async def _start(self, command: list[str]) -> tuple[int, str]:
        """Run a program in namespaces of its own; everything that it started ends with it."""
        inside = ["unshare", *_NAMESPACES, *command]
        if os.geteuid() != 0:
            inside = [*self._buildah(), "unshare", "setpriv", "--pdeathsig", "KILL", *inside]
        environment = await asyncio.to_thread(self._environment)
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),
                child(inside, self._made, stderr=asyncio.subprocess.STDOUT, env=environment) as started,
            ):
                process, output = started
                text, _ = await asyncio.shield(output)
        except TimeoutError:
            raise refusal(f"it takes more than {TIMEOUT_S:.0f} seconds") from None
        assert process.returncode is not None, "its output has ended"
        return process.returncode, text.decode("utf-8", "replace")

    def _environment(self) -> dict[str, str]:
        """Return the variables of this process without those that change what buildah does."""
        own, registries = self._made.directory / "tmp", self._made.directory / "registries.conf"
        own.mkdir(exist_ok=True)
        registries.write_text('unqualified-search-registries = ["docker.io"]\n')
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("BUILDAH_", "CONTAINERS_", "STORAGE_", "_CONTAINERS_", "XDG_"))
        }
        paths = dict.fromkeys(("TMPDIR", "HOME", "XDG_RUNTIME_DIR"), str(own))
        return {**kept, **paths, "CONTAINERS_REGISTRIES_CONF": str(registries)}


@contextlib.asynccontextmanager
async def open_buildah(directory: Path, made: Staging, budget_bytes: int) -> AsyncGenerator[Buildah]:
    """Yield buildah on the storage below `directory`; remove what killed builds left there.

    Args:
        budget_bytes: of the storage; above it, everything in it is removed first, unless another build runs.
    Raises:
        ProviderUnavailable: this user has no user namespace to build in.
    """
    _check_user()
    await asyncio.to_thread(_prepare, directory)
    prefix = await asyncio.to_thread(group_prefix, directory)
    group = f"{prefix}-{made.directory.name}"
    builder = Buildah(directory, made, group)
    if (alone := lock(directory / "lock")) is not None:
        with alone:
            await builder.remove_containers()
            await run_in_thread(_remove_groups, prefix)
            if await run_in_thread(disk_usage, directory) > budget_bytes:
                await builder.remove_storage()
    with await _wait_shared(directory / "lock"):
        try:
            yield builder
        finally:
            await run_in_thread(_remove_groups, group, _END_S)


async def remove_builds(directory: Path, made: Staging) -> None:
    """Remove everything that builds have kept below `directory`, unless a build is running."""
    if is_installed() and (alone := lock(directory / "lock")) is not None:
        with alone:
            await Buildah(directory, made, "").remove_storage()


async def _wait_shared(path: Path) -> Lock:
    while True:
        held = lock(path, shared=True)
        if held is not None:
            return held
        await asyncio.sleep(POLL_S)


def _prepare(directory: Path) -> None:
    directory.mkdir(mode=0o700, exist_ok=True)
    (directory / "lock").touch()


def group_prefix(directory: Path) -> str:
    """Return how the names of the control groups begin in which builds below `directory` run."""
    return f"hone-build-{hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:8]}"


def _check_user() -> None:
    """Raise ProviderUnavailable for an ordinary user without a range of ids for a user namespace."""
    if os.geteuid() == 0:
        return
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        name = str(os.geteuid())
    for path in _SUBIDS:
        lines = path.read_text().splitlines() if path.is_file() else []
        if not any(line.partition(":")[0] in (name, str(os.geteuid())) for line in lines):
            raise ProviderUnavailable(
                f"the user {name} builds Dockerfiles in a user namespace, but {path} gives it no range of "
                f"ids: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {name}",
                retryable=False,
            )


def _remove_groups(prefix: str, wait_s: float = 0.0) -> None:
    """Remove the control groups of builds whose names begin with `prefix`.

    One whose processes have not ended after `wait_s` stays: a killed process takes a moment to leave it.
    """
    deadline = time.monotonic() + wait_s
    while not _remove_unused_groups(prefix) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _remove_unused_groups(prefix: str) -> bool:
    """Return whether none is left."""
    gone = True
    for parent in (*_CGROUPS.glob(f"{prefix}*"), *_CGROUPS.glob(f"*/{prefix}*")):
        for folder, _, _ in os.walk(parent, topdown=False):
            try:
                Path(folder).rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                gone = False
    return gone


def explain(output: str, *, network: bool) -> ProviderUnavailable:
    """Return the error for the output of a failed build: the step, its last output, and the cause."""
    if _FULL.search(output):
        return disk_full("the disk is full while an image is built")
    errors = list(_ERROR.finditer(output))
    error = output[errors[-1].end() :] if errors else output
    step = _STEP.search(error)
    if step is None:
        return refusal(_one_line(error)[-_LAST_CHARACTERS:] or "buildah gave no reason")
    said = _one_line(_NOISE.sub("", output[: errors[-1].start()] if errors else ""))[-_LAST_CHARACTERS:]
    text = (
        f"the step `{_one_line(step['step'])[:200]}` fails ({_one_line(step['reason'])[-_LAST_CHARACTERS:]})"
    )
    if not network and _OFFLINE.search(said):
        text += f", and {NO_NETWORK}"
    return refusal(f"{text}: {said}" if said else text)


def _one_line(text: str) -> str:
    return " ".join(text.split())
