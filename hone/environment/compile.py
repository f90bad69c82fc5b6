"""Compile a patch's extensions in a sandbox of their own, and put the libraries into the tree that is graded.

A build runs code of the patch, which could change anything that its sandbox can write: the interpreter of an
image, the test runner's packages, git. So nothing of that sandbox is used but the libraries in the tree; code
under test loads them after the gate has opened, like the patch's Python code.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath

from hone.environment.apply import apply_patch
from hone.environment.environment import GIT_ENV, EnvironmentFailed, PatchRefused, TaskEnvironment
from hone.environment.patch import FilteredPatch, is_protected, with_parents
from hone.environment.settings import EnvironmentSettings
from hone.sandbox.contract import Limits, Provider, ProviderUnavailable, Sandbox, SandboxSpec
from hone.tasks.python.compiled import LIBRARIES, SOURCES

_OUTPUT = 2000  # characters of a failed build that are shown
_MOST_MIB = 512  # of libraries
_BUILD = """
set -u
own={own}; mkdir -m 700 "$own"; touch "$own/began"
({command}) >"$own/log" 2>&1 </dev/null
code=$?
kill -9 -1 2>/dev/null
[ $code = 0 ] || {{ tail -c {output} "$own/log"; exit 1; }}
find . -xdev -type f \\( {names} \\) -newer "$own/began" -size -{most}M -print0 > "$own/found"
mkdir "$own/tree" && xargs -0 -r cp --parents -t "$own/tree" -- < "$own/found"
"""

# Standard input: paths of libraries. No library may be written through a link.
_MAKE_ROOM = r"""
set -u
while IFS= read -r -d '' path; do
    folder=$path
    while [[ $folder == */* ]]; do folder=${folder%/*}; [ ! -L "$folder" ] || exit 1; done
    rm -f -- "$path" || exit 1
done
"""


def changes_sources(paths: Iterable[str]) -> bool:
    """Return whether one of the paths is a file from which extensions are compiled, or their build."""
    return any(
        path.endswith(SOURCES) or path in ("setup.py", "pyproject.toml", "meson.build") for path in paths
    )


@asynccontextmanager
async def compiled_libraries(
    provider: Provider,
    environment: TaskEnvironment,
    command: str,
    workdir: str,
    patch: FilteredPatch,
    protected: Iterable[str],
    *,
    settings: EnvironmentSettings,
    limits: Limits,
) -> AsyncIterator[Path]:
    """Yield a directory with the libraries that the build writes with the patch, by their path in workdir.

    Args:
        command: the build, of bash; runs in workdir.
        protected: paths that no library may have; see `filter_patch`.
    Raises:
        PatchRefused: the patch does not apply, its build fails or takes too long.
        EnvironmentFailed: no sandbox can be started, or git does not work in it.
        SandboxLost: the sandbox is gone.
    """
    spec = SandboxSpec(
        image=environment.image,
        workdir=workdir,
        layer=environment.layer,
        env={**GIT_ENV, **environment.env},
        mounts=environment.build_mounts,
        limits=limits,
    )
    with tempfile.TemporaryDirectory(prefix="hone-libraries-") as folder:
        try:
            sandbox = await provider.start(spec)
        except ProviderUnavailable as error:
            raise EnvironmentFailed(f"no sandbox to compile in: {error}") from error
        async with sandbox:
            found = await _build(sandbox, environment, command, patch, settings)
            target = Path(folder) / "tree"
            await sandbox.download(found, target)
        await asyncio.to_thread(_keep_libraries, target, with_parents(protected))
        yield target


async def _build(
    sandbox: Sandbox,
    environment: TaskEnvironment,
    command: str,
    patch: FilteredPatch,
    settings: EnvironmentSettings,
) -> str:
    """Build in the patched tree; return the directory with the libraries, in the sandbox."""
    await apply_patch(
        sandbox,
        patch.text,
        set(patch.paths),
        timeout_s=settings.slack_s,
        clean=environment.layer is not None,
    )
    own = f"/tmp/build.{secrets.token_hex(8)}"  # noqa: S108 - no process inside can predict the name
    text = _BUILD.format(
        own=own,
        command=command,
        output=_OUTPUT,
        most=_MOST_MIB,
        names=" -o ".join(f"-name {shlex.quote('*' + ending)}" for ending in LIBRARIES),
    )
    done = await sandbox.exec([*environment.wrapper, "bash", "-c", text], timeout_s=settings.build_timeout_s)
    if done.timed_out:
        raise PatchRefused(f"its extensions were not compiled within {settings.build_timeout_s:g} s")
    if done.exit_code != 0:
        raise PatchRefused(f"its extensions cannot be compiled: {done.stdout.decode('utf-8', 'replace')}")
    return f"{own}/tree"


def _keep_libraries(tree: Path, protected: set[str]) -> None:
    """Remove everything that is not a library at a path that a patch may change."""
    for path in sorted(tree.rglob("*"), reverse=True):
        name = path.relative_to(tree).as_posix()
        is_framework = PurePosixPath(name).name.partition(".")[0] in ("conftest", "pytest", "_pytest")
        refused = is_framework or is_protected(name, protected) or not name.endswith(LIBRARIES)
        if path.is_symlink() or (path.is_file() and refused):
            path.unlink()


async def put_libraries(sandbox: Sandbox, libraries: Path | None) -> None:
    """Copy compiled libraries into the patched tree of the grading sandbox.

    Raises:
        PatchRefused: the patch makes a directory of a library a link.
        SandboxLost: the sandbox is gone.
    """
    if libraries is None:
        return
    files = await asyncio.to_thread(lambda: [path for path in libraries.rglob("*") if path.is_file()])
    names = "".join(f"{path.relative_to(libraries)}\0" for path in files)
    done = await sandbox.exec(
        ["bash", "-p", "-c", _MAKE_ROOM], stdin=names.encode("utf-8", "surrogateescape")
    )
    if done.exit_code != 0:
        raise PatchRefused("a library that its build writes lies below a link")
    await sandbox.upload(libraries, sandbox.spec.workdir)
