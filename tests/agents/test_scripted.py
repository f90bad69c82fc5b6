"""Scripted agents: the oracle, the noop and the demonstrator."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from hone.agents import AgentRun, demonstrator, make_agent
from hone.agents.scripted import choose_fixes
from hone.agents.settings import DemonstratorSettings
from hone.environment import base_mounts, extract_patch
from hone.grading import Grader, GradingSettings
from hone.sandbox import SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings
from hone.tasks.workspace import prepare
from hone.types import Task, Verdict
from tests.agents.settings import agent_settings
from tests.grading.example import FIXED, make_task, patch_of

FIXES = [
    {"command": "sed -i '2s/ - / + /' stats.py", "path": "stats.py", "right": True},
    {"command": "sed -i '2s/ - / * /' stats.py", "path": "stats.py", "right": False},
    {"command": "sed -i '2s/a - b/a/' stats.py", "path": "stats.py", "right": False},
    {"command": "sed -i '2s/a - b/b/' stats.py", "path": "stats.py", "right": False},
]
SUBMITTING = " && echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def _task(tmp_path: Path) -> tuple[Task, Path]:
    task = make_task()
    workspace = prepare(task, tmp_path / "workspaces")
    gold = patch_of(workspace, tmp_path, {"stats.py": FIXED})
    return replace(make_task(gold_patch=gold), metadata={"fixes": FIXES}), workspace


@pytest.mark.sandbox
def test_scripted_agents_resolve_or_not_as_scripted(
    tmp_path: Path,
) -> None:
    task, workspace = _task(tmp_path)

    async def scenario() -> None:
        async with make_provider(SandboxSettings()) as provider:
            grader = Grader(provider, GradingSettings(), cache=workspace.parent)

            async def rollout(kind: str, **settings: float) -> tuple[AgentRun, str, Verdict]:
                agent = make_agent(agent_settings({"kind": kind, "prompts": "tiny", **settings}))
                spec = SandboxSpec(layer=workspace, mounts=base_mounts(workspace))
                run = AgentRun(rollout_id="0-0")
                async with await provider.start(spec) as sandbox:
                    await agent.run(task, sandbox, None, run)  # type: ignore[arg-type]
                    patch = await extract_patch(sandbox, task)
                return run, patch, await grader.grade(task, patch)

            run, patch, verdict = await rollout("oracle")
            assert verdict.resolved
            assert "+    return a + b" in patch
            assert run.submitted
            run, patch, verdict = await rollout("noop")
            assert (run.submitted, patch, verdict.resolved) == (True, "", False)
            assert (await rollout("demonstrator", accuracy=1.0))[2].resolved
            run, patch, verdict = await rollout("demonstrator", accuracy=0.0, favourite=1.0)
            assert patch != ""
            assert not verdict.resolved
            fix = f"{FIXES[1]['command']}{SUBMITTING}"
            assert [turn.action for turn in run.turns] == ["cat -n stats.py", fix]
            assert [turn.reply.startswith("```bash\n") for turn in run.turns] == [True] * 2

    asyncio.run(scenario())


def test_demonstrator_draws_with_the_given_probabilities(tmp_path: Path) -> None:
    task = replace(make_task(), metadata={"fixes": FIXES})
    script = demonstrator(DemonstratorSettings(accuracy=0.4, favourite=0.6, seed=3))
    drawn = [list(script(task, str(i)))[1] for i in range(4000)]
    counts = Counter(command.partition(" && echo ")[0] for command in drawn)
    share = {fix["command"]: counts[str(fix["command"])] / 4000 for fix in FIXES}
    expected = [0.4, 0.6 * 0.6, 0.6 * 0.2, 0.6 * 0.2]
    assert list(share.values()) == pytest.approx(expected, abs=0.03)
    assert drawn == [list(script(task, str(i)))[1] for i in range(4000)]
    other = demonstrator(DemonstratorSettings(accuracy=0.4, favourite=0.6, seed=4))
    assert drawn != [list(other(task, str(i)))[1] for i in range(4000)]


def _edit(path: str, number: int, count: int = 2) -> list[dict[str, object]]:
    """Return candidates for an edit: one right command and `count` wrong ones."""
    return [{"command": f"edit {number}.{i}", "path": path, "right": i == 0} for i in range(count + 1)]


def test_demonstrator_reads_each_file_before_its_edits() -> None:
    fixes = [*_edit("a.py", 1), *_edit("a.py", 2), *_edit("b.py", 3)]
    task = replace(make_task(), metadata={"fixes": fixes, "search": ["price"]})
    commands = list(demonstrator(DemonstratorSettings(accuracy=1.0))(task, "0"))
    reads = ["grep -nw price *.py", "cat -n a.py", "edit 1.0", "edit 2.0", "cat -n b.py"]
    assert commands == [*reads, f"edit 3.0{SUBMITTING}"]


@pytest.mark.parametrize("edits", [1, 2, 3])
def test_accuracy_is_the_share_of_demonstrations_with_no_wrong_edit(edits: int) -> None:
    fixes = [fix for number in range(edits) for fix in _edit("a.py", number)]
    task = replace(make_task(), metadata={"fixes": fixes})
    settings = DemonstratorSettings(accuracy=0.4, favourite=0.75)
    chosen = [choose_fixes(task, str(i), settings) for i in range(4000)]
    assert sum(all(fix["right"] for fix in fixes) for fixes in chosen) / 4000 == pytest.approx(0.4, abs=0.03)
    wrong = [fix["command"][-1] for fixes in chosen for fix in fixes if not fix["right"]]
    assert wrong.count("1") / len(wrong) == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize("fixes", [None, [], FIXES[:1], FIXES[1:2], [*FIXES, FIXES[0]], FIXES[::-1]])
def test_demonstrator_needs_right_and_wrong_fixes(fixes: list[object] | None) -> None:
    task = replace(make_task(), metadata={"fixes": fixes})
    with pytest.raises(ValueError, match="lists no right or no wrong fix"):
        demonstrator(DemonstratorSettings(accuracy=0.5, favourite=0.5, seed=0))(task, "0")
