"""The bash agent's loop in a real sandbox, with given replies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.agents import SUBMIT, AgentRun, BashAgent, Scaffold, load_scaffold
from hone.agents.actions import FormatError, parse_actions
from hone.agents.scaffold import SUBMIT_1, Mode
from hone.outcomes import Outcome
from hone.policy.reply import Reply
from hone.sandbox import Limits, Sandbox, SandboxLost, SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings
from hone.types import Message, TokenTree
from tests.grading.example import make_task

pytestmark = pytest.mark.sandbox

TINY = load_scaffold("tiny")
SUBMITS = f"```bash\necho {SUBMIT}\n```"
SUBMIT_CALL = json.dumps({"command": f"echo {SUBMIT}"})
JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["command", "x"]), inner),
    max_leaves=4,
).map(json.dumps)


class Replies:
    """A chat that gives the replies it was made with, ten tokens each, and then submits."""

    def __init__(self, *replies: str | Reply) -> None:
        self.tree, self.replies, self.asked = TokenTree(), list(replies), list[list[Message]]()

    async def reply(self, messages: list[Message], **asked: object) -> Reply:
        self.asked.append(messages)
        reply = self.replies.pop(0) if self.replies else SUBMITS
        return reply if isinstance(reply, Reply) else Reply(content=reply, node=None, sampled_tokens=10)


def _do(command: str) -> str:
    return f"```bash\n{command}\n```"


async def _run(
    sandbox: Sandbox, *replies: str | Reply, scaffold: Scaffold = TINY, tokens: int = 0
) -> AgentRun:
    run = AgentRun(rollout_id="r")
    await BashAgent(scaffold, token_limit=tokens).run(make_task(), sandbox, Replies(*replies), run)
    return run


def _in_sandbox(scenario: Callable[[Sandbox], Awaitable[None]], limits: Limits | None = None) -> None:
    async def main() -> None:
        async with make_provider(SandboxSettings()) as provider:
            await scenario(await provider.start(SandboxSpec(limits=limits or Limits())))

    asyncio.run(main())


def test_each_command_is_run_and_its_output_is_the_next_message() -> None:
    async def scenario(sandbox: Sandbox) -> None:
        run = await _run(sandbox, _do("echo a; echo b >&2; echo c"), "I look.\n" + _do("exit 3"), _do("pwd"))
        assert [m["role"] for m in run.messages] == ["user"] + ["assistant", "user"] * 3 + ["assistant"]
        assert [m["content"] for m in run.messages[::2]] == [
            make_task().problem,
            "a\nb\nc\n",
            "<returncode>3</returncode>\n",
            "/testbed\n",
        ]
        assert [turn.exit_code for turn in run.turns] == [0, 3, 0, 0]
        assert [turn.index for turn in run.turns] == [0, 1, 2, 3]
        assert run.turns[1].action == "exit 3"
        assert (run.submitted, run.ending) == (True, None)

    _in_sandbox(scenario)


def test_what_a_command_prints_decides_about_submission() -> None:
    async def scenario(sandbox: Sandbox) -> None:
        not_yet = [
            f"true {SUBMIT}",
            f"echo {SUBMIT}; false",
            f"echo first; echo {SUBMIT}",
            f"echo {SUBMIT} and more",
        ]
        limited = replace(TINY, step_limit=4)
        run = await _run(sandbox, *map(_do, not_yet), scaffold=limited)
        assert (run.submitted, run.ending, len(run.turns)) == (False, Outcome.TURN_LIMIT, 4)
        run = await _run(sandbox, _do("printf '\\nCOMPLETE_TASK_AND_SUBMIT%s\\nrest' _FINAL_OUTPUT"))
        assert (run.submitted, len(run.turns)) == (True, 1)

    _in_sandbox(scenario)


def test_a_reply_without_exactly_one_action_is_told_so_and_repetition_ends_the_rollout() -> None:
    async def scenario(sandbox: Sandbox) -> None:
        none, two = "I would rather talk.", _do("touch ran") + "\n" + _do("touch ran")
        run = await _run(sandbox, none, _do("ls"), two, two, _do("ls"))
        assert run.ending is Outcome.FORMAT_LIMIT
        assert not run.submitted
        assert [turn.action for turn in run.turns] == [None, "ls", None, None]
        assert run.turns[0].observation == TINY.format_error_template == run.messages[2]["content"]
        assert run.turns[1].observation == ""
        cut = Reply(content="```bash\nsed -i 's/a", node=3, truncated=True)
        run = await _run(sandbox, cut, scaffold=load_scaffold("default"))
        assert "cut off" in run.turns[0].observation
        assert run.turns[0].node == 3

    _in_sandbox(scenario)


def _call(arguments: str, name: str = "bash") -> dict[str, object]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_reply_that_cannot_be_read_stays_in_conversations_of_1_and_not_in_those_of_2() -> None:
    async def scenario(sandbox: Sandbox) -> None:
        for generation, roles in ((1, "user assistant user assistant"), (2, "user user assistant")):
            run = await _run(sandbox, "words", scaffold=replace(TINY, generation=generation))
            assert [message["role"] for message in run.messages] == roles.split()
            assert [turn.reply for turn in run.turns] == ["words", SUBMITS]
            assert run.submitted

    _in_sandbox(scenario)


def test_the_older_sentinel_submits_for_prompts_of_1_alone_and_only_if_the_command_succeeds() -> None:
    async def scenario(sandbox: Sandbox) -> None:
        for generation in (1, 2):
            scaffold = replace(TINY, generation=generation, step_limit=2)
            run = await _run(
                sandbox,
                _do(f"echo {SUBMIT_1}; false"),
                _do(f"echo {SUBMIT_1}"),
                _do("true"),
                scaffold=scaffold,
            )
            assert run.submitted is (generation == 1)

    _in_sandbox(scenario)


def test_calls_of_the_tool_are_run_in_order_and_answered_by_their_ids() -> None:
    tools = replace(TINY, generation=2, mode=Mode.TOOLS)
    calls = [_call(json.dumps({"command": c})) | {"id": c} for c in ("echo a > x", "cat x", "false")]
    reply = Reply(content="So.", node=7, tool_calls=tuple(calls), reasoning="Why not.")

    async def scenario(sandbox: Sandbox) -> None:
        chat = Replies(reply, Reply(content="", node=8, tool_calls=(_call(SUBMIT_CALL),)))
        run = AgentRun()
        await BashAgent(tools).run(make_task(), sandbox, chat, run)
        said = {"role": "assistant", "content": "So.", "tool_calls": calls, "reasoning_content": "Why not."}
        assert run.messages[1] == said
        assert run.messages[2:5] == [
            {"role": "tool", "content": "", "tool_call_id": "echo a > x"},
            {"role": "tool", "content": "a\n", "tool_call_id": "cat x"},
            {"role": "tool", "content": "<returncode>1</returncode>\n", "tool_call_id": "false"},
        ]
        turn = run.turns[0]
        assert (turn.node, turn.reply, turn.exit_code) == (7, "So.", 1)
        assert turn.action == "echo a > x\ncat x\nfalse"
        assert run.submitted

    _in_sandbox(scenario)


@given(
    calls=st.lists(st.tuples(st.sampled_from(["bash", "other", ""]), st.text(max_size=9) | JSON), max_size=3),
    malformed=st.lists(st.text(max_size=9) | JSON, max_size=2),
)
def test_no_tool_call_whatever_it_holds_ends_in_anything_but_commands_or_a_format_error(
    calls: list[tuple[str, str]], malformed: list[str]
) -> None:
    scaffold = replace(TINY, generation=2, mode=Mode.TOOLS)
    said = tuple(_call(arguments, name) for name, arguments in calls)
    reply = Reply(content="", node=None, tool_calls=said, malformed=tuple(malformed))
    actions, refused = [], None
    try:
        actions = parse_actions(scaffold, reply)
    except FormatError as error:
        refused = error.variables
    if refused is not None:
        assert refused["error"]
        assert refused["has_tool_calls"] is bool(calls or malformed)
    else:
        assert len(actions) == len(calls) > 0
        assert not malformed


def test_arguments_nested_without_end_are_a_format_error() -> None:
    scaffold = replace(TINY, generation=2, mode=Mode.TOOLS)
    for reply in (
        Reply(content="", node=None, tool_calls=(_call("[" * 100_000),)),
        Reply(content="", node=None, malformed=("[" * 100_000,)),
    ):
        with pytest.raises(FormatError, match="recursion"):
            parse_actions(scaffold, reply)


def test_limits_on_turns_tokens_and_time_end_the_rollout() -> None:
    async def scenario(sandbox: Sandbox) -> None:
        forever = [_do("true")] * 20
        run = await _run(sandbox, *forever)
        assert (run.ending, len(run.turns)) == (Outcome.TURN_LIMIT, TINY.step_limit)
        run = await _run(sandbox, *forever, tokens=25)
        assert (run.ending, len(run.turns)) == (Outcome.TOKEN_LIMIT, 3)
        hasty = replace(TINY, wall_time_limit_s=0.5)  # enough for the first reply to be asked for
        run = await _run(sandbox, _do("sleep 0.6"), *forever, scaffold=hasty)
        assert (run.ending, len(run.turns)) == (Outcome.TIME_LIMIT, 1)
        run = await _run(sandbox, _do("sleep 60"), scaffold=hasty)
        assert run.ending is Outcome.TIME_LIMIT  # the command did not outlive the limit

    _in_sandbox(scenario)


def test_a_slow_command_is_an_observation() -> None:
    async def scenario(sandbox: Sandbox) -> None:
        run = await _run(sandbox, _do("echo begun; sleep 60"), scaffold=replace(TINY, timeout_s=2.0))
        assert run.turns[0].observation == "<timeout>\nbegun\n"
        assert run.submitted
        old = replace(TINY, timeout_s=2.0, timeout_template="{{action['action']}} stopped: {{output}}")
        run = await _run(sandbox, _do("echo begun; sleep 60"), scaffold=old)
        assert run.turns[0].observation == "echo begun; sleep 60 stopped: begun\n"

    _in_sandbox(scenario)


def test_long_output_keeps_its_head_and_tail_and_says_what_is_missing() -> None:
    async def scenario(sandbox: Sandbox) -> None:
        seen = (await _run(sandbox, _do("seq 1 2000"))).turns[0].observation
        assert seen.startswith("1\n2\n")
        assert seen.endswith("1999\n2000\n")
        assert "characters omitted" in seen
        assert len(seen) < 2100
        raw = replace(TINY, observation_template="{{output.output}}")
        seen = (await _run(sandbox, _do("seq 1 20000"), scaffold=raw)).turns[0].observation
        assert "bytes omitted" in seen
        assert seen.startswith("1\n2\n")
        assert seen.endswith("20000\n")

    _in_sandbox(scenario, Limits(output_kib=16))


def test_the_environment_of_the_file_reaches_commands_and_an_empty_system_prompt_sends_none() -> None:
    async def scenario(sandbox: Sandbox) -> None:
        scaffold = replace(TINY, env={"HELLO": "there"}, cwd="/tmp", system_template="Fix it.")
        run = await _run(sandbox, _do("echo $HELLO; pwd"), scaffold=scaffold)
        assert run.turns[0].observation == "there\n/tmp\n"
        assert run.messages[0] == {"role": "system", "content": "Fix it."}

    _in_sandbox(scenario)


def test_a_lost_sandbox_is_raised_and_the_turns_before_it_are_kept() -> None:
    async def scenario(sandbox: Sandbox) -> None:
        class Closing(Replies):
            async def reply(self, messages: list[Message], **asked: object) -> Reply:
                if len(self.asked) == 1:
                    await sandbox.close()
                return await super().reply(messages)

        run = AgentRun()
        with pytest.raises(SandboxLost):
            await BashAgent(TINY).run(make_task(), sandbox, Closing(_do("echo 1"), _do("echo 2")), run)
        assert [turn.observation for turn in run.turns] == ["1\n"]
        assert run.messages[-1]["role"] == "assistant"
        assert (run.submitted, run.ending) == (False, None)

    _in_sandbox(scenario)
