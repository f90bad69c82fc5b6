"""Sessions: who gets in, what a retry gets, what runs at the same time, and how a session ends."""

from __future__ import annotations

import asyncio
import stat

import httpx
import openai
import pytest

from hone.policy.engine import EngineError
from hone.policy.gateway import Limit, SessionLimits, open_gateway
from hone.policy.reply import CallKind
from hone.policy.scripted import ScriptedCall, ScriptedReply
from hone.utils import clock
from tests import virtual_time
from tests.policy.gateway.world import BEGIN, DONE, LOOK, TOOLS, USER, open_world, results
from tests.waiting import wait_until_async

EDIT = ScriptedReply(
    content="I will now change the file.", tool_calls=(ScriptedCall(name="edit", arguments={"a": "b"}),)
)


def side(text: str) -> list[dict]:
    return [{"role": "system", "content": "You explore."}, {"role": "user", "content": text}]


# --- who gets in


def test_only_the_session_secret_grants_access(renderer_and_tokenizer):
    async def converse():
        async with open_world(renderer_and_tokenizer, [DONE]) as world:
            root = world.gateway.url
            body = {"model": "m", "messages": BEGIN}
            for path, headers, status in (
                ("/s/wrong/v1/chat/completions", {}, 401),
                ("/v1/chat/completions", {}, 401),
                ("/v1/chat/completions", {"Authorization": "Bearer wrong"}, 401),
                ("/v1/chat/completions", {"Authorization": f"Bearer {world.session.id}"}, 401),
                ("/v1/chat/completions", {"x-api-key": world.session.key}, 200),
                ("/v1/chat/completions", {"Authorization": f"Bearer {world.session.key}"}, 200),
                ("/v1/embeddings", {"x-api-key": world.session.key}, 404),
                ("/sessions", {}, 404),  # nobody administers this gateway over HTTP
            ):
                async with world.http.post(root + path, json=body, headers=headers) as response:
                    assert response.status == status, path
                    answer = await response.json()
                    assert ("error" in answer) == (status != 200)
            async with world.http.post(f"{root}/s/wrong/v1/messages", json=body) as response:
                assert (response.status, (await response.json())["type"]) == (401, "error")
            client = openai.AsyncOpenAI(base_url=f"{root}/s/wrong/v1", api_key="wrong")
            with pytest.raises(openai.AuthenticationError):
                await client.chat.completions.create(model="m", messages=BEGIN)

    asyncio.run(converse())


def test_closed_session_refuses_new_and_waiting_requests(renderer_and_tokenizer):
    async def converse():
        async with open_world(renderer_and_tokenizer, [DONE]) as world:
            world.engine.open.clear()
            waiting = asyncio.create_task(world.chat_completion(BEGIN))
            await world.engine.reached.acquire()
            await world.gateway.close(world.session)
            assert (await waiting)[0] == 404
            assert (await world.chat_completion(BEGIN))[0] == 401
            assert world.session.over.is_set()
            assert not world.engine.completions
            await world.gateway.close(world.session)

    asyncio.run(converse())


def test_socket_is_private_to_its_owner_and_removed_at_close(renderer_and_tokenizer, tmp_path):
    path = tmp_path / "gateway.sock"

    async def converse():
        async with open_world(renderer_and_tokenizer, [DONE], socket=path) as world:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            url = f"http://localhost{world.session.path}/chat/completions"
            async with world.http.post(url, json={"messages": BEGIN}) as response:
                assert response.status == 200
            with pytest.raises(OSError, match="in use"):
                async with open_gateway(socket=path):
                    pass
            assert path.exists()
        assert not path.exists()

    asyncio.run(converse())


# --- what a retry gets


def test_repeated_request_is_sampled_once(renderer_and_tokenizer):
    async def converse():
        async with open_world(renderer_and_tokenizer, [LOOK, DONE]) as world:
            world.engine.open.clear()
            first = asyncio.create_task(world.chat_completion(BEGIN, tools=TOOLS))
            await world.engine.reached.acquire()
            joined = asyncio.create_task(world.chat_completion(BEGIN, tools=TOOLS, max_tokens=64_000))
            # in another form, and by another client
            parts = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in BEGIN]
            also = asyncio.create_task(world.chat_completion(parts, tools=TOOLS, stream=True))
            while world.session.retries < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
            first.cancel()  # a client that goes away stops nothing
            world.engine.open.set()
            (_, one), (_, other) = await joined, await also
            again = (await world.chat_completion(BEGIN, tools=TOOLS))[1]
            assert one["choices"] == again["choices"]
            assert one["id"] == again["id"]
            assert one["id"] in other
            assert [exchange.retries for exchange in world.session.exchanges] == [3]
            assert world.session.retries == 3
            assert world.engine.calls == 1

    asyncio.run(converse())


def test_disconnect_from_a_stream_does_not_stop_the_reply(renderer_and_tokenizer):
    async def converse():
        async with open_world(renderer_and_tokenizer, [DONE]) as world:
            world.engine.open.clear()
            body = {"messages": BEGIN, "stream": True}
            async with world.http.post(f"{world.url}/chat/completions", json=body) as response:
                assert (await response.content.readline()).startswith(b":")
                response.close()
            await wait_until_async(lambda: not any("run_asgi" in repr(task) for task in asyncio.all_tasks()))
            world.engine.open.set()
            _, reply = await world.chat_completion(BEGIN)
            assert reply["choices"][0]["message"]["content"] == "Done."
            assert (world.engine.calls, world.session.retries) == (1, 1)

    virtual_time.run(converse())


def test_failed_request_is_sampled_again_when_repeated(renderer_and_tokenizer):
    async def converse():
        async with open_world(renderer_and_tokenizer, [ScriptedReply(error="out of memory"), DONE]) as world:
            status, body = await world.chat_completion(BEGIN)
            assert (status, body["error"]["code"]) == (503, "engine_error")
            assert isinstance(world.session.error, EngineError)
            assert world.session.over.is_set()
            assert (await world.chat_completion(BEGIN))[0] == 200

    asyncio.run(converse())


@pytest.mark.parametrize("cut", range(0, 1800, 90))
def test_retry_after_a_break_at_any_byte_gets_the_same_reply(renderer_and_tokenizer, cut):
    broken = EDIT.model_copy(update={"drop_after_bytes": cut})

    async def converse():
        async with open_world(renderer_and_tokenizer, [broken, DONE]) as world:
            client = openai.AsyncOpenAI(base_url=world.url, api_key="any", max_retries=0)
            content = ""
            try:
                stream = await client.chat.completions.create(
                    model="m", messages=BEGIN, tools=TOOLS, stream=True
                )
                async for chunk in stream:
                    content += chunk.choices[0].delta.content or ""
            except (openai.APIConnectionError, httpx.NetworkError, httpx.ProtocolError):
                pass  # as it should
            reply = await client.chat.completions.create(model="m", messages=BEGIN, tools=TOOLS)
            assert reply.choices[0].message.content == EDIT.content
            assert EDIT.content.startswith(content)
            assert world.session.exchanges[0].retries == 1

    asyncio.run(converse())


def test_continuation_request_gets_the_rest_of_a_broken_reply(renderer_and_tokenizer):
    async def converse():
        async with open_world(renderer_and_tokenizer, [EDIT, DONE]) as world:
            await world.chat_completion(BEGIN, tools=TOOLS)
            begun = "I will now ch"
            resume = (
                f"The connection dropped.\n<previous_response_suffix>\n{begun}\n</previous_response_suffix>"
            )
            messages = [*BEGIN, {"role": "assistant", "content": begun}, {"role": "user", "content": resume}]
            _, body = await world.chat_completion(messages, tools=TOOLS)
            message = body["choices"][0]["message"]
            assert message["content"] == "ange the file."
            assert message["tool_calls"][0]["function"]["name"] == "edit"
            merged = {**message, "content": EDIT.content}
            merged.pop("refusal")
            await world.chat_completion([*BEGIN, merged, *results(merged)], tools=TOOLS)
            assert world.session.retries == 1
            assert not world.chat.forks

    asyncio.run(converse())


def test_unquoted_half_reply_gets_a_new_reply(renderer_and_tokenizer):
    async def converse():
        async with open_world(renderer_and_tokenizer, [EDIT, DONE]) as world:
            await world.chat_completion(BEGIN, tools=TOOLS)
            messages = [
                *BEGIN,
                {"role": "assistant", "content": "I will now"},
                {"role": "user", "content": "Stop."},
            ]
            _, body = await world.chat_completion(messages, tools=TOOLS)
            assert body["choices"][0]["message"]["content"] == "Done."

    asyncio.run(converse())


# --- what runs at the same time, and what it is for


def test_concurrent_sub_agents_are_auxiliary_branches(renderer_and_tokenizer):
    script = [
        LOOK,
        *(ScriptedReply(content=f"found {i}", when=f"explore {i}.") for i in range(8)),
        DONE,
    ]

    async def converse():
        async with open_world(renderer_and_tokenizer, script) as world:
            _, body = await world.chat_completion(BEGIN, tools=TOOLS)
            message = body["choices"][0]["message"]
            world.engine.open.clear()
            asking = [
                asyncio.create_task(world.chat_completion(side(f"explore {i}."), tools=TOOLS))
                for i in range(8)
            ]
            for _ in range(9):  # all of them are under way at once
                await world.engine.reached.acquire()
            world.engine.open.set()
            answers = [(await task)[1]["choices"][0]["message"]["content"] for task in asking]
            assert answers == [f"found {i}" for i in range(8)]
            said = {key: message[key] for key in ("role", "content", "tool_calls")}
            await world.chat_completion([*BEGIN, said, *results(said)], tools=TOOLS)
            purposes = [exchange.purpose for exchange in world.session.exchanges]
            assert purposes == [CallKind.MAIN, *[CallKind.AUXILIARY] * 8, CallKind.MAIN]
            assert [call.purpose for call in world.chat.calls] == purposes
            main = world.session.exchanges[-1].reply.node
            assert world.session.exchanges[0].reply.node in world.chat.tree.path(main)

    asyncio.run(converse())


def test_compacted_history_forks_the_main_line(renderer_and_tokenizer):
    ask = {"role": "user", "content": "You are the component that summarizes a conversation when ..."}
    summary = ScriptedReply(content="<state_snapshot>It is line 4.</state_snapshot>")

    async def converse():
        async with open_world(renderer_and_tokenizer, [LOOK, summary, EDIT, DONE]) as world:
            _, body = await world.chat_completion(BEGIN, tools=TOOLS)
            said = {k: body["choices"][0]["message"][k] for k in ("role", "content", "tool_calls")}
            line = [*BEGIN, said, *results(said)]
            await world.chat_completion([*line, ask], tools=TOOLS)
            compacted = [*BEGIN, {"role": "user", "content": summary.content}]
            _, body = await world.chat_completion(compacted, tools=TOOLS)
            said = {k: body["choices"][0]["message"][k] for k in ("role", "content", "tool_calls")}
            await world.chat_completion([*compacted, said, *results(said)], tools=TOOLS)
            purposes = [exchange.purpose for exchange in world.session.exchanges]
            assert purposes == [CallKind.MAIN, CallKind.AUXILIARY, CallKind.MAIN, CallKind.MAIN]
            forked = [call.fork is not None for call in world.chat.calls]
            assert forked == [False, False, True, False]

    asyncio.run(converse())


# --- how a session ends


@pytest.mark.parametrize(
    ("limits", "limit", "answered"),
    [
        (SessionLimits(calls=2), Limit.CALLS, 2),
        (SessionLimits(sampled_tokens=30), Limit.SAMPLED_TOKENS, 1),
        (SessionLimits(seconds=1e-6), Limit.SECONDS, 0),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_limit_ends_the_session_with_an_error_that_stops_retries(
    renderer_and_tokenizer, limits, limit, answered, stream
):
    async def converse():
        async with open_world(
            renderer_and_tokenizer, [DONE.model_copy(update={"content": "x" * 40})] * 5, limits=limits
        ) as world:
            client = openai.AsyncOpenAI(
                base_url=world.url, api_key="any"
            )  # which retries what may be retried
            messages = list(BEGIN)
            for _ in range(answered):
                await client.chat.completions.create(model="m", messages=messages)
                messages = [*messages, USER]
            started = world.session.calls_started
            with pytest.raises(openai.PermissionDeniedError, match="limit") as caught:
                await client.chat.completions.create(model="m", messages=messages, stream=stream)
            assert caught.value.code == "session_limit"
            assert world.session.ended is limit
            assert world.session.over.is_set()
            assert (world.session.calls_started, world.engine.calls) == (started, answered)
            if answered:  # what was answered stays answered
                await client.chat.completions.create(model="m", messages=BEGIN)

    asyncio.run(converse())


def test_time_limit_cancels_the_reply_being_sampled(renderer_and_tokenizer):
    async def converse():
        async with open_world(renderer_and_tokenizer, [DONE], limits=SessionLimits(seconds=100)) as world:
            world.engine.open.clear()
            status, _ = await world.chat_completion(BEGIN)
            assert (status, world.session.ended) == (403, Limit.SECONDS)
            assert asyncio.get_running_loop().time() >= 100
            assert not world.engine.completions

    virtual_time.run(converse())


def test_observer_sees_each_main_exchange_once(renderer_and_tokenizer):
    seen: list[tuple[int, int]] = []  # index of the exchange, and how many calls had reached the engine

    async def converse():
        async def observe(exchange) -> None:
            seen.append((exchange.index, world.engine.calls))
            await asyncio.sleep(0)

        async with open_world(renderer_and_tokenizer, [DONE] * 5, on_exchange=observe) as world:
            messages = list(BEGIN)
            for _ in range(3):
                await world.chat_completion(messages)
                await world.chat_completion(messages)  # a retry
                if len(messages) == 2:
                    await world.chat_completion(side("explore"))  # a side call
                messages = [*messages, USER]
            assert [index for index, _ in seen] == [0, 2]
            assert seen == [(0, 2), (2, 3)]
        assert [index for index, _ in seen] == [0, 2, 3]

    asyncio.run(converse())


def test_failing_observer_ends_the_session(renderer_and_tokenizer):
    async def observe(_exchange) -> None:
        raise EngineError("the sandbox is gone")

    async def converse():
        async with open_world(renderer_and_tokenizer, [DONE, DONE], on_exchange=observe) as world:
            assert (await world.chat_completion(BEGIN))[0] == 200
            status, body = await world.chat_completion([*BEGIN, USER])
            assert (status, body["error"]["code"]) == (403, "session_failed")
            assert str(world.session.error) == "the sandbox is gone"
            assert world.engine.calls == 1

    asyncio.run(converse())


def test_close_waits_for_a_running_observer(renderer_and_tokenizer):
    seen: list[int] = []

    async def converse():
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def observe(exchange) -> None:
            begun.set()
            await go_on.wait()
            seen.append(exchange.index)

        async with open_world(renderer_and_tokenizer, [DONE, DONE], on_exchange=observe) as world:
            await world.chat_completion(BEGIN)
            asking = asyncio.create_task(world.chat_completion([*BEGIN, USER]))
            await begun.wait()
            closing = asyncio.create_task(world.gateway.close(world.session))
            await asyncio.sleep(0)
            go_on.set()
            await closing
            assert seen == [0]
            assert (await asking)[0] == 404

    asyncio.run(converse())


def test_exchange_has_the_request_and_its_time(renderer_and_tokenizer):
    async def converse():
        before = clock.monotonic()
        async with open_world(renderer_and_tokenizer, [LOOK, DONE]) as world:
            _, body = await world.chat_completion(BEGIN, tools=TOOLS)
            said = {k: body["choices"][0]["message"][k] for k in ("role", "content", "tool_calls")}
            await world.chat_completion([*BEGIN, said, *results(said)], tools=TOOLS)
            first, second = world.session.exchanges
            assert first.messages == BEGIN
            assert [tool["name"] for tool in first.tools] == ["ls", "cat", "edit"]
            assert first.reply.reasoning == second.messages[2]["reasoning_content"] == "Where is it?"
            assert [m["role"] for m in second.messages] == ["system", "user", "assistant", "tool", "tool"]
            assert before <= first.started <= first.ended <= second.started <= second.ended

    asyncio.run(converse())
