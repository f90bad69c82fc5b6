"""Message for message what the mini-swe-agent package does: the bash agent, and the package over Hone."""

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
from tests.integrations.package import OUTCOMES, SHIPPED, Replies, Said, call, clean, ending, run_package

pytestmark = pytest.mark.sandbox
relaxed = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),  # a session takes too long to be shrunk
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
    Said,
    content=WORDS,
    calls=st.lists(CALLS, max_size=3).map(tuple),
    truncated=st.sampled_from([False, False, False, True]),
    reasoning=st.sampled_from([None, None, "I think."]),
)


def written(open_: str, close: str) -> st.SearchStrategy[Said]:
    block = COMMANDS.filter(bool).map(lambda command: f"{open_}{command}{close}")
    after = st.sampled_from(["", "\n", " I look first.", "\n\né漢\n```python\nx\n```\n"])
    texts = st.tuples(WORDS, st.lists(block, max_size=2).map("\n".join), after).map("".join)
    strange = st.sampled_from(
        [f"{open_}{close}", f"{open_}ls", "```bash\nls\n```", "<command>ls</command>", "```\nls\n```"]
    )
    return st.builds(Said, content=texts | strange, truncated=st.sampled_from([False, False, True]))


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


def compare(bench: Bench, name: str, replies: list[Said], **limits: Any) -> AgentRun:
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
        assert [[clean(m) for m in messages] for messages in chat.asked] == done.asked
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
def test_sessions_of_tool_calls_go_as_the_package_has_them(
    bench: Bench, name: str, replies: list[Said], step_limit: int
) -> None:
    compare(bench, name, replies, step_limit=step_limit)


@pytest.mark.parametrize("name", TEXT)
@relaxed
@given(data=st.data(), step_limit=st.sampled_from([0, 3]), errors=st.sampled_from([0, 2, 3]))
def test_sessions_of_text_go_as_the_package_has_them(
    bench: Bench, name: str, data: st.DataObject, step_limit: int, errors: int
) -> None:
    strategy = TAGGED if name == "swebench_xml" else FENCED
    replies = data.draw(st.lists(strategy, max_size=5))
    compare(bench, name, replies, step_limit=step_limit, max_consecutive_format_errors=errors)


def test_what_each_command_prints_reads_the_same(bench: Bench) -> None:
    run = compare(bench, "mini", [Said(calls=tuple(call(command) for command in TRIED[:-1]))])
    assert len([message for message in run.messages if message["role"] == "tool"]) == len(TRIED) - 1
    run = compare(bench, "mini_textbased", [Said(content=block(command)) for command in TRIED if command])
    assert run.turns[-1].action == TRIED[-1]


def block(command: str) -> str:
    return f"```mswea_bash_command\n{command}\n```"


def test_a_session_with_everything_in_it(bench: Bench) -> None:
    replies = [
        Said(content="I look.", calls=(call("echo a"), call("exit 2"), call("echo c"))),
        Said(content="no call"),
        Said(calls=(("bash", '{"command"'),), truncated=True),
        Said(calls=(call("ls", "edit"),)),
    ]
    run = compare(bench, "swebench", replies[:3])
    assert [turn.exit_code for turn in run.turns] == [2, None, None, 0]
    assert run.turns[0].action == "echo a\nexit 2\necho c"
    roles = [message["role"] for message in run.messages]
    # what the package cannot read it leaves out, and says what was wrong
    assert roles == ["system", "user", "assistant", "tool", "tool", "tool", "user", "user", "assistant"]
    assert [message.get("tool_call_id") for message in run.messages[3:6]] == [f"call_0_{i}" for i in range(3)]
    run = compare(bench, "swebench", replies)
    assert run.ending is Outcome.FORMAT_LIMIT


def test_the_commands_after_one_that_submits_are_not_run(bench: Bench) -> None:
    calls = (call("echo a"), call(f"echo {SUBMIT}"), call("sleep 600"))
    run = compare(bench, "mini", [Said(calls=calls)])
    assert run.submitted
    assert run.turns[0].action == f"echo a\necho {SUBMIT}"
    assert run.messages[-1]["role"] == "assistant"


@pytest.mark.parametrize("command", [3, None, {"a": 1}, ["ls"]])
def test_what_is_no_text_is_no_command(bench: Bench, command: Any) -> None:
    config = SHIPPED["mini"]
    for kind in (BashAgent, MiniSweAgent):
        replies = Replies([Said(calls=(call(command),))], tools=True, end=ending(config, tools=True))
        run = bench.run(kind(scaffold_of("mini")), replies)
        assert run.turns[0].exit_code == -1
        assert f"expected str, bytes or os.PathLike object, not {type(command).__name__}" in (
            run.turns[0].observation
        )
        assert run.submitted


@pytest.mark.parametrize("name", ["mini", "mini_textbased"])
def test_a_slow_command_is_told_in_the_packages_words(bench: Bench, name: str) -> None:
    command = "echo begun; sleep 60"
    slow = (
        Said(content=f"```mswea_bash_command\n{command}\n```")
        if name in TEXT
        else Said(calls=(call(command),))
    )
    run = compare(bench, name, [slow], timeout=2.0)
    assert "timed out after 2.0 seconds" in run.messages[3]["content"]
    assert "begun" in run.messages[3]["content"]


def test_a_limit_on_time_ends_either_before_its_next_reply(bench: Bench) -> None:
    slow = [Said(calls=(call("sleep 1.1"),))]
    config = SHIPPED["mini"]
    done = run_package(config, slow, tools=True, end=ending(config, tools=True), wall_time_limit_seconds=1)
    assert (done.status, done.calls) == ("TimeExceeded", 1)
    for kind in (BashAgent, MiniSweAgent):
        agent = kind(load_scaffold(str(config), time_limit_s=1))
        run = bench.run(agent, Replies(slow, tools=True, end=ending(config, tools=True)))
        assert (run.ending, len(run.turns)) == (Outcome.TIME_LIMIT, 1)


def test_the_one_stated_difference_a_command_that_its_own_fence_would_cut_short_is_not_run(
    bench: Bench,
) -> None:
    fence = "```mswea_bash_command"
    nested = Said(content=f"{fence}\ncat <<E\n```\ninner\n```\nE\n```")
    config = SHIPPED["mini_textbased"]
    done = run_package(config, [nested], tools=False, end=ending(config, tools=False))
    assert "<returncode>0</returncode>" in done.messages[3]["content"]  # the package runs the first half
    run = bench.run(
        BashAgent(scaffold_of("mini_textbased")),
        Replies([nested], tools=False, end=ending(config, tools=False)),
    )
    assert run.turns[0].action is None
    compare(bench, "mini_textbased", [Said(content=f"{fence}\necho x\n```\nlike this\n```python\nx\n```")])


def test_every_file_that_the_package_ships_is_read_in_its_own_mode() -> None:
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
def test_templates_may_name_what_they_may_name_in_the_package(
    bench: Bench, tmp_path: Path, kind: Any, key: str, text: str
) -> None:
    assert told(bench, tmp_path, kind, key) == text


@pytest.mark.parametrize("kind", [BashAgent, MiniSweAgent])
def test_templates_may_name_the_whole_seconds_that_have_passed(
    bench: Bench, tmp_path: Path, kind: Any
) -> None:
    began = time.monotonic()
    said = told(bench, tmp_path, kind, "elapsed_seconds")
    assert said in [str(seconds) for seconds in range(int(time.monotonic() - began) + 1)]


def told(bench: Bench, tmp_path: Path, kind: Any, key: str) -> str:
    """What an observation says whose template names `key` alone."""
    path = tmp_path / "prompts.yaml"
    path.write_text(
        "agent: {system_template: s, instance_template: i, step_limit: 7}\n"
        "environment: {cwd: /tmp, env: {A: b}}\n"
        f"model: {{observation_template: '{{{{ {key} }}}}', format_error_template: '{{{{ error }}}}'}}\n"
    )
    chat = Replies([Said(calls=(call("ls"),))], tools=True, end=Said(calls=(call(f"echo {SUBMIT}"),)))
    return bench.run(kind(load_scaffold(str(path))), chat).messages[3]["content"]
