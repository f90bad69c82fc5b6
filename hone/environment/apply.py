"""Apply a patch to the repository of a grading sandbox, by the SWE-bench harness's ladder of commands."""

from __future__ import annotations

import secrets
from collections.abc import Collection

from hone.environment.errors import EnvironmentFailed, PatchRefused
from hone.environment.patch import is_protected
from hone.sandbox.contract import Sandbox, SandboxLost

# Arguments: bytes of the patch, a new directory, "clean" or "dirty", a separator. Each attempt after the
# first starts from a pristine tree. git then lists its changes, which reveals a patch that git and
# `filter_patch` read differently.
# Source of the ladder: swebench 5.0.2, harness/run_evaluation.py.
_APPLY = r"""
set -u
mkdir -m 700 "$2" && head -c "$1" > "$2/patch.diff" && cat > "$2/tests.diff" || exit 91
trap 'rm -rf "$2"' EXIT
states() { git status --porcelain=v1 -z --untracked-files=all --ignored=matching --no-renames; }
[ "$3" = clean ] || { states > "$2/before" || exit 91; }
pristine() { git checkout -q -- . ; git clean -fdq; }
ladder() {
    local patch="$2/patch.diff"
    git apply --verbose "$patch" && return
    pristine; git apply --verbose --3way "$patch" && return
    pristine; git apply --verbose --reject "$patch" && return
    pristine; patch --batch --forward --fuzz=5 -p1 -i "$patch" && return
    git apply --check --reverse "$patch"
}
if [ "$1" != 0 ]; then
    ladder "$@" > "$2/log" 2>&1 || { tail -c 2000 "$2/log" >&2; exit 93; }
fi
if [ -s "$2/tests.diff" ]; then
    git apply --whitespace=nowarn "$2/tests.diff" || exit 92
fi
states
[ "$3" = clean ] || { printf '%s\0' "$4"; cat "$2/before"; }
"""
_LEFT_BY_LADDER = (".rej", ".orig")


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
    """Apply a filtered patch, then the trusted `tests`. No code of the repository runs here.

    Args:
        paths: files that the patch may change; `test_paths`: those that `tests` may change.
        clean: the repository is as committed; otherwise its earlier changes are ignored.
    Raises:
        PatchRefused: the patch does not apply, or git reads it differently than `filter_patch`.
        EnvironmentFailed: git does not work in the sandbox, or the trusted tests do not apply.
    """
    data = patch.encode("utf-8", "surrogateescape")
    own = f"/tmp/apply.{secrets.token_hex(8)}"  # noqa: S108 - no process inside can predict the name
    separator = secrets.token_hex(8)
    try:
        result = await sandbox.exec(
            ["bash", "-c", _APPLY, "apply", str(len(data)), own, "clean" if clean else "dirty", separator],
            stdin=data + tests.encode("utf-8", "surrogateescape"),
            timeout_s=timeout_s,
        )
    except SandboxLost as lost:
        raise EnvironmentFailed(f"the sandbox was lost before any test ran: {lost}") from lost
    errors = result.stderr.decode("utf-8", "replace").strip()
    if result.timed_out:
        raise PatchRefused(f"the patch was not applied within {timeout_s:g} s")
    if result.exit_code == 93:
        raise PatchRefused(f"the patch does not apply: {errors}")
    if result.exit_code == 92:
        raise EnvironmentFailed(f"the task's own tests do not apply: {errors}")
    if result.exit_code != 0:
        raise EnvironmentFailed(f"git failed (exit code {result.exit_code}): {errors}")
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
    return any(path == name + suffix for suffix in _LEFT_BY_LADDER for name in paths)


async def apply_trusted_patch(sandbox: Sandbox, patch: str, *, timeout_s: float) -> None:
    """Apply a patch that may change any file. Raises PatchRefused and SandboxLost."""
    result = await sandbox.exec(
        ["git", "apply", "--whitespace=nowarn", "-"],
        stdin=patch.encode("utf-8", "surrogateescape"),
        timeout_s=timeout_s,
    )
    if result.exit_code != 0:
        raise PatchRefused(f"the patch does not apply: {result.stderr.decode('utf-8', 'replace').strip()}")
