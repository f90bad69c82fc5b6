"""The published agents of the presets in sandboxes without a network, with a scripted engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hone.outcomes import Outcome
from hone.policy.gateway import SessionLimits
from hone.tasks.curriculum import generate
from hone.tasks.settings import TasksSettings
from hone.train.samples import tree_samples
from hone.types import Task, Trajectory
from tests.agents.blackbox.exactness import assert_exact
from tests.agents.blackbox.world import ScriptedEngine, call, open_world, published, script
from tests.grading.example import make_task

pytestmark = [pytest.mark.sandbox, pytest.mark.blackbox, pytest.mark.full]

FILE = "/testbed/stats.py"
OLD, NEW = "return a - b", "return a + b"
DONE = "It is fixed: `add` adds."
PATCH = f"""apply_patch <<'END'
*** Begin Patch
*** Update File: stats.py
@@
-    {OLD}
+    {NEW}
*** End Patch
END
"""
BLOCK = f"""It subtracts.

stats.py
```python
<<<<<<< SEARCH
    {OLD}
=======
    {NEW}
>>>>>>> REPLACE
```
"""
QWEN_CODE = (
    "Let me look. " + call("read_file", file_path=FILE),
    call("edit", file_path=FILE, old_string=OLD, new_string=NEW)
    + "\n"
    + call("run_shell_command", command="git diff", is_background=False),
    DONE,
)
REPLIES = {
    "aider": ("I need to see stats.py first.", BLOCK),
    "claude-code": (
        call("Read", file_path=FILE),
        call("Edit", file_path=FILE, old_string=OLD, new_string=NEW, replace_all=False),
        call("Bash", command="git diff", description="Show the change"),
        DONE,
    ),
    "codex": (
        "Let me look. " + call("exec_command", cmd="cat stats.py"),
        call("exec_command", cmd=PATCH) + "\n" + call("exec_command", cmd="git diff"),
        DONE,
    ),
    "gemini-cli": (
        "Let me look. " + call("read_file", file_path=FILE),
        call("replace", file_path=FILE, instruction="Add.", old_string=OLD, new_string=NEW)
        + "\n"
        + call("run_shell_command", command="git status", description="Show the change"),
        DONE,
    ),
    "opencode": (
        "Let me look. " + call("read", filePath=FILE),
        call("edit", filePath=FILE, oldString=OLD, newString=NEW)
        + "\n"
        + call("bash", command="git diff", description="Show the change"),
        DONE,
    ),
    "openhands": (
        "Let me look. " + call("terminal", command="cat stats.py", security_risk="LOW"),
        call("file_editor", command="str_replace", path=FILE, old_str=OLD, new_str=NEW, security_risk="LOW")
        + "\n"
        + call("terminal", command="git diff", security_risk="LOW"),
        call("finish", message=DONE),
    ),
    "qwen-code-acp": QWEN_CODE,
    "qwen-code-small": QWEN_CODE,
}
SHELLS = {  # the tool that runs a command, with its other arguments
    "claude-code": ("Bash", "command", {"description": "Fix it"}),
    "codex": ("exec_command", "cmd", {}),
    "gemini-cli": ("run_shell_command", "command", {"description": "Fix it"}),
    "opencode": ("bash", "command", {"description": "Fix it"}),
    "openhands": ("terminal", "command", {"security_risk": "LOW"}),
    "qwen-code-acp": ("run_shell_command", "command", {"is_background": False}),
    "qwen-code-small": ("run_shell_command", "command", {"is_background": False}),
}


def rollout(root: Path, name: str, engine: ScriptedEngine, task: Task, calls: int = 0) -> Trajectory:
    async def scenario() -> Trajectory:
        limits = SessionLimits(calls=calls)
        async with open_world(root, published(name), engine, limits=limits) as world:
            return await world.attempt(task)

    return asyncio.run(scenario())


@pytest.mark.parametrize("name", REPLIES)
def test_preset_fixes_the_bug_with_exact_tokens(tmp_path: Path, name: str) -> None:
    engine = ScriptedEngine(script(*REPLIES[name]))
    trajectory = rollout(tmp_path, name, engine, make_task())
    assert trajectory.outcome is Outcome.RESOLVED, (trajectory.error, trajectory.notes)
    assert trajectory.patch.count("diff --git") == 1  # no file of its own
    assert_exact(trajectory, engine)
    assert len(trajectory.turns) == len(REPLIES[name])
    assert trajectory.notes["program"]["exchanges"] == {"main": len(REPLIES[name])}
    assert trajectory.notes["program"]["retries"] == 0
    # aider adds the files that a reply names before the replies so far
    assert dict(trajectory.forks) == ({"rewritten": 1} if name == "aider" else {})
    samples = tree_samples(trajectory.tree, rollout_id="r0", group_id="g", advantage=1.0)
    assert sum(float(sample.weight.sum()) for sample in samples) == trajectory.tree.sampled_tokens


@pytest.mark.parametrize("name", SHELLS)
def test_preset_solves_a_curriculum_task(tmp_path: Path, name: str) -> None:
    task = generate(TasksSettings(train=4, test=0, unseen=0)).train[0]
    tool, argument, others = SHELLS[name]
    fix = {argument: f"git apply <<'END'\n{task.checks.gold_patch.rstrip()}\nEND", **others}
    engine = ScriptedEngine(script("I apply the fix. " + call(tool, **fix), DONE))
    trajectory = rollout(tmp_path, name, engine, task)
    assert trajectory.outcome is Outcome.RESOLVED, (trajectory.error, trajectory.notes)
    assert_exact(trajectory, engine)
    assert trajectory.forks == {}


@pytest.mark.parametrize("name", SHELLS)
def test_preset_ends_at_the_turn_limit(tmp_path: Path, name: str) -> None:
    tool, argument, others = SHELLS[name]
    engine = ScriptedEngine(script(call(tool, **{argument: "git status", **others})))
    trajectory = rollout(tmp_path, name, engine, make_task(), calls=2)
    assert trajectory.outcome is Outcome.TURN_LIMIT, (trajectory.error, trajectory.notes)
    assert_exact(trajectory, engine)
    report = trajectory.notes["program"]
    if "acp" not in report:  # such an agent may refuse the prompt before its turn is cancelled
        assert report["exit_code"] not in (None, 137)  # it ended by itself


def test_gemini_cli_ends_with_a_format_limit_after_an_empty_reply(tmp_path: Path) -> None:
    engine = ScriptedEngine(script(""))
    trajectory = rollout(tmp_path, "gemini-cli", engine, make_task())
    assert trajectory.outcome is Outcome.FORMAT_LIMIT, (trajectory.error, trajectory.notes)
    assert_exact(trajectory, engine)
