"""Prepare an agent's sandbox: the repository as one commit, and nothing that reveals the fix.

A repository in an image becomes the image's working tree, committed once: later commits, remotes, reflogs,
stashes and alternates are removed, and so are copies of the project in site-packages and in caches.
"""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import functools
import os
import re
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hone.environment.apply import BASE_GIT, base_mounts
from hone.environment.environment import GIT_ENV, BrokenTree, has_own_repository, resolve_environment
from hone.environment.result import put_files, take_base
from hone.environment.settings import EnvironmentSettings
from hone.sandbox.contract import Provider, ProviderUnavailable, Sandbox, SandboxError, SandboxSpec
from hone.tasks.errors import TaskError
from hone.tasks.formats import r2e
from hone.tasks.formats.swebench import seeded_bug
from hone.tasks.harbor import HarborTask, is_harbor, read_task, write_folder
from hone.tasks.harbor.serve import DOCKERFILE_IMAGE
from hone.tasks.workspace import prepare
from hone.types import Task
from hone.utils.text import digest

TIMEOUT_S = 600.0
_DONE = ".complete"
_BUILT = "docker://localhost/hone/dockerfile:"
_TIME = 946684800  # of the files of a build: 1 January 2000
_POLL_S = 0.1

# Arguments: workdir, a new directory, files to hide from the agent. The tree as it stands becomes the one
# commit of a new repository; a tree that equals the committed one keeps the commit's id.
_TAKE_BASE = r"""
set -eu
cd "$1"; hide_files() { shift 2; rm -rf -- "$@"; }; hide_files "$@"
git rev-parse --git-dir >/dev/null
export GIT_INDEX_FILE="$2.index"
git read-tree HEAD && git add -A . && tree=$(git write-tree)
if [ "$tree" = "$(git rev-parse 'HEAD^{tree}')" ]; then base=$(git rev-parse HEAD); else
    base=$(git -c user.name=Hone -c user.email=hone@localhost commit-tree -m 'The base commit.' "$tree")
fi
unset GIT_INDEX_FILE
git init -q --template= "$2" && cd "$2"
git fetch -q --no-tags --depth=1 --upload-pack 'git -c uploadpack.allowAnySHA1InWant=true upload-pack' \
    "file://$1" "$base"
rm -f .git/FETCH_HEAD
git symbolic-ref HEAD refs/heads/main && git update-ref refs/heads/main "$base" && git read-tree main
rm -rf .git/logs .git/hooks
"""

# Arguments: workdir, the pristine git directory, a pattern of the project's names, files to remove.
_HIDE = r"""
set -u
cd "$1" || exit 1; hide_files() { shift 3; rm -rf -- "$@"; }; hide_files "$@"
rm -rf .git && cp -R "$2" .git && chmod -R u+w .git && git update-index -q --refresh
find . -mindepth 2 -name .git -prune -exec rm -rf {} + 2>/dev/null
rm -rf "$HOME/.cache/pip" "$HOME/.cache/uv" ~root/.cache/pip ~root/.cache/uv /var/cache/pip 2>/dev/null
packages='import sys; print(*sys.path[1:])'
for place in $(python3 -c "$packages" 2>/dev/null); do
    for info in "$place"/*.dist-info; do
        name=${info##*/}
        printf '%s\n' "${name%%-*}" | grep -Eqix "$3" || continue
        grep -qs '"editable"' "$info/direct_url.json" && continue
        (
            cd "$place" || exit
            listed=$(cut -d, -f1 "$info/RECORD" 2>/dev/null | grep -v '^\.\./\|^/\|^$')
            printf '%s\n' "$listed" | tr '\n' '\0' | xargs -0 rm -f --
            printf '%s\n' "$listed" | cut -d/ -f1 | sort -u | while read -r top; do
                find "./$top" -name '*.pyc' -delete; find "./$top" -type d -empty -delete
            done 2>/dev/null
            rm -rf "$info"
        )
    done
done
exit 0
"""


async def prepare_workspace(task: Task, provider: Provider, cache: Path) -> Path:
    """Return the directory with the task's repository as the agent gets it; prepared on first use.

    For a repository in an image it holds the git directory alone.

    Raises:
        TaskError: there is no such repository or commit.
        SandboxError: the image cannot be read.
    """
    if is_harbor(task):
        harbor = read_task(task.checks.folder)
        key: list[Any] = [harbor.image, harbor.workdir, harbor.roots, dict(harbor.uploads)]
        key += ["public"] if harbor.context and _has_network(harbor) else []
        return await _prepare_once(cache / digest(key), lambda target: _take_files(harbor, provider, target))
    if not has_own_repository(task.environment):
        return await asyncio.to_thread(prepare, task, cache)
    parts = [task.environment.image, task.environment.workdir, task.environment.commit]
    key = [*parts, *filter(None, [seeded_bug(task)])]
    return await _prepare_once(cache / digest(key), lambda target: _take_base(task, provider, target))


async def _prepare_once(target: Path, make: Callable[[Path], Awaitable[None]]) -> Path:
    """Return the directory `target`, which `make` fills on first use."""
    if not (target / _DONE).is_file():
        async with _locked(target.parent / f".{target.name}.lock"):
            if not (target / _DONE).is_file():
                shutil.rmtree(target, ignore_errors=True)
                await make(target)
                (target / _DONE).touch()
    return target


async def sandbox_image(harbor: HarborTask, provider: Provider) -> str:
    """Return the image of a Harbor task's sandboxes; see `built_image`. Raises ProviderUnavailable."""
    timeout_s, network = harbor.config.environment.build_timeout_sec, _has_network(harbor)
    return await built_image(harbor.image, harbor.context, provider, network=network, timeout_s=timeout_s)


def _has_network(harbor: HarborTask) -> bool:
    return harbor.config.environment.network == "public"


async def built_image(
    image: str, files: Mapping[str, str], provider: Provider, *, network: bool, timeout_s: float
) -> str:
    """Return an image; one that is yet to be built from packed files is built on first use.

    The name of a built image is a digest of those files, and its build sees nothing else: nothing that an
    agent leaves behind has a part in the image that a grader starts.

    Args:
        network: whether the build has the network of this machine.
    Raises:
        ProviderUnavailable: the image cannot be built.
    """
    if not image.startswith(DOCKERFILE_IMAGE):
        return image
    name = _BUILT + image.removeprefix(DOCKERFILE_IMAGE) + ("-public" if network else "")
    try:
        async with asyncio.timeout(timeout_s):
            await provider.build(name, functools.partial(_write_context, files), network=network)
    except TimeoutError:
        raise ProviderUnavailable(
            f"its Dockerfile was not built within {timeout_s:g} s, its environment.build_timeout_sec",
            retryable=True,
        ) from None
    return name


def _write_context(files: Mapping[str, str], context: Path) -> None:
    """Write a build context; modes and times are equal on every machine, so that builds share layers."""
    write_folder(files, context)
    for path in (context, *context.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
        os.utime(path, (_TIME, _TIME))


async def _take_files(harbor: HarborTask, provider: Provider, target: Path) -> None:
    """Store the files of an untouched sandbox from which the result of an agent will differ."""
    spec = SandboxSpec(image=await sandbox_image(harbor, provider), workdir=harbor.workdir)
    async with await provider.start(spec) as sandbox:
        await put_files(sandbox, harbor.uploads, harbor.workdir)
        await asyncio.to_thread(target.mkdir, parents=True)
        try:
            await take_base(sandbox, harbor.roots, target / ".git", timeout_s=TIMEOUT_S)
        except BrokenTree as error:
            raise TaskError(f"the files of {harbor.image} cannot be read: {error}") from error


@asynccontextmanager
async def _locked(path: Path) -> AsyncGenerator[None]:
    """Hold the lock of a file, which the death of this process releases, too.

    Polls: threads that wait for the lock would keep its holder from the threads that it needs.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_POLL_S)
        yield


async def _take_base(task: Task, provider: Provider, target: Path) -> None:
    environment, base = task.environment, "/tmp/base"  # noqa: S108 - in a sandbox of its own
    no_repository = f"task {task.id}: {environment.image} holds no repository"
    spec = SandboxSpec(image=environment.image, workdir=environment.workdir, env=GIT_ENV)
    async with await provider.start(spec) as sandbox:
        if environment.commit:
            found = await sandbox.exec(["git", "cat-file", "-e", f"{environment.commit}^{{commit}}"])
            if found.exit_code != 0:
                raise TaskError(f"{no_repository} with commit {environment.commit} in {environment.workdir}")
        await _seed_bug(sandbox, task)
        made = await sandbox.exec(
            ["bash", "-c", _TAKE_BASE, "base", environment.workdir, base, *_hidden_files(task)],
            timeout_s=TIMEOUT_S,
        )
        if made.exit_code != 0:
            raise TaskError(f"{no_repository} that git can read in {environment.workdir}: {made.ending}")
        await asyncio.to_thread(target.mkdir, parents=True)
        await sandbox.download(f"{base}/.git", target / ".git")


async def start_agent_sandbox(
    task: Task, workspace: Path, spec: SandboxSpec, provider: Provider, settings: EnvironmentSettings
) -> Sandbox:
    """Start a sandbox in which an agent may work on the task. Raises SandboxError.

    Args:
        workspace: from `prepare_workspace`.
        spec: everything that does not depend on the task.
    """
    try:
        if is_harbor(task):
            return await start_harbor_sandbox(task, workspace, spec, provider)
        environment = await resolve_environment(task, workspace.parent, settings)
    except TaskError as error:
        raise SandboxError(f"task {task.id}: {error}") from error
    sandbox = await provider.start(
        dataclasses.replace(
            spec,
            image=environment.image,
            workdir=task.environment.workdir,
            layer=environment.layer,
            env={**spec.env, **environment.env},
            mounts=(*spec.mounts, *base_mounts(workspace), *environment.mounts),
        )
    )
    if environment.layer is None:
        try:
            await _seed_bug(sandbox, task)
            await _hide_fix(sandbox, task)
        except BaseException:
            await sandbox.close()
            raise
    return sandbox


async def start_harbor_sandbox(task: Task, workspace: Path, spec: SandboxSpec, provider: Provider) -> Sandbox:
    """Start a sandbox as a Harbor task describes it: image, files, variables, allowed hosts."""
    harbor = read_task(task.checks.folder)
    sandbox = await provider.start(
        dataclasses.replace(
            spec,
            image=await sandbox_image(harbor, provider),
            workdir=harbor.workdir,
            env={**spec.env, **harbor.env},
            network=harbor.network,
            mounts=(*spec.mounts, *base_mounts(workspace)),
        )
    )
    try:
        await put_files(sandbox, harbor.uploads, harbor.workdir)
    except BaseException:
        await sandbox.close()
        raise
    return sandbox


async def _seed_bug(sandbox: Sandbox, task: Task) -> None:
    """Bring the bug of a task into the tree, unless the image has it already. Raises SandboxError."""
    if not (bug := seeded_bug(task)):
        return
    script = 'cat > "$1"; git apply "$1" || git apply --reverse --check "$1"; code=$?; rm -f "$1"; exit $code'
    done = await sandbox.exec(
        ["bash", "-c", script, "bug", "/tmp/bug.diff"],  # noqa: S108 - in a sandbox of its own
        stdin=bug.encode("utf-8", "surrogateescape"),
        env=GIT_ENV,
        timeout_s=TIMEOUT_S,
    )
    if done.exit_code != 0:
        raise SandboxError(f"task {task.id}: its bug cannot be brought into its image: {done.ending}")


async def _hide_fix(sandbox: Sandbox, task: Task) -> None:
    project = re.sub(r"[-_.]+", "[-_.]", task.environment.repo.rpartition("/")[2]) or "-"
    done = await sandbox.exec(
        ["bash", "-c", _HIDE, "hide", task.environment.workdir, BASE_GIT, project, *_hidden_files(task)],
        env=GIT_ENV,
        timeout_s=TIMEOUT_S,
    )
    if done.exit_code != 0:
        raise SandboxError(f"task {task.id}: cannot remove the fix from its image: {done.ending}")


def _hidden_files(task: Task) -> tuple[str, ...]:
    """Return files of a data set's image that only the grader may see."""
    return r2e.HIDDEN if task.checks.parser == r2e.PARSER else ()
