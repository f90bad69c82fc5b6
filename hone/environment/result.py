"""The result of an agent whose task is graded by a script of its own: the files that it changed.

What travels from the agent's sandbox to the one that grades is a patch in git's format with paths below /:
the new, changed and deleted files below the roots of the task (its workdir and its artifacts), with whether
each is executable, and links that stay within the tree. Nothing else does: no file elsewhere, no process, no
owner or time, no empty directory, no setuid bit, no git directory.
"""

from __future__ import annotations

import asyncio
import posixpath
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from hone.environment.environment import BrokenTree, EnvironmentFailed, PatchRefused
from hone.environment.patch import FilteredPatch
from hone.environment.result_tree import (
    MAX_BYTES,
    ChangedFile,
    changed_files,
    commit_stream,
    diff_stream,
    make_directory,
    stays_inside,
)
from hone.environment.settings import EnvironmentSettings
from hone.sandbox.contract import Sandbox
from hone.tasks.harbor.folder import unpack
from hone.utils.concurrency import run_in_thread

_PACK = (
    'cd /; for path; do [ -e "$path" ] || [ -L "$path" ] || continue; set -- "$@" "$path"; done; '
    "shift {count}; "
)
_TAR = '[ $# = 0 ] && exec tar -cf - -T /dev/null; exec tar -cf - "$@"'
_WHOLE = MAX_BYTES + (64 << 20)  # bytes of a stream, with its headers


async def put_files(sandbox: Sandbox, files: Mapping[str, str], folder: str) -> None:
    """Write packed files of a task below a directory of the sandbox."""
    for name, text in files.items():
        data, executable = unpack(text)
        await sandbox.write(posixpath.join(folder, name), data, mode=0o755 if executable else 0o644)


async def take_base(sandbox: Sandbox, roots: Sequence[str], directory: Path, *, timeout_s: float) -> None:
    """Store the files below the roots of an untouched sandbox in the new git directory `directory`.

    Raises BrokenTree, SandboxLost.
    """
    with tempfile.TemporaryDirectory(prefix="hone-base-", ignore_cleanup_errors=True) as folder:
        archive = Path(folder) / "base.tar"
        await _archive(sandbox, roots, archive, timeout_s)
        await run_in_thread(make_directory, directory)
        await run_in_thread(commit_stream, archive, directory, roots)


async def extract_result(
    sandbox: Sandbox, roots: Sequence[str], base: Path, settings: EnvironmentSettings
) -> str:
    """Return the patch from the base to the agent's files; the agent may still be at work.

    Raises:
        BrokenTree: the files cannot be read, or are too large; the policy caused it.
        SandboxLost: the sandbox is gone.
    """
    with tempfile.TemporaryDirectory(prefix="hone-result-", ignore_cleanup_errors=True) as folder:
        archive = Path(folder) / "result.tar"
        await _archive(sandbox, roots, archive, settings.extract_timeout_s)
        return await run_in_thread(diff_stream, archive, base, roots, max_kib=settings.max_patch_kib)


async def put_result(
    sandbox: Sandbox, patch: FilteredPatch, roots: Sequence[str], base: Path, *, timeout_s: float
) -> None:
    """Put the files that a filtered patch changes into an untouched sandbox; no code of theirs runs.

    Raises PatchRefused for a patch that does not apply or changes a file outside of the roots, SandboxLost.
    """
    inside = [root.strip("/") for root in roots]
    stray = [path for path in patch.paths if not any(path == r or path.startswith(f"{r}/") for r in inside)]
    if stray:
        raise PatchRefused(f"the patch changes /{stray[0]}, which is not part of the task's result")
    files = await asyncio.to_thread(changed_files, patch.text, base)
    for file in files:
        target = file.content.decode("utf-8", "surrogateescape")
        if file.kind == "link" and not stays_inside(file.path, target, inside):
            raise PatchRefused(
                f"the patch makes /{file.path} a link to {target[:160]!r}, outside of the result"
            )
    await _run(sandbox, _removals(files, roots), timeout_s)
    for file in files:
        if file.kind in ("file", "program"):
            mode = 0o755 if file.kind == "program" else 0o644
            try:
                await sandbox.write(f"/{file.path}", file.content, mode=mode)
            except OSError as error:
                raise PatchRefused(f"the patch's file /{file.path} cannot be written: {error}") from error
    await _run(sandbox, _links(files), timeout_s)


def _removals(files: Sequence[ChangedFile], roots: Sequence[str]) -> list[str]:
    """Return commands that remove what the patch deletes or replaces, and links in the place of a directory.

    The image may have a link where the agent has a directory: nothing may be written through it.
    """
    folders = dict.fromkeys(
        folder
        for file in files
        for folder in reversed([str(each) for each in PurePosixPath(f"/{file.path}").parents])
        if any(folder == root or folder.startswith(f"{root}/") for root in roots)
    )
    unlink = [f"[ ! -L {shlex.quote(folder)} ] || rm -f -- {shlex.quote(folder)}" for folder in folders]
    return unlink + [f"rm -rf -- {shlex.quote('/' + file.path)}" for file in files]


def _links(files: Sequence[ChangedFile]) -> list[str]:
    commands: list[str] = []
    for file in files:
        if file.kind == "link":
            path, target = f"/{file.path}", file.content.decode("utf-8", "surrogateescape")
            folder = shlex.quote(posixpath.dirname(path))
            commands.append(f"mkdir -p -- {folder} && ln -s -- {shlex.quote(target)} {shlex.quote(path)}")
    return commands


async def _run(sandbox: Sandbox, commands: Sequence[str], timeout_s: float) -> None:
    """Run trusted commands in an untouched sandbox. Raises EnvironmentFailed."""
    if not commands:
        return
    text = "set -e\n" + "\n".join(commands) + "\n"
    done = await sandbox.exec(
        ["bash", "-p", "-s"], cwd="/", stdin=text.encode("utf-8", "surrogateescape"), timeout_s=timeout_s
    )
    if done.exit_code != 0:
        raise EnvironmentFailed(f"the agent's files cannot be put into the sandbox: {done.ending}")


async def _archive(sandbox: Sandbox, roots: Sequence[str], archive: Path, timeout_s: float) -> None:
    """Write a tar stream of the roots that exist to a file of this machine."""
    names = [root.strip("/") for root in roots]
    written = 0
    with archive.open("wb") as file:

        def keep(stream: str, data: bytes) -> None:
            nonlocal written
            if stream == "stdout" and written <= _WHOLE:
                written += file.write(data)

        done = await sandbox.exec(
            ["sh", "-c", _PACK.format(count=len(names)) + _TAR, "pack", *names],
            cwd="/",
            timeout_s=timeout_s,
            on_output=keep,
        )
    if done.timed_out:
        raise BrokenTree(f"the agent's files were not read within {timeout_s:g} s")
    if written > _WHOLE:
        raise BrokenTree(f"the agent's files hold more than {MAX_BYTES >> 20} MiB")
    if done.exit_code > 2 or not written:  # 1, 2: a file changed meanwhile, or cannot be read
        raise BrokenTree(f"the agent's files cannot be read ({done.ending})")
