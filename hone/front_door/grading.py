"""`hone.grade`"""

from __future__ import annotations

from hone.front_door.arguments import Overrides, resolved
from hone.front_door.blocking import block_on
from hone.grading import Grader
from hone.launch.defaults import REPOSITORY_LIMITS
from hone.sandbox import make_provider
from hone.types import Task, Verdict
from hone.utils.files import default_cache_dir


def grade(task: Task, patch: str, *, settings: Overrides | None = None) -> Verdict:
    """Grade a patch in a fresh sandbox without network, as `hone grade` does; return the verdict.

    A patch that does not apply, breaks the tests or tampers with them has a verdict that says so.

    Args:
        task: whose hidden tests decide.
        patch: a unified diff against the task's commit, as `git diff` prints it.
        settings: setting -> value, such as {"sandbox.provider": "docker"}.

    Raises:
        GraderError: no verdict, and the patch is not the cause.
        ProviderUnavailable: this machine cannot isolate sandboxes (`hone doctor` says why).
        ConfigError: `settings` holds an unknown name or an invalid value.

    Example:
        verdict = hone.grade(task, patch)
        print(verdict.resolved, verdict.tests)
    """

    async def work() -> Verdict:
        run = resolved(None, settings, base=REPOSITORY_LIMITS)
        async with make_provider(run.sandbox) as provider:
            cache = default_cache_dir() / "workspaces"
            grading = run.grading.of_evaluation()
            return await Grader(provider, grading, cache=cache, limits=run.sandbox.limits()).grade(
                task, patch
            )

    return block_on(work())
