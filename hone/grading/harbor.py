"""Grade a Harbor task: its own script in a fresh sandbox, and a reward that only that script writes.

A script whose text itself writes the reward, as most do (`echo 1 > /logs/verifier/reward.txt`), runs in a
shell that no process of the sandbox can trace, read or take descriptors of. Just before that command the
shell ends every other process, empties the file and says so with a secret that only it knows; a reward that
came another way does not count. Any other script (the reward comes from a program that it starts) is only as
safe as its tests: a program of the agent that the tests run is the same user as they are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from hone.environment import (
    FilteredPatch,
    PatchRefused,
    filter_patch,
    parse_patch,
    prepare_workspace,
    put_files,
    put_result,
    sandbox_image,
)
from hone.grading.errors import GraderError
from hone.grading.integrity import Tampering, scan_patch
from hone.grading.plan import GradingPlan
from hone.grading.run import TestRun
from hone.grading.settings import GradingSettings
from hone.sandbox.contract import (
    ExecResult,
    Limits,
    Provider,
    ProviderUnavailable,
    Sandbox,
    SandboxError,
    SandboxSpec,
)
from hone.tasks.errors import TaskError
from hone.tasks.harbor import HarborTask, Stage, read_task
from hone.tasks.harbor.folder import TEST, unpack
from hone.tasks.harbor.serve import SCRIPT
from hone.types import Checks, Task, TestStatus, Verdict

LOGS = "/logs/verifier"
FILES = ("reward.json", "reward.txt")  # the first that is there counts
OUTPUT_KIB = 1024  # kept of a script's output, half from its end, where the shell says what it wrote
LOG_CHARACTERS = 16384  # of a script's output, kept from its end
_WRITES = re.compile(r"""^[^#\n]*>\s*["']?/logs/verifier/reward\.(?:txt|json)\b""", re.MULTILINE)
_SHELL = re.compile(r"#!\s*/(?:usr/)?bin/(?:env\s+)?(?:ba)?sh\b")

_PATH = re.compile(r"/[\w.-]+(?:/[\w.-]+)*")  # that a script names; it may go there
_INSTALLED = """
import importlib.util, sys
for name in sys.argv[1:]:
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        continue
    if found is not None and found.origin is not None:
        print(name)
"""
# Arguments: a new directory, the script. A shell whose file its user may not read is not dumpable.
_SEALED_SHELL = """
mkdir -m 700 "$1" "$1/home" && mkdir -p /logs/verifier /logs/agent /logs/artifacts || exit
cp -- /bin/bash "$1/bash" && chmod 0111 "$1/bash" && chmod +x "$2"
"""
# $0: the script. Standard input: the secret. `hone_seal` runs before each command of the script, also in
# functions and subshells: it reports what the last command wrote, and seals the reward before one writes it.
_SEALED_RUN = r"""
read -r hone_secret
exec {hone_report}>&1 </dev/null
hone_written= hone_value=
hone_seal() {
    if [[ -n $hone_written ]]; then
        IFS= read -r -d '' -n 65536 hone_value < "/logs/verifier/reward.$hone_written" || :
        printf '\n%s wrote %s %s\n' "$hone_secret" "$hone_written" "${hone_value//$'\n'/ }" >&"$hone_report"
        hone_written=
    fi
    [[ $BASHPID == "$$" ]] || return 0
    [[ $BASH_COMMAND =~ \>[[:space:]]*[\"\']?/logs/verifier/reward\.(txt|json) ]] || return 0
    kill -9 -1 2>/dev/null || :
    if : > "/logs/verifier/reward.${BASH_REMATCH[1]}"; then
        hone_written=${BASH_REMATCH[1]}
        printf '\n%s sealed %s\n' "$hone_secret" "$hone_written" >&"$hone_report"
    else
        printf '\n%s refused\n' "$hone_secret" >&"$hone_report"
    fi
} 2>/dev/null
if /bin/cat "/proc/$$/environ" >/dev/null 2>&1; then printf '%s open\n' "$hone_secret"; exit 90; fi
set -T
trap hone_seal DEBUG
. "$0"
"""


async def run_harbor(
    provider: Provider,
    plan: GradingPlan,
    patch: FilteredPatch,
    settings: GradingSettings,
    limits: Limits,
    *,
    cache: Path,
) -> TestRun:
    """Run the verifier of each step, each in a sandbox of its own, and combine the rewards.

    Args:
        cache: directory of the tasks' repositories.
    Raises:
        GraderError: no sandbox, or an image without a shell.
        PatchRefused: the patch does not apply, or changes what is no part of the result.
        SandboxLost: the sandbox is gone.
    """
    try:
        harbor = read_task(plan.task.checks.folder)
        workspace = await prepare_workspace(plan.task, provider, cache)
    except (TaskError, SandboxError) as error:  # nothing of the agent's has a part in this
        raise GraderError(f"task {plan.task.id}: {error}") from error
    runs: list[TestRun] = []
    for stage in harbor.stages:
        run = await run_stage(provider, harbor, stage, patch, workspace / ".git", settings, limits)
        runs.append(run)
        if any(run.rewards.get(name, -math.inf) < least for name, least in stage.min_reward.items()):
            break
    final = harbor.config.multi_step_reward_strategy == "final"
    return runs[-1] if final or len(runs) == 1 else _mean(runs)


def _mean(runs: Sequence[TestRun]) -> TestRun:
    """Return the run of all steps: the mean of each reward, a missing one counted as 0."""
    names = dict.fromkeys(name for run in runs for name in run.rewards)
    rewards = {name: sum(run.rewards.get(name, 0.0) for run in runs) / len(runs) for name in names}
    worst = next((run for run in runs if run.tampered or run.fault), runs[-1])
    log = "\n".join(run.log for run in runs)[-LOG_CHARACTERS:]
    seconds = sum(run.seconds for run in runs)
    return dataclasses.replace(worst, rewards=rewards, statuses=_statuses(rewards), log=log, seconds=seconds)


async def run_stage(
    provider: Provider,
    harbor: HarborTask,
    stage: Stage,
    patch: FilteredPatch,
    base: Path,
    settings: GradingSettings,
    limits: Limits,
) -> TestRun:
    """Run one verifier in a fresh sandbox on the agent's files; see `run_harbor`.

    Args:
        base: git directory of the files from which the patch is a difference.
    """
    limits = dataclasses.replace(limits, output_kib=max(limits.output_kib, OUTPUT_KIB))
    try:
        image = await sandbox_image(harbor, provider)
        spec = SandboxSpec(
            image=image, workdir=harbor.workdir, env=harbor.env, limits=limits, network=stage.network
        )
        sandbox = await provider.start(spec)
    except ProviderUnavailable as error:
        raise GraderError(f"no sandbox to grade in: {error}") from error
    async with sandbox:
        await put_files(sandbox, harbor.uploads, harbor.workdir)
        await _check_modules(sandbox, harbor, stage, patch, settings)
        await put_result(sandbox, patch, harbor.roots, base, timeout_s=settings.slack_s)
        await put_files(sandbox, stage.tests, "/tests")
        return await _verify(sandbox, harbor, stage, settings)


async def _check_modules(
    sandbox: Sandbox, harbor: HarborTask, stage: Stage, patch: FilteredPatch, settings: GradingSettings
) -> None:
    """Raise PatchRefused for a module of the agent's that Python would import in place of the verifier's.

    `python -m pytest` looks for modules in the directory in which it starts, before the installed ones.
    """
    text = unpack(stage.tests[SCRIPT])[0].decode("utf-8", "replace")
    folders = {root.strip("/") for root in harbor.roots} | {path.strip("/") for path in _PATH.findall(text)}
    names = sorted({path.name.partition(".")[0] for path in _top_modules(patch.paths, folders)})
    if not names:
        return
    found = await sandbox.exec(
        [*_without_roots(harbor.roots, "/nonexistent"), "python3", "-I", "-c", _INSTALLED, *names],
        cwd="/",
        timeout_s=settings.slack_s,
    )
    shadowed = found.text.split() if found.exit_code == 0 else []  # an image without Python imports nothing
    if shadowed:
        raise PatchRefused(f"the patch puts a module {shadowed[0]} before the one that the tests import")


def _top_modules(paths: Sequence[str], folders: set[str]) -> list[PurePosixPath]:
    """Return the modules and packages that are directly in one of the directories; all paths below /."""
    found: list[PurePosixPath] = []
    for path in map(PurePosixPath, paths):
        for folder in folders:
            if path.is_relative_to(folder) and len(path.parts) > len(PurePosixPath(folder).parts):
                top = PurePosixPath(*path.parts[: len(PurePosixPath(folder).parts) + 1])
                if top != path or path.suffix in (".py", ".so"):
                    found.append(top)
    return found


async def _verify(sandbox: Sandbox, harbor: HarborTask, stage: Stage, settings: GradingSettings) -> TestRun:
    """Run a stage's script in a sandbox that holds the agent's files, and read the reward."""
    script, own = f"/tests/{SCRIPT}", f"/tmp/{secrets.token_hex(8)}"  # noqa: S108 - unguessable
    text = unpack(stage.tests[SCRIPT])[0].decode("utf-8", "replace")
    sealed = is_sealed(text)
    prepare = ["/bin/bash", "-p", "-c", _SEALED_SHELL, "seal", own, script]
    made = await sandbox.exec(prepare, cwd="/", timeout_s=settings.slack_s)
    if made.exit_code != 0:
        raise GraderError(f"the image has no /bin/bash that can run the verifier ({made.ending})")
    secret = secrets.token_hex(16)
    command = [f"{own}/bash", "-p", "-c", _SEALED_RUN, script] if sealed else [script]
    ran = await sandbox.exec(
        [*_without_roots(harbor.roots, own), *command],
        stdin=f"{secret}\n".encode() if sealed else b"",
        env=stage.env,
        timeout_s=stage.timeout_s,
        merge_stderr=True,
    )
    log = ran.stdout.decode("utf-8", "replace").replace(secret, "-")[-LOG_CHARACTERS:]
    run = TestRun(statuses={}, finished=False, log=log, seconds=ran.seconds)
    if ran.timed_out:
        return dataclasses.replace(run, log=f"{log}\nthe verifier was stopped after {stage.timeout_s:g} s")
    if sealed:
        found = _sealed_reward(ran, secret)
    else:
        await sandbox.exec(["/bin/bash", "-p", "-c", "kill -9 -1"], cwd="/", timeout_s=settings.slack_s)
        found = await _read_rewards(sandbox)
    return await _rewarded(sandbox, run, found, ran.ending)


def is_sealed(script: str) -> bool:
    """Return whether a script is one of a shell that writes the reward by a redirection of its own."""
    first = script.partition("\n")[0]
    return (not first.startswith("#!") or _SHELL.match(first) is not None) and _WRITES.search(
        script
    ) is not None


def _without_roots(roots: Sequence[str], own: str) -> list[str]:
    """Return what starts a command without directories of the agent in PATH, HOME and what loads modules."""
    homes = "|".join(f"{shlex.quote(root)}|{shlex.quote(root)}/*" for root in roots)
    inside = " ".join(f"{shlex.quote(root)}|{shlex.quote(root)}/*) ;;" for root in roots)
    text = f"""
    outside= IFS=:
    for folder in $PATH; do
        real=$(cd -P -- "$folder" 2>/dev/null && pwd) || continue
        [[ $folder == /* ]] && case $real in {inside} *) outside+=${{outside:+:}}$folder;; esac
    done
    unset IFS BASH_ENV ENV LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT ${{!PYTHON@}}
    case $(cd -P -- "$HOME" 2>/dev/null && pwd) in {homes}) HOME={shlex.quote(own)}/home;; esac
    export PATH=$outside HOME PYTHONDONTWRITEBYTECODE=1
    exec "$@"
    """
    return ["/bin/bash", "-p", "-c", text, "bash"]


def _sealed_reward(ran: ExecResult, secret: str) -> tuple[str, bytes | None] | None:
    """Return the file that the shell itself wrote last, and what it held when the next command began.

    None for the content: no command followed, so the file still holds it. None: the shell wrote no reward.
    """
    said = re.findall(rf"^{secret} (\w+) ?(\w*) ?(.*)$", ran.stdout.decode("utf-8", "replace"), re.MULTILINE)
    if any(word == "open" for word, _, _ in said):
        raise GraderError(
            "the sandbox lets processes read the shell that runs the verifier, so no reward is safe"
        )
    last = max((at for at, (word, _, _) in enumerate(said) if word in ("sealed", "refused")), default=None)
    if last is None or said[last][0] == "refused":
        return None
    wrote = next((content for word, _, content in said[last + 1 :] if word == "wrote"), None)
    return f"reward.{said[last][1]}", None if wrote is None else wrote.encode()


async def _read_rewards(sandbox: Sandbox) -> tuple[str, bytes | None] | None:
    """Return the reward file of a script that is not sealed, as `_sealed_reward` does."""
    for name in FILES:
        with contextlib.suppress(OSError):
            return name, await sandbox.read(f"{LOGS}/{name}")
    return None


async def _rewarded(
    sandbox: Sandbox, run: TestRun, found: tuple[str, bytes | None] | None, ended: str
) -> TestRun:
    """Return the run with the rewards in the file that was found, or with the fault that there are none."""
    fault = f"the verifier wrote no reward ({ended})"
    if found is not None:
        name, data = found
        try:
            rewards = parse_rewards(name, await sandbox.read(f"{LOGS}/{name}") if data is None else data)
        except (OSError, ValueError) as error:
            fault = f"the verifier wrote no reward that can be read: {error}"
        else:
            return dataclasses.replace(run, rewards=rewards, statuses=_statuses(rewards), finished=True)
    return dataclasses.replace(run, fault=fault, log=f"{run.log}\n{fault}")


def parse_rewards(name: str, data: bytes) -> Mapping[str, float]:
    """Return the rewards in a file of a verifier. Raises ValueError for what is no finite number."""
    text = data.decode("utf-8")
    value = json.loads(text) if name.endswith(".json") else float(text)
    found = value if isinstance(value, dict) else {"reward": value}
    for key, number in found.items():
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise ValueError(f"{key} is {number!r:.80}")
    if not found:
        raise ValueError("it is empty")
    return {key: float(number) for key, number in found.items()}


def read_patch(patch: str, task: Task) -> tuple[FilteredPatch, Tampering | None]:
    """Return what of a patch reaches the verifier, and evidence of tampering. Raises PatchRefused."""
    return filter_patch(patch, ()), scan_patch(parse_patch(patch), task)


def score_of(rewards: Mapping[str, float]) -> float:
    """Return the score of rewards, in [0, 1]: that called "reward", else their mean."""
    if not rewards:
        return 0.0
    score = rewards["reward"] if "reward" in rewards else sum(rewards.values()) / len(rewards)
    return min(max(score, 0.0), 1.0)


def _statuses(rewards: Mapping[str, float]) -> Mapping[str, TestStatus]:
    return {TEST: TestStatus.PASSED if score_of(rewards) >= 1 else TestStatus.FAILED}


def harbor_verdict(checks: Checks, run: TestRun, *, applied: bool = True) -> Verdict:
    """Return resolved for a reward of 1 or more. A tampered run scores 0."""
    whole = run.finished and run.tampered is None and applied
    score = score_of(run.rewards) if whole else 0.0
    return Verdict(
        resolved=whole and score >= 1,
        tests={test: run.statuses.get(test, TestStatus.MISSING) for test in checks.named_tests},
        score=score,
        tampered=run.tampered,
        log=run.log,
        applied=applied,
        seconds=run.seconds,
        rewards=run.rewards if whole else {},
    )
