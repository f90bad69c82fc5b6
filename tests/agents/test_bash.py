"""The bash agent's loop with given replies: in a sandbox in memory, and in a real one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.agents import SUBMIT, AgentRun, BashAgent, Scaffold, load_scaffold
from hone.agents.bash import Action, FormatError, parse_actions
from hone.agents.scaffold import SUBMIT_1, Mode
from hone.outcomes import Outcome
from hone.policy.reply import Reply
from hone.sandbox import Limits, Sandbox, SandboxLost, SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings
from hone.types import Message, TokenTree
from tests.agents.fake_sandbox import Answer, FakeSandbox
from tests.grading.example import make_task
from tests.virtual_time import run as run_virtual

TINY = load_scaffold("tiny")
TOOLS = replace(TINY, generation=2, mode=Mode.TOOLS)
SUBMITS = f"```bash\necho {SUBMIT}\n```"
SUBMIT_CALL = json.dumps({"command": f"echo {SUBMIT}"})
JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["command", "x"]), inner),
    max_leaves=4,
).map(json.dumps)


class Replies:
    """A chat that returns given replies, ten tokens each, and then submits."""

    def __init__(self, *replies: str | Reply) -> None:
        self.tree, self.replies, self.requests = TokenTree(), list(replies), list[list[Message]]()

    async def reply(self, messages: list[Message], **options: object) -> Reply:
        self.requests.append(messages)
        reply = self.replies.pop(0) if self.replies else SUBMITS
        return reply if isinstance(reply, Reply) else Reply(content=reply, node=None, sampled_tokens=10)


def _block(command: str) -> str:
    return f"```bash\n{command}\n```"


def _call(arguments: str, name: str = "bash") -> dict[str, object]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


def _echo(command: str) -> Answer:
    """Answer `echo TEXT` with its text, and any other command with nothing."""
    return command.removeprefix("echo ") if command.startswith("echo ") else ""


def _run(
    *replies: str | Reply,
    scaffold: Scaffold = TINY,
    tokens: int = 0,
    sandbox: FakeSandbox | None = None,
) -> AgentRun:
    """Run the agent in a sandbox in memory, on virtual time."""
    run = AgentRun(rollout_id="r")
    agent = BashAgent(scaffold, token_limit=tokens)
    run_virtual(agent.run(make_task(), sandbox or FakeSandbox(_echo), Replies(*replies), run))  # type: ignore[arg-type]
    return run


def test_each_output_is_the_next_message() -> None:
    sandbox = FakeSandbox({"look": "a\nb\n", "fail": 3, f"echo {SUBMIT}": f"{SUBMIT}\n"})
    run = _run(_block("look"), "I try.\n" + _block("fail"), sandbox=sandbox)
    assert [m["role"] for m in run.messages] == ["user"] + ["assistant", "user"] * 2 + ["assistant"]
    assert [m["content"] for m in run.messages[::2]] == [
        make_task().problem,
        "a\nb\n",
        "<returncode>3</returncode>\n",
    ]
    assert [(turn.index, turn.exit_code) for turn in run.turns] == [(0, 0), (1, 3), (2, 0)]
    assert run.turns[1].action == "fail"
    assert (run.submitted, run.ending) == (True, None)


@pytest.mark.parametrize(
    ("answer", "submits"),
    [
        (f"{SUBMIT}\nrest", True),
        (f"\n {SUBMIT} \n", True),
        (f"first\n{SUBMIT}", False),
        (f"{SUBMIT} and more", False),
        (7, False),
        ("", False),
    ],
)
def test_output_of_a_command_decides_on_submission(answer: Answer, submits: bool) -> None:
    sandbox = FakeSandbox({"x": answer, f"echo {SUBMIT}": "not yet"})
    run = _run(_block("x"), scaffold=replace(TINY, step_limit=2), sandbox=sandbox)
    assert (run.submitted, len(run.turns)) == ((True, 1) if submits else (False, 2))


@pytest.mark.parametrize("generation", [1, 2])
def test_older_sentinel_submits_for_prompts_of_version_1_only(generation: int) -> None:
    scaffold = replace(TINY, generation=generation, step_limit=2)
    run = _run(_block(f"echo {SUBMIT_1}"), _block("true"), scaffold=scaffold)
    assert run.submitted is (generation == 1)


def test_repeated_format_errors_end_the_rollout() -> None:
    two = _block("touch ran") + "\n" + _block("touch ran")
    run = _run("I would rather talk.", _block("ls"), two, two, _block("ls"))
    assert run.ending is Outcome.FORMAT_LIMIT
    assert not run.submitted
    assert [turn.action for turn in run.turns] == [None, "ls", None, None]
    assert run.turns[0].observation == TINY.format_error_template == run.messages[2]["content"]
    assert run.turns[1].observation == ""


def test_truncated_reply_gets_its_own_format_error() -> None:
    cut = Reply(content="```bash\nsed -i 's/a", node=3, truncated=True)
    turn = _run(cut, scaffold=load_scaffold("default")).turns[0]
    assert "cut off" in turn.observation
    assert turn.node == 3


@pytest.mark.parametrize(
    ("generation", "roles"), [(1, "user assistant user assistant"), (2, "user user assistant")]
)
def test_only_version_1_keeps_invalid_replies(generation: int, roles: str) -> None:
    run = _run("words", scaffold=replace(TINY, generation=generation))
    assert [message["role"] for message in run.messages] == roles.split()
    assert [turn.reply for turn in run.turns] == ["words", SUBMITS]
    assert run.submitted


def test_tool_calls_run_in_order_and_are_answered_by_id() -> None:
    calls = [_call(json.dumps({"command": command})) | {"id": command} for command in ("a", "b", "c")]
    reply = Reply(content="So.", node=7, tool_calls=tuple(calls), reasoning="Why not.")
    submit = Reply(content="", node=8, tool_calls=(_call(SUBMIT_CALL),))
    sandbox = FakeSandbox({"b": "out\n", "c": 1, f"echo {SUBMIT}": SUBMIT})
    run = _run(reply, submit, scaffold=TOOLS, sandbox=sandbox)
    assert run.messages[1] == {
        "role": "assistant",
        "content": "So.",
        "tool_calls": calls,
        "reasoning_content": "Why not.",
    }
    assert run.messages[2:5] == [
        {"role": "tool", "content": "", "tool_call_id": "a"},
        {"role": "tool", "content": "out\n", "tool_call_id": "b"},
        {"role": "tool", "content": "<returncode>1</returncode>\n", "tool_call_id": "c"},
    ]
    turn = run.turns[0]
    assert (turn.node, turn.reply, turn.exit_code, turn.action) == (7, "So.", 1, "a\nb\nc")
    assert run.submitted


@given(
    calls=st.lists(st.tuples(st.sampled_from(["bash", "other", ""]), st.text(max_size=9) | JSON), max_size=3),
    malformed=st.lists(st.text(max_size=9) | JSON, max_size=2),
)
def test_any_tool_calls_are_actions_or_a_format_error(
    calls: list[tuple[str, str]], malformed: list[str]
) -> None:
    tool_calls = tuple(_call(arguments, name) for name, arguments in calls)
    reply = Reply(content="", node=None, tool_calls=tool_calls, malformed=tuple(malformed))
    actions, variables = list[Action](), dict[str, Any]()
    try:
        actions = parse_actions(TOOLS, reply)
    except FormatError as error:
        variables = error.variables
    if variables:
        assert variables["error"]
        assert variables["has_tool_calls"] is bool(calls or malformed)
    else:
        assert len(actions) == len(calls) > 0
        assert not malformed


def test_deeply_nested_arguments_are_a_format_error() -> None:
    for reply in (
        Reply(content="", node=None, tool_calls=(_call("[" * 100_000),)),
        Reply(content="", node=None, malformed=("[" * 100_000,)),
    ):
        with pytest.raises(FormatError, match="recursion"):
            parse_actions(TOOLS, reply)


@pytest.mark.parametrize(
    ("limits", "tokens", "outcome", "turns"),
    [
        ({}, 0, Outcome.TURN_LIMIT, TINY.step_limit),
        ({}, 25, Outcome.TOKEN_LIMIT, 3),
        ({"wall_time_limit_s": 50.0}, 0, Outcome.TIME_LIMIT, 3),  # of 20 seconds each
    ],
)
def test_limit_ends_the_rollout(limits: dict[str, Any], tokens: int, outcome: Outcome, turns: int) -> None:
    scaffold = replace(TINY, timeout_s=30.0, **limits)
    sandbox = FakeSandbox({"sleep 20": 20.0})
    run = _run(*[_block("sleep 20")] * 20, scaffold=scaffold, tokens=tokens, sandbox=sandbox)
    assert (run.ending, run.submitted, len(run.turns)) == (outcome, False, turns)


def test_command_does_not_outlive_the_time_limit() -> None:
    sandbox = FakeSandbox({"wait": 1000.0})
    hasty = replace(TINY, wall_time_limit_s=50.0, timeout_s=30.0)
    run = _run(*[_block("wait")] * 3, scaffold=hasty, sandbox=sandbox)
    assert sandbox.timeouts == [30.0, 20.0]
    assert run.ending is Outcome.TIME_LIMIT


@pytest.mark.parametrize(
    ("template", "observation"),
    [(None, "<timeout>\n"), ("{{action['action']}} stopped: {{output}}", "wait stopped: ")],
)
def test_timeout_of_a_command_is_an_observation(template: str | None, observation: str) -> None:
    scaffold = replace(TINY, timeout_template=template)
    run = _run(_block("wait"), scaffold=scaffold, sandbox=FakeSandbox({"wait": 1e6}))
    assert run.turns[0].observation == observation
    assert run.turns[0].exit_code == -1


def test_long_observation_keeps_head_and_tail() -> None:
    output = "".join(f"{number}\n" for number in range(1, 2001))
    text = _run(_block("x"), sandbox=FakeSandbox({"x": output})).turns[0].observation
    assert text.startswith("1\n2\n")
    assert text.endswith("1999\n2000\n")
    assert "characters omitted" in text
    assert len(text) < 2100


# --- in a real sandbox


def _in_sandbox(scenario: Callable[[Sandbox], Awaitable[None]], limits: Limits | None = None) -> None:
    async def main() -> None:
        async with make_provider(SandboxSettings()) as provider:
            await scenario(await provider.start(SandboxSpec(limits=limits or Limits())))

    asyncio.run(main())


async def _observe(sandbox: Sandbox, command: str, **changes: Any) -> str:
    run = AgentRun(rollout_id="r")
    await BashAgent(replace(TINY, **changes)).run(make_task(), sandbox, Replies(_block(command)), run)
    assert run.submitted
    return run.turns[0].observation


@pytest.mark.sandbox
def test_commands_run_in_the_sandbox_as_the_file_says() -> None:
    async def scenario(sandbox: Sandbox) -> None:
        assert await _observe(sandbox, "echo a; echo b >&2; echo c") == "a\nb\nc\n"
        assert await _observe(sandbox, "pwd") == "/testbed\n"
        assert (
            await _observe(sandbox, "echo $HELLO; pwd", env={"HELLO": "there"}, cwd="/tmp") == "there\n/tmp\n"
        )
        assert await _observe(sandbox, "sleep 600", timeout_s=1.0) == "<timeout>\n"
        raw = await _observe(sandbox, "seq 1 20000", observation_template="{{output.output}}")
        assert "bytes omitted" in raw
        assert (raw[:4], raw[-6:]) == ("1\n2\n", "20000\n")

    _in_sandbox(scenario, Limits(output_kib=16))


def test_system_prompt_is_sent_unless_it_is_empty() -> None:
    assert _run(scaffold=replace(TINY, system_template="Fix it.")).messages[0]["role"] == "system"
    assert _run().messages[0]["role"] == "user"


@pytest.mark.sandbox
def test_turns_before_a_lost_sandbox_are_kept() -> None:
    async def scenario(sandbox: Sandbox) -> None:
        class Closing(Replies):
            async def reply(self, messages: list[Message], **options: object) -> Reply:
                if len(self.requests) == 1:
                    await sandbox.close()
                return await super().reply(messages)

        run = AgentRun()
        with pytest.raises(SandboxLost):
            await BashAgent(TINY).run(make_task(), sandbox, Closing(_block("echo 1"), _block("echo 2")), run)
        assert [turn.observation for turn in run.turns] == ["1\n"]
        assert run.messages[-1]["role"] == "assistant"
        assert (run.submitted, run.ending) == (False, None)

    _in_sandbox(scenario)
