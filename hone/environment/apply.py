"""Apply patches in a sandbox, and extract an agent's patch, whatever the agent did to git there.

Patches are applied by the SWE-bench harness's ladder of commands. An extracted patch is text in git's format
and always valid UTF-8; files that are not UTF-8 appear in binary form. Line ends are content (a file may have
CRLF): store and read patches without newline translation.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from pathlib import Path

from hone.environment.environment import GIT_ENV, BrokenTree, EnvironmentFailed, PatchRefused
from hone.environment.patch import LEFT_BY_LADDER, is_protected
from hone.environment.result import extract_result
from hone.environment.settings import EnvironmentSettings
from hone.sandbox.contract import ExecResult, Mount, Sandbox
from hone.tasks.harbor import is_harbor, read_task
from hone.types import Task

# Arguments: bytes of the patch, number of its paths, a new directory, "clean" or "dirty", a separator, bytes
# of the trusted tests. Standard input: the paths, each ending in NUL, patch, tests.
#
# No code of the patch may run here, or still run afterwards:
# - git gets a directory of its own, which borrows the repository's objects and index: no configuration, hook
#   or attribute driver that the patch puts into the tree or its .git is read;
# - PATH keeps no directory of the tree;
# - no file is written through a link: git refuses that, and `patch` is not tried where a path needs it;
# - a patch may not change the Python installation or the libraries that run the tests, where an image keeps
#   them in the tree;
# - every other process of the sandbox is killed.
#
# Each attempt after the first starts from a pristine tree. git then lists its changes, which reveals a patch
# that git and `filter_patch` read differently. Exit codes: 91 the repository is unusable and 92 the tests do
# not apply, both before the patch is touched; 93 it does not apply; 94 it changes what runs the tests; 95 it
# leaves a tree on which git or the tests fail.
# Source of the ladder: swebench 5.0.2, harness/run_evaluation.py.
_APPLY = r"""
set -uf
shopt -s extglob
own=$3
mkdir -m 700 "$own" "$own/objects" "$own/objects/info" "$own/refs" || exit 91
trap 'rm -rf "$own"' EXIT
paths=()
[ "$2" = 0 ] || mapfile -d '' -n "$2" paths
[ "${#paths[@]}" = "$2" ] || exit 91
[ "$1" = 0 ] || head -c "$1" > "$own/patch.diff" || exit 91
[ "$6" = 0 ] || cat > "$own/tests.diff" || exit 91

cd -P . && tree=$PWD || exit 91
outside= libraries=()
locate() { # set `at` to a directory's real path; return whether it is missing or lies in the tree
    at=$1
    [[ $at == /* ]] || at=$tree/$at
    cd -P -- "$at" 2>/dev/null || return 0
    at=$PWD
    [[ $at/ == "$tree"/* ]]
}
each() { # call a function with each element of a list with colons
    local IFS=: element
    for element in $2; do "$1" "$element"; cd "$tree" || exit 91; done
}
sort_program() { locate "$1" || outside+=${outside:+:}$1; }
sort_library() { ! locate "$1" || libraries+=("$at"); }
sort_preload() { [[ $1 != */* ]] || sort_library "${1%/*}"; }
each sort_program "$PATH"
each sort_library "${LD_LIBRARY_PATH-}"
each sort_preload "${LD_PRELOAD-}:${LD_AUDIT-}"
PATH=$outside

git rev-parse --show-cdup --git-path index --git-path info/exclude --git-path objects HEAD > "$own/found" \
    || exit 91
{ read -r above; read -r index; read -r exclude; read -r objects; read -r head; } < "$own/found"
[ -z "$above" ] || { echo "$tree is not the root of its repository" >&2; exit 91; }
cp "$index" "$own/index" || exit 91
excluded=()
[ ! -f "$exclude" ] || mapfile excluded < "$exclude" || exit 91
printf %s "${excluded[@]+"${excluded[@]}"}" > "$own/exclude"
cd "$objects" && printf '%s\n' "$PWD" > "$own/objects/info/alternates" && cd "$tree" || exit 91
printf '%s\n' "$head" > "$own/HEAD"
{ printf '[core]\nbare=false\nhooksPath=/dev/null\nfsmonitor=false\n'
  printf 'excludesFile=%s\n' "$own/exclude"; } > "$own/config"
export GIT_DIR=$own GIT_WORK_TREE=$tree

states() {
    git status --porcelain=v1 -z --untracked-files=all --ignored=matching --no-renames --ignore-submodules=all
}
[ "$4" = clean ] || { states > "$own/before" || exit 91; }
if [ "$6" != 0 ]; then git apply --check --whitespace=nowarn "$own/tests.diff" || exit 92; fi

declare -A named seen
linked=
refuse() { printf '%s\n' "$1" >&2; exit 94; }
for path in "${paths[@]+"${paths[@]}"}"; do named["$path"]=1; done
for path in "${paths[@]+"${paths[@]}"}"; do
    for folder in "${libraries[@]+"${libraries[@]}"}"; do
        [[ $tree/$path != "$folder"/* || ${path##*/} != *.so?(.*) ]] ||
            refuse "$path is a library that the loader finds"
    done
    folder=$path
    while [[ $folder == */* ]]; do
        folder=${folder%/*}
        [[ -z ${seen["$folder"]-} ]] || break
        seen["$folder"]=1
        [[ ! -e $folder/pyvenv.cfg && ! -d $folder/conda-meta ]] ||
            refuse "$path is part of a Python installation"
        [[ ! -L $folder && -z ${named["$folder"]-} ]] || linked=$path
    done
    [[ -e $path || -L $path ]] || printf '%s\0' "$path" >> "$own/absent"
done

pristine() {
    [ ! -e "$own/absent" ] || xargs -0 rm -rf -- < "$own/absent"
    git checkout -q -- . ; git clean -fdq
}
ladder() {
    local patch="$own/patch.diff"
    git apply --verbose "$patch" && return
    pristine; git apply --verbose --3way "$patch" && return
    pristine; git apply --verbose --reject "$patch" && return
    pristine
    [ -z "$linked" ] || { printf '%s lies below a link or another file of the patch\n' "$linked"; return 1; }
    patch --batch --forward --fuzz=5 --unified -p1 -i "$patch" && return
    git apply --check --reverse "$patch"
}
if [ "$1" != 0 ]; then
    ladder > "$own/log" 2>&1 || { tail -c 2000 "$own/log" >&2; exit 93; }
fi
if [ "$6" != 0 ]; then git apply --whitespace=nowarn "$own/tests.diff" || exit 95; fi
kill -9 -1 2>/dev/null
states || exit 95
[ "$4" = clean ] || { printf '%s\0' "$5"; cat "$own/before"; }
"""


async def apply_patch(
    sandbox: Sandbox,
    patch: str,
    paths: Collection[str],
    *,
    timeout_s: float,
    tests: str = "",
    test_paths: Collection[str] = (),
    clean: bool = True,
) -> None:
    """Apply a filtered patch, then the trusted `tests`. No code of the patch runs here.

    Afterwards no other process is left in the sandbox.

    Args:
        paths: files that the patch may change; `test_paths`: those that `tests` may change.
        clean: the repository is as committed; otherwise its earlier changes are ignored.
    Raises:
        PatchRefused: the patch does not apply, changes what runs the tests, or leaves a tree that git reads
            differently than `filter_patch`.
        EnvironmentFailed: git does not work in the sandbox, or the trusted tests do not apply without the
            patch.
        SandboxLost: the sandbox is gone; the patch may have caused it.
    """
    data = patch.encode("utf-8", "surrogateescape")
    names = "".join(f"{path}\0" for path in paths).encode("utf-8", "surrogateescape")
    trusted = tests.encode("utf-8", "surrogateescape")
    own = f"/tmp/apply.{secrets.token_hex(8)}"  # noqa: S108 - no process inside can predict the name
    separator = secrets.token_hex(8)
    result = await sandbox.exec(
        [
            *("bash", "-p", "-c", _APPLY, "apply"),
            *(str(len(data)), str(len(paths)), own, "clean" if clean else "dirty", separator),
            str(len(trusted)),
        ],
        stdin=names + data + trusted,
        timeout_s=timeout_s,
    )
    errors = result.stderr.decode("utf-8", "replace").strip()
    if result.timed_out:
        raise PatchRefused(f"the patch was not applied within {timeout_s:g} s")
    if result.exit_code == 93:
        raise PatchRefused(f"the patch does not apply: {errors}")
    if result.exit_code == 94:
        raise PatchRefused(f"the patch changes what runs the tests: {errors}")
    if result.exit_code == 92:
        raise EnvironmentFailed(f"the task's own tests do not apply: {errors}")
    if result.exit_code == 91:
        raise EnvironmentFailed(f"git does not work in the sandbox: {errors}")
    if result.exit_code != 0:
        raise PatchRefused(f"git failed on the patched tree (exit code {result.exit_code}): {errors}")
    if result.stdout_bytes != len(result.stdout):
        raise PatchRefused("the patch changes too many files")
    check_changes(result.stdout, separator, paths, test_paths)


def check_changes(
    output: bytes, separator: str, paths: Collection[str], test_paths: Collection[str] = ()
) -> None:
    """Raise PatchRefused when git reports changes outside the given paths.

    Args:
        output: `git status -z` after the patch; then `separator` and the status before it.
    """
    after, _, before = output.decode("utf-8", "surrogateescape").partition(f"{separator}\0")
    changed = {entry[3:] for entry in after.split("\0") if entry}
    changed -= {entry[3:] for entry in before.split("\0") if entry} | set(test_paths)
    stray = sorted(path for path in changed if not _is_expected(path.rstrip("/"), paths))
    if stray:
        raise PatchRefused(f"git reads changes that the patch's headers do not name: {', '.join(stray[:5])}")


def _is_expected(path: str, paths: Collection[str]) -> bool:
    if path in paths:
        return not is_protected(path, set())
    return any(path == name + suffix for suffix in LEFT_BY_LADDER for name in paths)


async def apply_trusted_patch(sandbox: Sandbox, patch: str, *, timeout_s: float) -> None:
    """Apply a patch that may change any file. Raises PatchRefused and SandboxLost."""
    result = await sandbox.exec(
        ["git", "apply", "--whitespace=nowarn", "-"],
        stdin=patch.encode("utf-8", "surrogateescape"),
        timeout_s=timeout_s,
    )
    if result.exit_code != 0:
        raise PatchRefused(f"the patch does not apply: {result.stderr.decode('utf-8', 'replace').strip()}")


BASE_GIT = "/srv/hone/base.git"


def base_mounts(workspace: Path) -> tuple[Mount, ...]:
    """Return the mounts that `extract_patch` needs in a sandbox: the pristine history, read-only."""
    return (Mount(source=workspace / ".git", target=BASE_GIT),)


# Arguments: the pristine .git, workdir, the diff attribute, a new directory, "intact" or nothing. A new git
# directory borrows the pristine objects, so the agent's .git, configuration, hooks, filters and attributes
# have no effect. Nested repositories become plain folders by removing their .git; "intact" does that in a
# copy. Every process costs a millisecond or two.
_EXTRACT = r"""
set -u -o pipefail
mkdir -m 700 "$4" "$4/objects" "$4/objects/info" "$4/refs" "$4/info" || exit 91
trap 'rm -rf "$4"' EXIT
tree=$2 own=no
if [ -z "$5" ]; then own=yes; [ -d "$2" ] || mkdir -p "$2" || exit 91
elif [ ! -e "$2" ] || [ -n "$(find "$2/." -mindepth 2 -name .git -print -quit 2>/dev/null)" ]; then
    own=yes tree="$4/tree"; mkdir "$tree" || exit 91
    [ ! -e "$2" ] || cp -a "$2/." "$tree" || exit 91
fi
read -r base < "$1/HEAD" || exit 91
case $base in ref:\ *) read -r base < "$1/${base#ref: }" || exit 91;; esac
printf '%s/objects\n' "$1" > "$4/objects/info/alternates"
printf 'ref: refs/heads/none\n' > "$4/HEAD"
{ printf '[core]\nrepositoryformatversion=0\nbare=false\nfilemode=true\nautocrlf=false\n'
  printf 'hooksPath=/dev/null\nfsmonitor=false\n'; } > "$4/config"
printf '* -text -eol -ident -filter -working-tree-encoding %s\n' "$3" > "$4/info/attributes"
cd "$tree" || exit 91
[ $own = no ] || find . -mindepth 2 -name .git -prune -exec rm -rf {} + 2>/dev/null
export GIT_DIR="$4" GIT_WORK_TREE="$tree"
git read-tree "$base" || exit 91
git add -A --ignore-errors . >&2
git diff-index --cached --binary --full-index --no-renames --no-ext-diff --no-textconv --no-color -p \
    --src-prefix=a/ --dst-prefix=b/ "$base" -- . \
    ':(exclude,glob)**/__pycache__/**' ':(exclude,glob)**/*.pyc' ':(exclude,glob)**/.pytest_cache/**'"""

# Reads to the end, so that git does not write to a closed pipe.
_SLICE = "| tail -c +{start} | {{ head -c {size}; cat > /dev/null; }}"


async def extract_patch(
    sandbox: Sandbox, task: Task, settings: EnvironmentSettings | None = None, *, intact: bool = False
) -> str:
    """Return the diff between the task's base commit and the agent's tree; "" when nothing changed.

    It holds new, deleted, binary and mode-changed files and the agent's own commits; a rename is a deletion
    and a new file. Ignored files and Python's caches are left out. The agent's own .git and its index stay
    as they are. Of a Harbor task: see `hone.environment.result`.

    Args:
        sandbox: started with `base_mounts`.
        intact: change nothing in the tree, for an agent that is still at work; otherwise repositories
            inside the tree lose their .git.
    Raises:
        BrokenTree: git cannot read the tree, or the patch is too large; the policy caused it.
        SandboxLost: the sandbox is gone.
        RuntimeError: the base is not mounted.
    """
    if BASE_GIT not in {mount.target for mount in sandbox.spec.mounts}:
        raise RuntimeError("the sandbox was not started with base_mounts(workspace)")
    settings = settings or EnvironmentSettings()
    if is_harbor(task):
        (base,) = [mount.source for mount in sandbox.spec.mounts if mount.target == BASE_GIT]
        return await extract_result(sandbox, read_task(task.checks.folder).roots, base, settings)
    data = await _diff(sandbox, task, settings, "!diff", intact)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:  # every file in binary form: ASCII
        data = await _diff(sandbox, task, settings, "-diff", intact)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise BrokenTree("git gives a patch that is not UTF-8, also where every file is binary") from None


async def _diff(
    sandbox: Sandbox, task: Task, settings: EnvironmentSettings, attribute: str, intact: bool
) -> bytes:
    chunk = max(1024, sandbox.spec.limits.output_kib * 512)  # one exec returns this much without truncation
    result = await _run(sandbox, task, settings, attribute, intact)
    if result.stdout_bytes > settings.max_patch_kib * 1024:
        raise BrokenTree(f"the patch is larger than {settings.max_patch_kib} KiB")
    if result.stdout_bytes == len(result.stdout):
        return result.stdout
    parts: list[bytes] = []
    for start in range(0, result.stdout_bytes, chunk):  # diff the same tree again, one part at a time
        pipe = _SLICE.format(start=start + 1, size=chunk)
        part = await _run(sandbox, task, settings, attribute, intact, pipe)
        parts.append(part.stdout)
    return b"".join(parts)


async def _run(
    sandbox: Sandbox, task: Task, settings: EnvironmentSettings, attribute: str, intact: bool, pipe: str = ""
) -> ExecResult:
    own = f"/tmp/patch.{secrets.token_hex(8)}"  # noqa: S108 - no process inside can predict the name
    arguments = [BASE_GIT, task.environment.workdir, attribute, own, "intact" if intact else ""]
    result = await sandbox.exec(
        ["bash", "-c", f"{_EXTRACT} {pipe}", "extract", *arguments],
        cwd="/",
        env=GIT_ENV,
        timeout_s=settings.extract_timeout_s,
    )
    if result.timed_out:
        raise BrokenTree(f"git did not read the tree within {settings.extract_timeout_s:g} s")
    if result.exit_code != 0:
        raise BrokenTree(f"git cannot read the tree ({result.ending})")
    return result
