"""Grade a patch: a fresh sandbox, the filtered patch, trusted tests, a verdict test by test.

GraderError   no verdict, and the patch did not cause that: the sandbox or the runner did not start
Verdict       everything else; whatever a patch can cause (it does not apply, it kills the tests, hangs, uses
              up the memory, takes the sandbox down) is a verdict that fails
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hone.environment import (
    EnvironmentFailed,
    FilteredPatch,
    PatchRefused,
    TaskEnvironment,
    apply_patch,
    apply_trusted_patch,
    changes_sources,
    compiled_libraries,
    filter_patch,
    parse_patch,
    put_libraries,
    resolve_environment,
    sandbox_image,
)
from hone.environment.environment import has_own_repository
from hone.grading.commands import Suite
from hone.grading.controls import list_helpers, read_files, run_with_controls
from hone.grading.errors import GraderError
from hone.grading.framework import modules_in_tree
from hone.grading.harbor import harbor_verdict, run_harbor
from hone.grading.integrity import Tampering, scan_patch
from hone.grading.memo import Memo
from hone.grading.plan import GradingPlan, TestJob, build_command, compile_plan, make_job
from hone.grading.rules import Rule
from hone.grading.run import Edition, RunJob, TestRun, run_tests, start_sandbox
from hone.grading.script import run_script
from hone.grading.settings import GradingSettings
from hone.grading.solution import run_solution
from hone.grading.titles import is_renamed, official_names
from hone.grading.variation import Variation, run_varied, vary_script
from hone.grading.verdict import failed, make_verdict, statuses_of, words_of
from hone.sandbox.contract import Limits, Provider, ProviderUnavailable, Sandbox, SandboxLost
from hone.tasks.configuration import FILES, pytest_arguments
from hone.tasks.controls import files_named_in
from hone.tasks.errors import TaskError
from hone.tasks.formats import content_hash
from hone.tasks.harbor import is_harbor, read_task
from hone.tasks.workspace import is_local
from hone.types import Task, Verdict

_PROBE = """
import json, platform, pytest
found = {"python": platform.python_version(), "pytest": pytest.__version__}
print(json.dumps(dict(found, kernel=platform.release())))
"""


class Grader:
    """Grade patches and run test files, each in a fresh sandbox.

    Args:
        cache: directory of the tasks' repositories (`hone.tasks.workspace.prepare`).
        limits: of the sandboxes; None is the default.
    """

    def __init__(
        self, provider: Provider, settings: GradingSettings, *, cache: Path, limits: Limits | None = None
    ) -> None:
        self.provider, self.settings, self._cache, self._limits = (
            provider,
            settings,
            cache,
            limits or Limits(),
        )
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._verdicts = Memo[Verdict](settings.cached_verdicts)
        self._references = Memo[bool](settings.cached_verdicts)  # tasks whose reference patch runs through
        self._solutions = Memo[str](settings.cached_verdicts)  # of Harbor tasks
        self._probes: dict[tuple[object, ...], asyncio.Lock] = {}  # by image and requirements
        self._versions: dict[tuple[object, ...], Mapping[str, str]] = {}

    async def grade(self, task: Task, patch: str) -> Verdict:
        """Return the verdict; calls with an equal task and patch share one. Raises GraderError.

        At most `settings.concurrency` run at once. A GraderError is not cached: the next call tries again.
        """

        async def compute() -> Verdict:
            async with self._slots:
                return await self.grade_uncached(task, patch)

        return await self._verdicts.get(f"{content_hash(task)}\0{patch}", compute)

    async def grade_uncached(self, task: Task, patch: str) -> Verdict:
        """Return the verdict of a new run. Raises GraderError.

        A run in which no test ran, or Hone's own code crashed, is compared with one of the reference patch:
        if that one has such a fault, too, the patch is not the cause.
        """
        plan, controls = compile_plan(task), task.checks.controls

        async def run_job(sandbox: Sandbox, job: TestJob, environment: TaskEnvironment) -> list[TestRun]:
            return [await run_with_controls(sandbox, job, environment, self.settings, controls)]

        try:
            return await self._grade(plan, patch, run_job, self._limits)
        except SandboxLost as lost:
            return make_verdict(task.checks, _lost_run(lost))

    async def grade_trusted(self, task: Task, patch: str, variation: Variation) -> Verdict:
        """Return the verdict of a trusted patch in a new run with a variation and without controls.

        Raises GraderError, also where two sandboxes are lost: the patch is not to blame for that.
        """
        plan = vary_script(compile_plan(task), variation)

        async def run_job(sandbox: Sandbox, job: TestJob, environment: TaskEnvironment) -> list[TestRun]:
            return [await run_varied(sandbox, job, environment, self.settings, variation)]

        try:
            return await self._grade(plan, patch, run_job, variation.limits(self._limits))
        except SandboxLost as lost:
            raise GraderError(f"task {task.id}: its tests took their sandbox down, twice: {lost}") from lost

    async def _grade(self, plan: GradingPlan, patch: str, run_job: RunJob, limits: Limits) -> Verdict:
        """Return the verdict of a new run. Raises GraderError, and SandboxLost for two lost sandboxes."""
        task, checks = plan.task, plan.checks
        try:
            filtered, tampering = await asyncio.to_thread(_read_patch, plan, patch, self.settings)
            if tampering is not None:
                evidence = tampering.evidence
                run = TestRun(statuses={}, finished=False, tampered=evidence, log=evidence)
                return make_verdict(checks, run)
            environment = await resolve_environment(task, self._cache, self.settings)
            (run,) = await self._run_twice(plan, filtered, environment, run_job, limits)
        except PatchRefused as refusal:
            return failed(checks, str(refusal))
        except (TaskError, EnvironmentFailed) as error:
            raise GraderError(f"task {task.id} cannot be graded: {error}") from error
        if run.fault is not None and run.tampered is None:
            if patch == checks.gold_patch != "":
                raise _ungradable(plan, run.fault)
            await self._check_reference(plan)
        if is_harbor(task):
            return harbor_verdict(checks, run)
        if not run.by_log and is_renamed(run.suite, checks.parser):
            words = official_names(
                words_of(run.statuses), checks.parser, suite=run.suite, titles=run.titles,
                repo=task.environment.repo,
            )  # fmt: skip
            run = dataclasses.replace(run, statuses=statuses_of(words))
        # only a log can tell a test that is absent from one that failed
        fail_only = run.by_log and checks.rule == Rule.FAIL_ONLY
        return make_verdict(checks, run, rule=Rule.FAIL_ONLY if fail_only else Rule.PASS_AND_FAIL)

    async def _check_reference(self, plan: GradingPlan) -> None:
        """Raise GraderError when a run of the reference patch has a fault, too; one without is remembered.

        Without one the tree as it is runs, where the very bug of the task may keep every test from running.
        """
        gold = await self.reference_patch(plan.task)

        async def run_job(sandbox: Sandbox, job: TestJob, environment: TaskEnvironment) -> list[TestRun]:
            return await run_tests(sandbox, job, environment, self.settings)

        async def compute() -> bool:
            try:
                environment = await resolve_environment(plan.task, self._cache, self.settings)
                filtered = filter_patch(gold, plan.protected)
                (run,) = await self._run_twice(plan, filtered, environment, run_job, self._limits)
            except PatchRefused:
                return True
            except SandboxLost as lost:
                raise _ungradable(plan, f"its sandbox was lost, twice: {lost}") from lost
            except (TaskError, EnvironmentFailed) as error:
                raise _ungradable(plan, str(error)) from error
            if run.fault is not None and (gold or run.crashed or not run.finished):
                raise _ungradable(plan, run.fault)
            return True

        await self._references.get(content_hash(plan.task), compute)

    async def reference_patch(self, task: Task) -> str:
        """Return the reference fix: the task's own, or what the solution of a Harbor task changes; or "".

        Raises GraderError.
        """
        if not is_harbor(task):
            return task.checks.gold_patch

        async def compute() -> str:
            return await run_solution(task, self.provider, self.settings, self._limits, cache=self._cache)

        return await self._solutions.get(content_hash(task), compute)

    async def versions(self, task: Task) -> Mapping[str, str]:
        """Return the versions of python, pytest and the kernel in the task's sandboxes.

        Of tasks with the same image and requirements, the first one's sandbox is asked. Empty without a
        Python that has pytest. Raises GraderError.
        """
        in_image = is_harbor(task) or has_own_repository(task.environment)
        image = task.environment.image if in_image else "host"
        key = (image, task.environment.python, task.environment.requirements)
        async with self._probes.setdefault(key, asyncio.Lock()):
            if key not in self._versions:
                self._versions[key] = await self._probe(task)
            return self._versions[key]

    async def _probe(self, task: Task) -> Mapping[str, str]:
        try:
            environment = await resolve_environment(task, self._cache, self.settings)
            if is_harbor(task):
                image = await sandbox_image(read_task(task.checks.folder), self.provider)
                environment = dataclasses.replace(environment, image=image)
        except (TaskError, ProviderUnavailable) as error:
            raise GraderError(str(error)) from error
        workdir = task.environment.workdir
        sandbox = await start_sandbox(self.provider, workdir, environment, self._limits, whole_report=False)
        async with sandbox:
            command = [*environment.wrapper, environment.python, "-c", _PROBE]
            found = await sandbox.exec(command, cwd="/", env=environment.env, timeout_s=self.settings.slack_s)
        return json.loads(found.stdout) if found.exit_code == 0 else {}

    async def run_edited(
        self, task: Task, patch: str, edit: Callable[[Mapping[str, str]], Sequence[Edition]]
    ) -> Sequence[TestRun]:
        """Run the tests on a trusted patch as a grading does, once for each edition of their files.

        Args:
            edit: path -> text of the test modules and of trusted files that they name, to the editions.
        Returns:
            One run for each; a single unfinished one when the sandbox was lost.
        Raises:
            GraderError: the sandbox or the runner did not start, or the patch does not apply.
        """
        plan = compile_plan(task)
        named = {test.split("::")[0] for test in task.checks.named_tests if "::" in test}

        async def run_job(sandbox: Sandbox, job: TestJob, environment: TaskEnvironment) -> list[TestRun]:
            texts = await read_files(sandbox, job, {*named, *job.run_files})
            helpers = files_named_in(texts.values(), await list_helpers(sandbox, job))
            texts |= await read_files(sandbox, job, set(helpers) - set(texts))
            return await run_tests(sandbox, job, environment, self.settings, edit(texts))

        try:
            environment = await resolve_environment(task, self._cache, self.settings)
            filtered = filter_patch(patch, plan.protected)
            return await self._run_twice(plan, filtered, environment, run_job, self._limits)
        except SandboxLost as lost:
            return [_lost_run(lost)]
        except (TaskError, EnvironmentFailed, PatchRefused) as error:
            raise GraderError(f"the tests of task {task.id} cannot run: {error}") from error

    async def _run_twice(
        self,
        plan: GradingPlan,
        patch: FilteredPatch,
        environment: TaskEnvironment,
        run: RunJob,
        limits: Limits,
    ) -> Sequence[TestRun]:
        """Run the tests, again in another sandbox when the first is lost.

        A machine may fail once under any patch; a patch that loses two sandboxes caused it: SandboxLost.
        """
        with contextlib.suppress(SandboxLost):
            return await self._run_once(plan, patch, environment, run, limits)
        return await self._run_once(plan, patch, environment, run, limits)

    async def _run_once(
        self,
        plan: GradingPlan,
        patch: FilteredPatch,
        environment: TaskEnvironment,
        run: RunJob,
        limits: Limits,
    ) -> Sequence[TestRun]:
        if is_harbor(plan.task):
            return [await run_harbor(self.provider, plan, patch, self.settings, limits, cache=self._cache)]
        build, whole_report = build_command(plan), bool(plan.script) or plan.job.reported is None
        async with contextlib.AsyncExitStack() as opened:
            if build and changes_sources(patch.paths):
                libraries = await opened.enter_async_context(
                    compiled_libraries(
                        self.provider, environment, build, plan.job.workdir, patch, plan.protected,
                        settings=self.settings, limits=limits,
                    )
                )  # fmt: skip
                environment = dataclasses.replace(environment, libraries=libraries)
            sandbox = await start_sandbox(
                self.provider, plan.job.workdir, environment, limits, whole_report=whole_report
            )
            opened.push_async_callback(sandbox.close)
            if plan.script is not None:
                return await run_script(sandbox, plan, patch, environment, self.settings, run)
            return await self._run_files(sandbox, plan, patch, environment, run)

    async def _run_files(
        self,
        sandbox: Sandbox,
        plan: GradingPlan,
        patch: FilteredPatch,
        environment: TaskEnvironment,
        run: RunJob,
    ) -> Sequence[TestRun]:
        """Run the task's own test files on the patched tree."""
        own = await modules_in_tree(sandbox, environment, plan.job.workdir)
        if patch.text or plan.checks.test_patch:
            await apply_patch(
                sandbox,
                patch.text,
                set(patch.paths),
                timeout_s=self.settings.slack_s,
                tests=plan.checks.test_patch,
                test_paths=plan.patched,
                clean=environment.layer is not None,
            )
            await put_libraries(sandbox, environment.libraries)
        job = _configured_job(plan.task, plan.job, environment)
        return await run(sandbox, dataclasses.replace(job, own=own), environment)

    async def run_suite(self, task: Task, patch: str, files: Sequence[str] | None = None) -> TestRun:
        """Run test files after a trusted patch, which may change tests; for making tasks, not for grading.

        Sandbox, runner and plugins are those of a grading, so observations made here hold there. A patch that
        does not apply gives an unfinished run.

        Args:
            files: paths below the root; default: those that the task's checks name.
        Raises:
            GraderError: the sandbox or the runner did not start, or the repository cannot be prepared.
        """
        try:
            environment = await resolve_environment(task, self._cache, self.settings)
        except TaskError as error:
            raise GraderError(str(error)) from error
        job = dataclasses.replace(make_job(task, files), reported=None)
        sandbox = await start_sandbox(
            self.provider, job.workdir, environment, self._limits, whole_report=True
        )
        try:
            own = await modules_in_tree(sandbox, environment, job.workdir)
            for trusted in filter(None, (patch, task.checks.test_patch)):
                await apply_trusted_patch(sandbox, trusted, timeout_s=self.settings.slack_s)
            job = dataclasses.replace(_configured_job(task, job, environment), own=own)
            (run,) = await run_tests(sandbox, job, environment, self.settings)
        except PatchRefused as refusal:
            return TestRun(statuses={}, finished=False, log=str(refusal))
        except SandboxLost as lost:
            return TestRun(statuses={}, finished=False, log=f"the sandbox was lost: {lost}")
        finally:
            await sandbox.close()
        if run.tampered is None:
            return run
        return dataclasses.replace(run, finished=False, log=run.tampered)


def _lost_run(lost: SandboxLost) -> TestRun:
    return TestRun(statuses={}, finished=False, log=f"the patch took its sandbox down, twice: {lost}")


def _ungradable(plan: GradingPlan, fault: str) -> GraderError:
    whose = "the reference patch" if plan.checks.gold_patch else "no patch"
    return GraderError(f"task {plan.task.id} cannot be graded, with {whose} either: {fault}")


def _read_patch(
    plan: GradingPlan, patch: str, settings: GradingSettings
) -> tuple[FilteredPatch, Tampering | None]:
    try:
        size = len(patch.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError as error:
        raise PatchRefused(f"the patch holds half of a surrogate pair at character {error.start}") from None
    if size > settings.max_patch_kib * 1024:
        raise PatchRefused(f"the patch is larger than {settings.max_patch_kib} KiB")
    return filter_patch(patch, plan.protected), scan_patch(parse_patch(patch), plan.task)


def _configured_job(task: Task, job: TestJob, environment: TaskEnvironment) -> TestJob:
    """Return the job with the pytest options that the repository's own configuration sets for collection."""
    if job.suite is not Suite.PYTEST or not is_local(task.environment) or environment.layer is None:
        return job
    found = {name: environment.layer / name for name in FILES}
    options = pytest_arguments(
        {name: path.read_text("utf-8", "replace") for name, path in found.items() if path.is_file()}
    )
    return dataclasses.replace(job, command=(*options, *job.command))
