"""The black-box agent: turns, outcomes, limits and isolation of a small command-line program."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hone.agents.blackbox import agent as agent_module
from hone.agents.blackbox import load_program
from hone.agents.scaffold import ScaffoldError
from hone.agents.settings import BlackboxAgentSettings
from hone.launch.runtime import open_agent
from hone.outcomes import Outcome
from hone.policy.gateway import SessionLimits
from hone.sandbox import Sandbox, SandboxLost, SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings
from hone.types import Trajectory, Turn
from tests.agents.blackbox.world import LIMITS, ScriptedEngine, World, call, open_world, script
from tests.grading.example import FIXED, make_task

pytestmark = pytest.mark.sandbox

CLIENT = Path(__file__).parent / "client.py"
TOML = """
name = "client"
wire = "openai"
[install]
kind = "directory"
source = "tools"
[run]
command = {command}
prompt = "{{{{ problem }}}}"
start_timeout_s = {start_timeout_s}
env = {{ URL = "{{{{ base_url }}}}", KEY = "{{{{ key }}}}", MODEL = "{{{{ model }}}}" }}
[[exits]]
ending = "turn_limit"
code = 3
[[exits]]
ending = "submitted"
code = 0
{more}
"""
LOOK = call("bash", command="cat stats.py")
FIX = call("bash", command="sed -i 's/a - b/a + b/' stats.py")
GOOD = script(f"Let me look. {LOOK}", FIX, "Done.")
WAITS = '["bash", "-c", "echo waiting for a terminal; sleep 1000"]'
TIME_LIMIT_S = 60.0  # of a client that hangs after its first reply


@asynccontextmanager
async def client(
    root: Path,
    engine: ScriptedEngine,
    behaviour: str = "works",
    *,
    command: str = '["python3", "{{ layer }}/app/client.py", "BEHAVIOUR", "{{ prompt }}"]',
    start_timeout_s: float = 60.0,
    more: str = "",
    **options: Any,
) -> AsyncGenerator[World]:
    (root / "tools").mkdir()
    shutil.copy(CLIENT, root / "tools")
    path = root / "client.toml"
    command = command.replace("BEHAVIOUR", behaviour)
    path.write_text(TOML.format(command=command, start_timeout_s=start_timeout_s, more=more))
    async with open_world(root, load_program(str(path)), engine, layers=root / "layers", **options) as world:
        yield world


def rollout(root: Path, engine: ScriptedEngine, *behaviour: str, **options: Any) -> Trajectory:
    async def scenario() -> Trajectory:
        async with client(root, engine, *behaviour, **options) as world:
            trajectory = await world.attempt(make_task())
            assert world.gateway.sessions == []
            return trajectory

    return asyncio.run(scenario())


def test_program_is_recorded_turn_by_turn_and_graded(tmp_path: Path) -> None:
    seen: list[str] = []

    async def look(sandbox: Sandbox, turn: Turn) -> None:
        result = await sandbox.exec("cat stats.py")
        seen.append("fixed" if result.text == FIXED else "broken")

    async def scenario() -> Trajectory:
        async with client(tmp_path, ScriptedEngine(GOOD)) as world:
            world.watched.observers.append(look)
            return await world.attempt(make_task())

    trajectory = asyncio.run(scenario())
    assert trajectory.outcome is Outcome.RESOLVED
    assert trajectory.patch.count("diff --git") == 1
    assert [(turn.action, turn.reply) for turn in trajectory.turns] == [
        ("bash: cat stats.py", "Let me look."),
        ("bash: sed -i 's/a - b/a + b/' stats.py", ""),
        (None, "Done."),
    ]
    assert "return a - b" in trajectory.turns[0].observation
    assert [turn.observation for turn in trajectory.turns[1:]] == ["", ""]
    assert seen == ["broken", "fixed", "fixed"]  # each as its turn left the sandbox
    roles = [message["role"] for message in trajectory.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    sampled = [i for i, node in enumerate(trajectory.tree.nodes) if node.sampled]
    assert [turn.node for turn in trajectory.turns] == sampled
    assert trajectory.notes["program"]["exit_code"] == 0
    assert trajectory.notes["program"]["exchanges"] == {"main": 3}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"command": '["true"]'}, "exit code 0 before its first reply of the model"),
        ({"command": '["bash", "-c", "echo out of luck >&2; exit 9"]'}, "exit code 9 .*: out of luck"),
        ({"command": '["{{ layer }}/app/missing"]'}, "cannot be started in this image: .*missing"),
        (
            {"command": r"""["bash", "-c", "printf 'version \\140GLIBC_2.99\\047 not found' >&2; exit 1"]"""},
            "needs GLIBC_2.99, but this image's C library is older",
        ),
        ({"command": WAITS, "start_timeout_s": 1.0}, "did not ask the model within 1 s: "),
    ],
    ids=["exits", "fails", "missing", "C library", "hangs"],
)
def test_program_that_never_asks_is_an_infrastructure_fault(
    tmp_path: Path, options: dict[str, Any], why: str
) -> None:
    trajectory = rollout(tmp_path, ScriptedEngine(GOOD), **options)
    assert (trajectory.outcome, trajectory.reward) == (Outcome.SANDBOX_ERROR, None)
    assert re.search(why, trajectory.error or ""), trajectory.error


@pytest.mark.parametrize(
    ("behaviour", "reply"),
    [
        ("crashes", LOOK),
        ("works", call("bash", command="kill -9 -1")),
        ("works", call("bash", command="kill -9 $PPID")),
    ],
    ids=["own defect", "kill all", "kill program"],
)
def test_crash_after_a_reply_counts_against_the_policy(tmp_path: Path, behaviour: str, reply: str) -> None:
    trajectory = rollout(tmp_path, ScriptedEngine(script(reply)), behaviour)
    assert (trajectory.outcome, trajectory.reward) == (Outcome.BROKE_SANDBOX, -1.0)
    assert len(trajectory.turns) == 1


@pytest.mark.parametrize(
    ("behaviour", "limits", "outcome"),
    [
        ("works", SessionLimits(calls=2), Outcome.TURN_LIMIT),
        ("works", SessionLimits(sampled_tokens=1), Outcome.TOKEN_LIMIT),
        ("insists", SessionLimits(calls=2), Outcome.TURN_LIMIT),
        pytest.param(
            "hangs", SessionLimits(seconds=TIME_LIMIT_S), Outcome.TIME_LIMIT, marks=pytest.mark.full
        ),
    ],
)
def test_limit_ends_a_rollout_and_its_patch_is_graded(
    tmp_path: Path,
    behaviour: str,
    limits: SessionLimits,
    outcome: Outcome,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_module, "GRACE_S", 0.2)  # this client ignores the end of its session
    trajectory = rollout(tmp_path, ScriptedEngine(script(FIX, LOOK)), behaviour, limits=limits)
    assert trajectory.outcome is outcome
    assert len(trajectory.turns) == (2 if limits.calls else 1)
    if behaviour != "hangs":
        assert trajectory.verdict is not None
        assert trajectory.verdict.resolved


@pytest.mark.full
def test_hanging_program_ends_at_the_rollout_time_limit(tmp_path: Path) -> None:
    trajectory = rollout(tmp_path, ScriptedEngine(GOOD), "hangs", time_limit_s=TIME_LIMIT_S)
    assert trajectory.outcome is Outcome.TIME_LIMIT
    assert len(trajectory.turns) == 1


def test_exit_rule_maps_to_a_limit(tmp_path: Path) -> None:
    command = '["bash", "-c", "python3 {{ layer }}/app/client.py works x; exit 3"]'
    trajectory = rollout(tmp_path, ScriptedEngine(GOOD), command=command)
    assert trajectory.outcome is Outcome.TURN_LIMIT
    assert trajectory.verdict is not None
    assert trajectory.verdict.resolved


def test_engine_failure_ends_the_rollout_as_infrastructure(tmp_path: Path) -> None:
    trajectory = rollout(tmp_path, ScriptedEngine(GOOD, fails_at=1), "insists")
    assert (trajectory.outcome, trajectory.reward) == (Outcome.ENGINE_ERROR, None)
    assert trajectory.error == "the scripted engine is down"
    assert len(trajectory.turns) == 1


@pytest.mark.parametrize(
    ("behaviour", "outcome"), [("works", Outcome.CONTEXT_LIMIT), ("shortens", Outcome.NO_PATCH)]
)
def test_full_context_ends_a_program_that_does_not_compact(
    tmp_path: Path, behaviour: str, outcome: Outcome
) -> None:
    engine = ScriptedEngine(
        lambda i, prompt: "Done." if "go on" in prompt else call("bash", command="seq 1000"),
        context_tokens=2000,
    )
    assert rollout(tmp_path, engine, behaviour).outcome is outcome


@pytest.mark.full
def test_floods_are_capped_and_daemons_do_not_delay_the_end(tmp_path: Path) -> None:
    for behaviour in ("floods", "leaves-daemons"):
        (tmp_path / behaviour).mkdir()
        trajectory = rollout(tmp_path / behaviour, ScriptedEngine(script(FIX, "Done.")), behaviour)
        assert trajectory.outcome is Outcome.RESOLVED
        output = trajectory.notes["program"]["stdout"]
        assert len(output["head"]) + len(output["tail"]) <= 2 * 4096
        if behaviour == "floods":
            assert output["bytes"] == 2 * 20 << 20  # after each of two replies


def test_exception_of_an_observer_ends_the_rollout(tmp_path: Path) -> None:
    async def fail(sandbox: Sandbox, turn: Turn) -> None:
        raise RuntimeError("the observer cannot go on")

    async def scenario() -> None:
        async with client(tmp_path, ScriptedEngine(GOOD), "insists") as world:
            world.watched.observers.append(fail)
            ended = await world.attempt(make_task())
            assert (ended.outcome, ended.error) == (
                Outcome.CRASHED,
                "RuntimeError: the observer cannot go on",
            )

    asyncio.run(scenario())


def test_cancelled_rollout_leaves_no_session_and_no_sandbox(tmp_path: Path) -> None:
    async def scenario() -> None:
        begun = asyncio.Event()

        def answer(i: int, prompt: str) -> str:
            begun.set()
            return LOOK

        async with client(tmp_path, ScriptedEngine(answer), "hangs") as world:
            task = asyncio.create_task(world.attempt(make_task()))
            await begun.wait()
            assert len(world.gateway.sessions) == 1
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert world.gateway.sessions == []
            with pytest.raises(SandboxLost):
                await world.watched.sandboxes[0].exec("true")

    asyncio.run(scenario())


def test_program_sees_neither_the_host_nor_other_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a secret of the host")
    peek = call("bash", command="env; ls -a ~ /tmp; curl -s -m 2 http://1.1.1.1 || echo no way out")
    spy = call(
        "bash",
        command="python3 -c 'import os, urllib.request as r; "
        'r.urlopen(os.environ["URL"].replace(os.environ["KEY"], "other") + "/models")\'',
    )
    trajectory = rollout(tmp_path, ScriptedEngine(script(peek, spy, "Done.")))
    seen = trajectory.turns[0].observation
    assert "secret" not in seen
    assert str(Path.home()) not in seen.replace("HOME=/home/agent", "")
    assert {line.split("=")[0] for line in seen.splitlines() if re.match(r"\w+=", line)} <= {
        *("PATH", "HOME", "LANG", "PWD", "SHLVL", "_", "URL", "KEY", "MODEL", "LC_CTYPE")
    }
    assert seen.rstrip().endswith("no way out")
    assert "401" in trajectory.turns[1].observation


def test_files_of_the_program_are_not_in_the_patch(tmp_path: Path) -> None:
    more = '[[files]]\npath = "{{ home }}/settings.json"\ntext = "{{ model | tojson }}"'
    show = call("bash", command="cat /tmp/.agent/settings.json /tmp/.agent/prompt.txt")
    trajectory = rollout(tmp_path, ScriptedEngine(script(show, "Done.")), more=more)
    assert trajectory.turns[0].observation == '"policy"add(1, 2) gives -1, not 3.'
    assert (trajectory.outcome, trajectory.patch) == (Outcome.NO_PATCH, "")


def test_program_file_in_the_workdir_is_refused(tmp_path: Path) -> None:
    more = '[[files]]\npath = "{{ workdir }}/../testbed/notes"\ntext = ""'
    with pytest.raises(ScaffoldError, match="would become part of every patch"):
        rollout(tmp_path, ScriptedEngine(GOOD), more=more)


def test_sandbox_with_too_little_memory_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with client(tmp_path, ScriptedEngine(GOOD)) as world:
            agent = world.watched.agent
            small = replace(world.context.spec.limits, memory_mib=64)
            run = agent.program.run.model_copy(update={"memory_mib": 100})
            agent.program = agent.program.model_copy(update={"run": run})
            with pytest.raises(ScaffoldError, match=r"raise sandbox\.memory_mib"):
                async with agent.open(replace(world.context.spec, limits=small)):
                    pass

    asyncio.run(scenario())


def test_problem_longer_than_an_argument_is_an_error(tmp_path: Path) -> None:
    async def scenario() -> Trajectory:
        async with client(tmp_path, ScriptedEngine(GOOD)) as world:
            return await world.attempt(replace(make_task(), problem="x" * 140_000))

    trajectory = asyncio.run(scenario())
    assert trajectory.outcome is Outcome.SANDBOX_ERROR
    assert "let it read {{ prompt_file }} instead" in (trajectory.error or "")


@pytest.mark.full
def test_settings_of_a_recipe_reach_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    async def scenario() -> None:
        async with client(tmp_path, ScriptedEngine(script(LOOK))) as world:
            settings = BlackboxAgentSettings(
                kind="blackbox", program=str(tmp_path / "client.toml"), turn_limit=2
            )
            bare = SandboxSpec(limits=LIMITS)
            async with open_agent(settings, bare, cache=tmp_path / "agents") as (agent, spec):
                assert spec.tunnel is not None
                assert spec.tunnel.is_socket()
                assert [mount.target for mount in spec.mounts] == ["/srv/hone/agents/client"]
                world.context = replace(world.context, spec=spec, agent=agent)
                trajectory = await world.attempt(make_task())
            assert trajectory.outcome is Outcome.TURN_LIMIT
            assert not spec.tunnel.parent.exists()

    asyncio.run(scenario())


@pytest.fixture
def short() -> Iterator[str]:
    """Yield a directory with a path short enough for a socket."""
    with tempfile.TemporaryDirectory() as folder:
        yield folder


def test_next_provider_removes_the_socket_of_a_killed_process(tmp_path: Path, short: str) -> None:
    (tmp_path / "tools").mkdir()
    more = {"command": '["true"]', "start_timeout_s": 1, "more": ""}
    (tmp_path / "client.toml").write_text(TOML.format(**more))
    code = (
        "import asyncio, os, sys\nfrom hone.agents.settings import BlackboxAgentSettings\n"
        "from hone.agents.blackbox import BlackboxAgent\nfrom hone.sandbox import SandboxSpec\n"
        "agent = BlackboxAgent.of(BlackboxAgentSettings(kind='blackbox', program=sys.argv[1]))\n"
        "async def main():\n"
        "    async with agent.open(SandboxSpec()):\n        os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())"
    )
    places = {"XDG_RUNTIME_DIR": short, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    killed = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "client.toml")], env={**os.environ, **places}, check=False
    )
    assert killed.returncode == -9
    (left,) = (Path(short) / "hone").iterdir()
    assert (left / "gateway.sock").is_socket()

    async def scenario() -> None:
        async with make_provider(SandboxSettings(state_dir=Path(short) / "hone")):
            assert not left.exists()

    asyncio.run(scenario())


def test_unwritable_file_is_an_infrastructure_fault(tmp_path: Path) -> None:
    more = '[[files]]\npath = "/proc/nothing"\ntext = ""'
    trajectory = rollout(tmp_path, ScriptedEngine(GOOD), more=more)
    assert trajectory.outcome is Outcome.SANDBOX_ERROR
    assert "/proc/nothing cannot be written in this image" in (trajectory.error or "")
