"""Runs of tests that differ on purpose from a grading: hash seed, order, time zone, locale, processes.

A test whose status such a difference changes depends on more than the patch. Admission looks for them
(`hone.curate.flaky`); a grading never varies anything.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hone.environment import TaskEnvironment
from hone.grading.commands import Suite, TestCommand
from hone.grading.in_sandbox.hone_tally import WORST_FIRST
from hone.grading.plan import GradingPlan, TestJob
from hone.grading.run import ENV, TestRun, run_tests
from hone.grading.settings import GradingSettings
from hone.sandbox.contract import LIMIT_BOUNDS, Limits, Sandbox
from hone.types import TestStatus
from hone.utils.concurrency import task_group

FACTORS: Mapping[str, str] = {  # field of Variation -> its name in sentences
    "hash_seed": "the hash seed",
    "order": "the order of tests",
    "timezone": "the time zone",
    "locale": "the locale",
    "processes": "the number of test processes",
}
REVERSED = 1  # value of `Variation.order`
_ZONES = ("Asia/Kathmandu", "America/St_Johns", "Pacific/Kiritimati", "Pacific/Marquesas")
_MOST_PROCESSES = 4
_PLUGIN = "hone_order"  # in the directory of the runner
_NEEDS_RUNNER = ("order", "processes")  # pytest's
_RANK = {TestStatus(word): rank for rank, word in enumerate(WORST_FIRST)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """What differs in one run of tests; the defaults are the values of a grading."""

    hash_seed: int = int(ENV["PYTHONHASHSEED"])
    order: int = 0  # 0: as pytest collects them; REVERSED; more: the seed of a shuffle
    timezone: str = ""  # name in the IANA database; empty: the sandbox's own
    locale: str = ENV["LC_ALL"]
    processes: int = 1  # at once, between which the tests are divided

    @property
    def factors(self) -> tuple[str, ...]:
        """The names of the fields that differ from a grading."""
        plain = Variation()
        return tuple(name for name in FACTORS if getattr(self, name) != getattr(plain, name))

    def only(self, factor: str) -> Variation:
        """Return the variation of one factor alone."""
        return dataclasses.replace(Variation(), **{factor: getattr(self, factor)})

    def limits(self, limits: Limits) -> Limits:
        """Return the limits of a sandbox in which each process may use as much memory as one alone."""
        most = {name: int(LIMIT_BOUNDS[name][1]) for name in ("memory_mib", "pids")}
        return dataclasses.replace(
            limits,
            memory_mib=min(limits.memory_mib * self.processes, most["memory_mib"]),
            pids=min(limits.pids * self.processes, most["pids"]),
        )


def variation_of(run: int) -> Variation:
    """Return how a run differs from a grading; it depends on its number only, and run 0 does not differ.

    Odd runs change the order of the tests, the first of them all pairs of tests; even ones run them in
    several processes at once, in their own order.
    """
    if run == 0:
        return Variation()
    zone = _ZONES[(run - 1) % len(_ZONES)]
    if run % 2:
        return Variation(hash_seed=run, order=run, timezone=zone, locale="C")
    return Variation(hash_seed=run, timezone=zone, processes=min(1 + run // 2, _MOST_PROCESSES))


def factors_of(plan: GradingPlan, runs: int) -> tuple[str, ...]:
    """Return the factors that vary between the first `runs` runs of a plan.

    Order and processes are those of the suite itself where pytest does not run it.
    """
    varied = {factor for run in range(runs) for factor in variation_of(run).factors}
    if plan.script is None:
        by_pytest = plan.job.suite is Suite.PYTEST
    else:
        by_pytest = isinstance(plan.command, TestCommand) and plan.command.suite is Suite.PYTEST
    return tuple(name for name in FACTORS if name in varied and (by_pytest or name not in _NEEDS_RUNNER))


def vary_script(plan: GradingPlan, variation: Variation) -> GradingPlan:
    """Return the plan whose script starts with the variables of a variation; the script may set its own."""
    if plan.script is None:
        return plan
    exports = [f"export {name}={shlex.quote(value)}" for name, value in _variables(variation).items()]
    before = "\n".join([*exports, plan.script.before])
    return dataclasses.replace(plan, script=dataclasses.replace(plan.script, before=before))


async def run_varied(
    sandbox: Sandbox,
    job: TestJob,
    environment: TaskEnvironment,
    settings: GradingSettings,
    variation: Variation,
) -> TestRun:
    """Run the job once with a variation.

    Raises:
        GraderError: the runner does not start.
        SandboxLost: the sandbox is gone.
    """
    if job.suite is not Suite.PYTEST:
        variation = dataclasses.replace(variation, order=0, processes=1)
    job = dataclasses.replace(
        job,
        env={**_variables(variation), **job.env},
        timeout_s=job.timeout_s * variation.processes,
    )
    if variation.processes == 1:
        (run,) = await run_tests(sandbox, _ordered(job, variation, 1), environment, settings)
        return run
    for path, text in job.test_files.items():  # once: two runners would replace each other's files
        await sandbox.write(f"{job.workdir}/{path}", text.encode("utf-8", "surrogateescape"))
    parts = [
        _ordered(dataclasses.replace(job, test_files={}), variation, part)
        for part in range(1, variation.processes + 1)
    ]
    async with task_group() as group:
        running = [group.create_task(run_tests(sandbox, part, environment, settings)) for part in parts]
    return merge([run for task in running for run in task.result()])


def _variables(variation: Variation) -> dict[str, str]:
    zone = {"TZ": variation.timezone} if variation.timezone else {}
    return {"PYTHONHASHSEED": str(variation.hash_seed), "LC_ALL": variation.locale, **zone}


def _ordered(job: TestJob, variation: Variation, part: int) -> TestJob:
    """Return the job whose tests run in the order of a variation, and only those of one part."""
    options: list[str] = []
    if variation.order:
        options += ["--hone-order", str(variation.order)]
    if variation.processes > 1:
        options += ["--hone-part", f"{part}/{variation.processes}"]
    return dataclasses.replace(job, command=(*job.command, "-p", _PLUGIN, *options)) if options else job


def merge(runs: Sequence[TestRun]) -> TestRun:
    """Return the runs of the parts of one job as one run.

    A test counts where it ran; of parametrized tests under one name, the worst status counts.
    """
    statuses: dict[str, TestStatus] = {}
    for run in runs:
        for test, status in run.statuses.items():
            known = statuses.get(test, TestStatus.MISSING)
            ran = [each for each in (known, status) if each is not TestStatus.MISSING]
            statuses[test] = min(ran, key=_RANK.__getitem__, default=TestStatus.MISSING)
    ended = next((run for run in runs if not run.finished), runs[0])
    return dataclasses.replace(
        ended,
        statuses=statuses,
        tampered=next((run.tampered for run in runs if run.tampered), None),
        fault=ended.fault if all(run.fault for run in runs) else None,  # a part may hold no named test
        crashed=any(run.crashed for run in runs),
        seconds=max(run.seconds for run in runs),
        memory_mib=max(run.memory_mib for run in runs),
    )
