"""Harbor's verifier by Hone's grading: a fresh sandbox, and a reward that only the tests write."""

# harbor is no dependency of Hone: pyright finds its names only where it is installed
# pyright: reportMissingImports=false, reportUnknownParameterType=false

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from harbor.models.task.verifier_mode import resolve_step_verifier_mode, resolve_task_verifier_mode
from harbor.models.verifier.result import VerifierResult
from harbor.utils.env import resolve_env_vars
from harbor.verifier.base import BaseVerifier

from hone.environment import FilteredPatch, PatchRefused, extract_patch, extract_result
from hone.environment.environment import BrokenTree
from hone.grading import Grader
from hone.grading.errors import GraderError
from hone.grading.harbor import harbor_verdict, read_patch, run_stage
from hone.grading.run import TestRun
from hone.grading.settings import GradingSettings
from hone.integrations.harbor.environment import HoneEnvironment
from hone.integrations.harbor.mapping import harbor_task
from hone.integrations.harbor.shared import shared_provider
from hone.sandbox.contract import SandboxLost
from hone.tasks.harbor import HarborTask
from hone.types import Task, Verdict

REPORT = "hone.json"  # beside the reward: the verdict, and the patch that was graded


class HoneVerifier(BaseVerifier):
    """Grades what a HoneEnvironment ran. A fault of the infrastructure is an exception, never a reward."""

    async def verify(self) -> VerifierResult:
        environment = self.environment
        if not isinstance(environment, HoneEnvironment):
            raise GraderError(
                "HoneVerifier grades what a HoneEnvironment ran: pass "
                "-e hone.integrations.harbor:HoneEnvironment"
            )
        settings = GradingSettings()
        if environment.task is not None:
            patch, verdict = await self._grade_own(environment, environment.task, settings)
            rewards = {"reward": 1.0 if verdict.resolved else 0.0}
        else:
            patch, verdict = await self._grade_folder(environment, settings)
            rewards = dict(verdict.rewards) or {"reward": 0.0}
        self._write_report(patch, verdict, rewards)
        return VerifierResult(rewards=rewards)

    async def _grade_own(
        self, environment: HoneEnvironment, task: Task, settings: GradingSettings
    ) -> tuple[str, Verdict]:
        """Grade a task that Hone exported by Hone's own tests."""
        assert environment.sandbox is not None
        patch = await extract_patch(environment.sandbox, task, settings, intact=True)
        provider = await shared_provider(environment.settings)
        cache = environment.base.parent / "workspaces"
        grader = Grader(provider, settings, cache=cache, limits=environment.settings.limits())
        return patch, await grader.grade(task, patch)

    async def _grade_folder(
        self, environment: HoneEnvironment, settings: GradingSettings
    ) -> tuple[str, Verdict]:
        """Grade the agent's files by the script of the task or of the step."""
        assert environment.sandbox is not None
        harbor, task = harbor_task(
            Path(self.task.paths.task_dir),
            self.step_name,
            separate=self._is_separate(),
            image=environment.image,
            workdir=environment.workdir,
            env=environment.sandbox.spec.env,
            uploads=environment.uploads,
            network=environment.network,
            verifier_env=resolve_env_vars(
                {**self.task.config.verifier.env, **(self.verifier_env or {}), **self.override_env}
            ),
            timeout_s=self._timeout_s(),
        )
        patch = ""
        try:
            patch = await extract_result(environment.sandbox, harbor.roots, environment.base, settings)
            filtered, tampering = read_patch(patch, task)
            if tampering is not None:
                run = TestRun(statuses={}, tampered=tampering.evidence, log=tampering.evidence)
                return patch, harbor_verdict(task.checks, run)
            run = await self._run(environment, harbor, filtered, settings)
        except (PatchRefused, BrokenTree) as refusal:
            run = TestRun(statuses={}, finished=False, log=str(refusal))
            return patch, harbor_verdict(task.checks, run, applied=False)
        if (
            run.fault is not None
        ):  # the agent's files may be the cause, unless the untouched ones have it, too
            untouched = await self._run(environment, harbor, read_patch("", task)[0], settings)
            if untouched.fault is not None:
                raise GraderError(untouched.fault)
        return patch, harbor_verdict(task.checks, run)

    async def _run(
        self,
        environment: HoneEnvironment,
        harbor: HarborTask,
        patch: FilteredPatch,
        settings: GradingSettings,
    ) -> TestRun:
        """Run the verifier; a patch under which two sandboxes are lost caused that. Raises GraderError."""
        assert environment.sandbox is not None
        limits, lost = environment.sandbox.spec.limits, SandboxLost()
        provider = await shared_provider(environment.settings)
        for _ in range(2):
            try:
                return await run_stage(
                    provider, harbor, harbor.stages[0], patch, environment.base, settings, limits
                )
            except BrokenTree:
                raise
            except SandboxLost as error:
                lost = error
        fault = f"the verifier's sandbox was lost, twice: {lost}"
        return TestRun(statuses={}, finished=False, fault=fault, log=fault)

    def _is_separate(self) -> bool:
        config = self.task.config
        if self.step_name is None:
            return resolve_task_verifier_mode(config).value == "separate"
        (step,) = [step for step in config.steps or [] if step.name == self.step_name]
        return resolve_step_verifier_mode(config, step).value == "separate"

    def _timeout_s(self) -> float:
        config = self.task.config
        for step in config.steps or []:
            if step.name == self.step_name and step.verifier.timeout_sec:
                return step.verifier.timeout_sec
        return config.verifier.timeout_sec

    def _write_report(self, patch: str, verdict: Verdict, rewards: dict[str, float]) -> None:
        folder = self.trial_paths.verifier_dir
        folder.mkdir(parents=True, exist_ok=True)
        report = {**dataclasses.asdict(verdict), "patch": patch}
        (folder / REPORT).write_text(json.dumps(report, indent=1), encoding="utf-8")
        self.trial_paths.reward_json_path.write_text(json.dumps(rewards), encoding="utf-8")
        self.trial_paths.test_stdout_path.write_text(verdict.log, encoding="utf-8", errors="replace")
