"""The bash agent, and the package over Hone, equal the mini-swe-agent package message by message."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hone.agents import SUBMIT, AgentRun, BashAgent, Scaffold, ScaffoldError, load_scaffold
from hone.agents.scaffold import Mode
from hone.integrations.mini_swe_agent.agent import MiniSweAgent
from hone.outcomes import Outcome
from hone.sandbox import Sandbox, SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings
from tests.grading.example import make_task
from tests.integrations.package import (
    OUTCOMES,
    SHIPPED,
    GivenReply,
    Replies,
    call,
    clean,
    ending,
    run_package,
)

pytestmark = pytest.mark.sandbox
relaxed = settings(
    max_examples=settings.default.max_examples // 3,  # each runs three sessions
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),  # shrinking takes too long
)

TOOLS, TEXT = ("mini", "swebench"), ("default", "mini_textbased", "swebench_backticks", "swebench_xml")
TRIED = [
    "echo one",
    "echo one; echo two >&2; exit 3",
    "false",
    "",
    "seq 1 4000",
    "printf 'a\\r\\nb\\rc'",
    "printf '\\377\\303'",
    "no-such-command-anywhere 2>/dev/null",
    f"echo {SUBMIT}; false",
    f"echo {SUBMIT} and more",
    f"echo first; echo {SUBMIT}",
    "echo $PAGER",
    f"echo; echo {SUBMIT}; echo patch",  # submits
]
COMMANDS = st.sampled_from(TRIED)
WORDS = st.sampled_from(["", "I look first.\n\n", "THOUGHT: `x` <b>\n", "é漢\n"])
ARGUMENTS = st.sampled_from(
    ['{"command": ', "{}", "[]", '"ls"', "null", "3", '{"cmd": "ls"}', "", "not json"]
)
CALLS = st.one_of(
    COMMANDS.map(call),
    COMMANDS.map(call),
    COMMANDS.map(call),
    COMMANDS.map(lambda command: call(command, "python")),
    st.tuples(st.sampled_from(["bash", "edit"]), ARGUMENTS),
    st.sampled_from(["nul\0", "half \ud800 pair"]).map(call),
)
IN_TOOLS = st.builds(
    GivenReply,
    content=WORDS,
    calls=st.lists(CALLS, max_size=3).map(tuple),
    truncated=st.sampled_from([False, False, False, True]),
    reasoning=st.sampled_from([None, None, "I think."]),
)


def written(open_: str, close: str) -> st.SearchStrategy[GivenReply]:
    block = COMMANDS.filter(bool).map(lambda command: f"{open_}{command}{close}")
    after = st.sampled_from(["", "\n", " I look first.", "\n\né漢\n```python\nx\n```\n"])
    texts = st.tuples(WORDS, st.lists(block, max_size=2).map("\n".join), after).map("".join)
    strange = st.sampled_from(
        [f"{open_}{close}", f"{open_}ls", "```bash\nls\n```", "<command>ls</command>", "```\nls\n```"]
    )
    return st.builds(GivenReply, content=texts | strange, truncated=st.sampled_from([False, False, True]))


FENCED = written("```mswea_bash_command\n", "\n```")
TAGGED = written("<mswea_bash_command>", "</mswea_bash_command>")


class Bench:
    """A sandbox, and a loop to use it in, for many scripted sessions."""

    def __init__(self, runner: asyncio.Runner, sandbox: Sandbox) -> None:
        self.runner, self.sandbox = runner, sandbox

    def run(self, agent: BashAgent | MiniSweAgent, chat: Replies) -> AgentRun:
        run = AgentRun(rollout_id="r")
        task = make_task(fail_to_pass=())
        object.__setattr__(task, "problem", "1 + 1 gives 3.")
        self.runner.run(agent.run(task, self.sandbox, chat, run))
        return run


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with asyncio.Runner() as runner:
        provider = make_provider(SandboxSettings())
        runner.run(provider.__aenter__())
        sandbox = runner.run(provider.start(SandboxSpec(workdir="/tmp/work")))
        yield Bench(runner, sandbox)
        runner.run(provider.__aexit__(None, None, None))


def compare(bench: Bench, name: str, replies: list[GivenReply], **limits: Any) -> AgentRun:
    """The package and both of Hone's agents, on the same replies; returns the bash agent's run."""
    config = SHIPPED[name]
    tools = name in TOOLS
    end = ending(config, tools=tools)
    done = run_package(config, replies, tools=tools, end=end, **limits)
    scaffold = scaffold_of(name, **limits)
    runs = []
    for agent in (BashAgent(scaffold), MiniSweAgent(scaffold)):
        chat = Replies(replies, tools=tools, end=end)
        run = bench.run(agent, chat)
        assert [clean(message) for message in run.messages] == done.messages
        assert [[clean(m) for m in messages] for messages in chat.requests] == done.requests
        assert (run.submitted, run.ending) == (done.status == "Submitted", OUTCOMES[done.status])
        assert len(run.turns) == done.calls
        runs.append(run)
    assert [facts(turn) for turn in runs[0].turns] == [facts(turn) for turn in runs[1].turns]
    return runs[0]


def scaffold_of(name: str, **limits: Any) -> Scaffold:
    from dataclasses import replace

    scaffold = load_scaffold(str(SHIPPED[name]), turn_limit=limits.get("step_limit"))
    changed = {"cwd": "/tmp"}
    if "max_consecutive_format_errors" in limits:
        changed["max_consecutive_format_errors"] = limits["max_consecutive_format_errors"]
    if "timeout" in limits:
        changed["timeout_s"] = limits["timeout"]
    return replace(scaffold, **changed)


def facts(turn: Any) -> tuple[Any, ...]:
    return turn.index, turn.reply, turn.action, turn.exit_code, turn.observation


@pytest.mark.parametrize("name", TOOLS)
@relaxed
@given(replies=st.lists(IN_TOOLS, max_size=5), step_limit=st.sampled_from([0, 3]))
def test_tool_call_sessions_equal_the_package(
    bench: Bench, name: str, replies: list[GivenReply], step_limit: int
) -> None:
    compare(bench, name, replies, step_limit=step_limit)


@pytest.mark.parametrize("name", TEXT)
@relaxed
@given(data=st.data(), step_limit=st.sampled_from([0, 3]), errors=st.sampled_from([0, 2, 3]))
def test_text_sessions_equal_the_package(
    bench: Bench, name: str, data: st.DataObject, step_limit: int, errors: int
) -> None:
    strategy = TAGGED if name == "swebench_xml" else FENCED
    replies = data.draw(st.lists(strategy, max_size=5))
    compare(bench, name, replies, step_limit=step_limit, max_consecutive_format_errors=errors)


def test_observations_equal_the_package(bench: Bench) -> None:
    run = compare(bench, "mini", [GivenReply(calls=tuple(call(command) for command in TRIED[:-1]))])
    assert len([message for message in run.messages if message["role"] == "tool"]) == len(TRIED) - 1
    run = compare(
        bench, "mini_textbased", [GivenReply(content=block(command)) for command in TRIED if command]
    )
    assert run.turns[-1].action == TRIED[-1]


def block(command: str) -> str:
    return f"```mswea_bash_command\n{command}\n```"


def test_mixed_session_equals_the_package(bench: Bench) -> None:
    replies = [
        GivenReply(content="I look.", calls=(call("echo a"), call("exit 2"), call("echo c"))),
        GivenReply(content="no call"),
        GivenReply(calls=(("bash", '{"command"'),), truncated=True),
        GivenReply(calls=(call("ls", "edit"),)),
    ]
    run = compare(bench, "swebench", replies[:3])
    assert [turn.exit_code for turn in run.turns] == [2, None, None, 0]
    assert run.turns[0].action == "echo a\nexit 2\necho c"
    roles = [message["role"] for message in run.messages]
    # the package omits invalid replies and adds their errors
    assert roles == ["system", "user", "assistant", "tool", "tool", "tool", "user", "user", "assistant"]
    assert [message.get("tool_call_id") for message in run.messages[3:6]] == [f"call_0_{i}" for i in range(3)]
    run = compare(bench, "swebench", replies)
    assert run.ending is Outcome.FORMAT_LIMIT


def test_commands_after_a_submission_are_not_run(bench: Bench) -> None:
    calls = (call("echo a"), call(f"echo {SUBMIT}"), call("sleep 600"))
    run = compare(bench, "mini", [GivenReply(calls=calls)])
    assert run.submitted
    assert run.turns[0].action == f"echo a\necho {SUBMIT}"
    assert run.messages[-1]["role"] == "assistant"


@pytest.mark.parametrize("command", [3, None, {"a": 1}, ["ls"]])
def test_command_that_is_not_text_is_an_error(bench: Bench, command: Any) -> None:
    config = SHIPPED["mini"]
    for kind in (BashAgent, MiniSweAgent):
        replies = Replies([GivenReply(calls=(call(command),))], tools=True, end=ending(config, tools=True))
        run = bench.run(kind(scaffold_of("mini")), replies)
        assert run.turns[0].exit_code == -1
        assert f"expected str, bytes or os.PathLike object, not {type(command).__name__}" in (
            run.turns[0].observation
        )
        assert run.submitted


@pytest.mark.parametrize("name", ["mini", "mini_textbased"])
def test_timeout_message_equals_the_package(bench: Bench, name: str) -> None:
    command = "sleep 600"
    slow = (
        GivenReply(content=f"```mswea_bash_command\n{command}\n```")
        if name in TEXT
        else GivenReply(calls=(call(command),))
    )
    run = compare(bench, name, [slow], timeout=1.0)
    assert "timed out after 1.0 seconds" in run.messages[3]["content"]


def test_command_cut_by_its_own_fence_is_not_run(
    bench: Bench,
) -> None:
    fence = "```mswea_bash_command"
    nested = GivenReply(content=f"{fence}\ncat <<E\n```\ninner\n```\nE\n```")
    config = SHIPPED["mini_textbased"]
    done = run_package(config, [nested], tools=False, end=ending(config, tools=False))
    assert "<returncode>0</returncode>" in done.messages[3]["content"]  # the package runs the first half
    run = bench.run(
        BashAgent(scaffold_of("mini_textbased")),
        Replies([nested], tools=False, end=ending(config, tools=False)),
    )
    assert run.turns[0].action is None
    compare(
        bench, "mini_textbased", [GivenReply(content=f"{fence}\necho x\n```\nlike this\n```python\nx\n```")]
    )


def test_mode_of_every_file_that_the_package_ships() -> None:
    modes = {name: load_scaffold(str(SHIPPED[name])).mode for name in SHIPPED if name != "swebench_modal"}
    assert {name for name, mode in modes.items() if mode is Mode.TEXT} == set(TEXT)
    assert {name for name, mode in modes.items() if mode is Mode.TOOLS} == {*TOOLS, "programbench"}
    with pytest.raises(ScaffoldError, match=r"unknown key"):
        load_scaffold(str(SHIPPED["swebench_modal"]))  # a supplement to others, not a whole file


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("n_model_calls", "1"),
        ("model_cost", "0.0"),
        ("step_limit", "7"),
        ("cost_limit", "3.0"),
        ("task", "1 + 1 gives 3."),
        ("timeout", "30"),
        ("cwd", "/tmp"),
        ("max_consecutive_format_errors", "3"),
        ("wall_time_limit_seconds", "0"),
        ("env", "{'A': 'b'}"),
    ],
)
@pytest.mark.parametrize("kind", [BashAgent, MiniSweAgent])
def test_templates_have_the_variables_of_the_package(
    bench: Bench, tmp_path: Path, kind: Any, key: str, text: str
) -> None:
    assert observe(bench, tmp_path, kind, key) == text


@pytest.mark.parametrize("kind", [BashAgent, MiniSweAgent])
def test_templates_may_name_elapsed_seconds(bench: Bench, tmp_path: Path, kind: Any) -> None:
    began = time.monotonic()
    given = observe(bench, tmp_path, kind, "elapsed_seconds")
    assert given in [str(seconds) for seconds in range(int(time.monotonic() - began) + 1)]


def observe(bench: Bench, tmp_path: Path, kind: Any, key: str) -> str:
    """Return an observation whose template is the variable `key` alone."""
    path = tmp_path / "prompts.yaml"
    path.write_text(
        "agent: {system_template: s, instance_template: i, step_limit: 7}\n"
        "environment: {cwd: /tmp, env: {A: b}}\n"
        f"model: {{observation_template: '{{{{ {key} }}}}', format_error_template: '{{{{ error }}}}'}}\n"
    )
    chat = Replies(
        [GivenReply(calls=(call("ls"),))], tools=True, end=GivenReply(calls=(call(f"echo {SUBMIT}"),))
    )
    return bench.run(kind(load_scaffold(str(path))), chat).messages[3]["content"]
