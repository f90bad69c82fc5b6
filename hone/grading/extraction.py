"""Takes an agent's patch out of its sandbox, whatever the agent did to git there.

A patch is text in git's format and always valid UTF-8: where a file is not, the patch is in binary form. Line
ends are content (a file may have CRLF), so store and read patches without newline translation.
"""

from __future__ import annotations

from pathlib import Path

from hone.grading.errors import BrokenTree
from hone.grading.settings import GradingSettings
from hone.sandbox.contract import ExecResult, Mount, Sandbox
from hone.types import Task

BASE_GIT = "/srv/hone/base.git"


def base_mounts(workspace: Path) -> tuple[Mount, ...]:
    """What an agent's sandbox must show so that `extract` works: the pristine history, read-only."""
    return (Mount(source=workspace / ".git", target=BASE_GIT),)


_ENV = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}

# Arguments: the pristine .git, workdir, the diff attribute, the largest size in bytes. A git directory of our
# own in a new place borrows the pristine objects, so nothing the agent did to its .git, its configuration,
# hooks, filters or attributes has any effect. Exit codes: 91 git failed, 92 the patch is too large.
_EXTRACT = r"""
set -u
temporary=$(mktemp -d /tmp/patch.XXXXXXXX) || exit 91
trap 'rm -rf "$temporary"' EXIT
base=$(git --git-dir="$1" rev-parse HEAD) || exit 91
mkdir -p "$temporary/git/objects/info" "$temporary/git/refs" "$temporary/git/info" || exit 91
printf '%s/objects\n' "$1" > "$temporary/git/objects/info/alternates"
printf 'ref: refs/heads/none\n' > "$temporary/git/HEAD"
{ printf '[core]\nrepositoryformatversion=0\nbare=false\nfilemode=true\nautocrlf=false\n'
  printf 'hooksPath=/dev/null\nfsmonitor=false\n'; } > "$temporary/git/config"
printf '* -text -eol -ident -filter -working-tree-encoding %s\n' "$3" > "$temporary/git/info/attributes"
mkdir -p "$2" && cd "$2" || exit 91
find . -mindepth 2 -name .git -prune -exec rm -rf {} + 2>/dev/null
export GIT_DIR="$temporary/git" GIT_WORK_TREE="$2"
git read-tree "$base" || exit 91
git add -A --ignore-errors . >&2
git diff-index --cached --binary --full-index --no-renames --no-ext-diff --no-textconv --no-color -p \
    --src-prefix=a/ --dst-prefix=b/ "$base" -- . \
    ':(exclude,glob)**/__pycache__/**' ':(exclude,glob)**/*.pyc' ':(exclude,glob)**/.pytest_cache/**' \
    > "$temporary/patch" || exit 91
size=$(wc -c < "$temporary/patch") || exit 91
[ "$size" -le "$4" ] || exit 92
"""


async def extract(sandbox: Sandbox, task: Task, settings: GradingSettings | None = None) -> str:
    """The diff between the task's base commit and the tree as the agent left it; "" when nothing changed.

    New, deleted, binary and mode-changed files and the agent's own commits are in it, a rename as a deletion
    and a new file; ignored files and Python's caches are not. The sandbox must have `base_mounts`.

    Raises BrokenTree (the policy's doing), SandboxLost, and RuntimeError when the base is not mounted.
    """
    if BASE_GIT not in {mount.target for mount in sandbox.spec.mounts}:
        raise RuntimeError("the sandbox was not started with grading.base_mounts(workspace)")
    settings = settings or GradingSettings()
    data = await _diff(sandbox, task, settings, "!diff")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return (await _diff(sandbox, task, settings, "-diff")).decode("utf-8")  # everything as binary: ASCII


async def _diff(sandbox: Sandbox, task: Task, settings: GradingSettings, attribute: str) -> bytes:
    limit = settings.max_patch_kib * 1024
    chunk = max(1024, sandbox.spec.limits.output_kib * 512)  # what one exec surely returns whole
    script = _EXTRACT + 'cat "$temporary/patch"\n'
    result = await _bash(sandbox, script, [task.environment.workdir, attribute, str(limit)], settings)
    if result.stdout_bytes == len(result.stdout):
        return result.stdout
    parts: list[bytes] = []
    for start in range(0, result.stdout_bytes, chunk):  # the same tree again, a part at a time
        script = _EXTRACT + f'tail -c +{start + 1} "$temporary/patch" | head -c {chunk}\n'
        part = await _bash(sandbox, script, [task.environment.workdir, attribute, str(limit)], settings)
        parts.append(part.stdout)
    return b"".join(parts)


async def _bash(sandbox: Sandbox, script: str, arguments: list[str], settings: GradingSettings) -> ExecResult:
    result = await sandbox.exec(
        ["bash", "-c", script, "extract", BASE_GIT, *arguments],
        cwd="/",
        env=_ENV,
        timeout_s=settings.extract_timeout_s,
    )
    if result.timed_out:
        raise BrokenTree(f"git was not done with the tree after {settings.extract_timeout_s:g} s")
    if result.exit_code == 92:
        raise BrokenTree(f"the patch is larger than {settings.max_patch_kib} KiB")
    if result.exit_code != 0:
        said = result.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"]
        raise BrokenTree(f"git cannot read the tree (exit code {result.exit_code}): {said[-1]}")
    return result
