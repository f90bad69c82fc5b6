"""Any message is read or refused with a typed error, and holds memory in proportion to its size."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from pydantic import BaseModel, ValidationError

from hone.policy.gateway.errors import GatewayError
from hone.policy.gateway.session import Session
from hone.policy.gateway.settings import SessionLimits
from hone.policy.gateway.wire.completions import ChatCompletions
from hone.policy.gateway.wire.fields import read_fields
from hone.policy.gateway.wire.format import Format
from hone.policy.gateway.wire.messages import AnthropicMessages
from hone.policy.gateway.wire.responses import Responses
from hone.rollout.metering import NoChat
from hone.sandbox import SandboxError
from hone.sandbox.contract import Limits
from hone.sandbox.init.in_sandbox import wire as frames
from hone.sandbox.namespaces.plan import Base, Overlay, Plan
from hone.sandbox.node import exec_server
from hone.sandbox.pool import compatible
from hone.sandbox.remote import wire
from tests.attacks.sandbox.test_protocol import taken_over
from tests.fuzz.bounds import peak_bytes, steps
from tests.fuzz.messages import ANY, encoded, kept, objects

short = settings(max_examples=25, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
long = settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
STEPS_PER_BYTE, BYTES_PER_BYTE = 50, 300


def _models(module: Any, base: type[BaseModel]) -> list[type[BaseModel]]:
    found = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, base)]
    return [each for each in found if each is not base and each.__module__ == module.__name__]


MODELS = [
    *_models(wire, wire.Wire),
    *_models(compatible, BaseModel),
    *_models(exec_server, BaseModel),
    SessionLimits,
]
FORMATS: tuple[Format, ...] = (ChatCompletions(), AnthropicMessages(), Responses())


def check(read: Callable[[bytes], object], data: bytes, *typed: type[Exception]) -> None:
    """Read a message; raise what is not a `typed` error, and AssertionError above the bounds."""

    def attempt(data: bytes) -> None:
        with contextlib.suppress(*typed):
            read(data)

    attempt(data)  # imports and compiles
    assert steps(attempt, data) <= 5000 + STEPS_PER_BYTE * len(data)
    assert peak_bytes(attempt, data) <= (1 << 20) + BYTES_PER_BYTE * len(data)


# --- node and pool


def check_models(data: bytes) -> None:
    for model in MODELS:
        check(model.model_validate_json, data, ValidationError)
    check(wire.EXEC_LINE.validate_json, data, ValidationError)


MESSAGES = st.sampled_from(MODELS).flatmap(lambda model: st.tuples(st.just(model), encoded(objects(model))))


@pytest.mark.parametrize("name", kept())
def test_kept_message_is_read_or_refused(name: str) -> None:
    check_models(kept()[name])
    for form in FORMATS:
        check_request(form, kept()[name])


@short
@given(message=MESSAGES)
def test_message_of_a_server_is_read_or_refused(message: tuple[type[BaseModel], bytes]) -> None:
    model, data = message
    check(model.model_validate_json, data, ValidationError)


@pytest.mark.full
@pytest.mark.timeout(900)  # ten seconds on an idle machine
@long
@given(message=MESSAGES)
def test_any_message_of_a_server_is_read_or_refused(message: tuple[type[BaseModel], bytes]) -> None:
    model, data = message
    check(model.model_validate_json, data, ValidationError)


# --- the gateway

_ITEM: SearchStrategy[Any] = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["user", "system", "assistant", "tool", "developer", "odd"]),
        "type": st.sampled_from(
            [
                "text",
                "message",
                "function",
                "tool_use",
                "tool_result",
                "function_call",
                "reasoning",
                "thinking",
            ]
        ),
        "content": st.one_of(st.text(max_size=9), ANY),
        "tool_calls": ANY
        | st.lists(st.dictionaries(st.sampled_from(["id", "function", "type"]), ANY), max_size=2),
        "tool_call_id": ANY,
        "function": ANY | st.dictionaries(st.sampled_from(["name", "arguments", "parameters"]), ANY),
        "input": ANY,
        "text": ANY,
        "id": ANY,
    },
)
_ITEMS = st.lists(_ITEM | ANY, max_size=4) | ANY
REQUESTS = encoded(
    st.fixed_dictionaries(
        {},
        optional={
            "messages": _ITEMS,
            "input": _ITEMS,
            "system": _ITEMS,
            "instructions": ANY,
            "previous_response_id": ANY | st.sampled_from(["resp_a_0_b", "resp__9999999999_"]),
            "tools": _ITEMS,
            "tool_choice": ANY | st.just("auto"),
            "stop": ANY,
            "stream": ANY,
            "stream_options": ANY,
            "model": ANY,
            "temperature": ANY,
            "max_tokens": ANY,
            "n": ANY,
            "odd": st.none(),
        },
    )
)


def check_request(form: Format, data: bytes) -> None:
    def read(data: bytes) -> None:
        session = Session(NoChat(), limits=SessionLimits())
        form.read(read_fields(data, form.encoded_field), session)

    check(read, data, GatewayError)


@short
@given(data=REQUESTS, form=st.sampled_from(FORMATS))
def test_request_of_the_gateway_is_read_or_refused(data: bytes, form: Format) -> None:
    check_request(form, data)


@pytest.mark.full
@pytest.mark.timeout(900)  # ten seconds on an idle machine
@long
@given(data=REQUESTS, form=st.sampled_from(FORMATS))
def test_any_request_of_the_gateway_is_read_or_refused(data: bytes, form: Format) -> None:
    check_request(form, data)


# --- process 1 of a sandbox

_U32, _U64 = st.sampled_from([0, 1, 2, 9, 2**31, 2**32 - 1]), st.sampled_from([0, 1, 9, 2**63, 2**64 - 1])
_BODIES = st.one_of(
    st.binary(max_size=80),
    st.lists(st.binary(max_size=9), max_size=4).map(lambda fields: frames.pack(*fields)),
    st.builds(frames.LENGTH.pack, _U32),
    st.builds(lambda size, data: frames.DATA.pack(size) + data, _U64, st.binary(max_size=20)),
    st.builds(
        lambda code, total, seconds, out, data: (
            frames.RESULT.pack(code, 0, total, total, seconds, out) + data
        ),
        st.sampled_from([0, -1, 2**31 - 1]),
        _U64,
        st.sampled_from([0.0, float("nan"), float("inf"), -1.0]),
        _U32,
        st.binary(max_size=40),
    ),
    st.builds(
        lambda kind, mode, size, name, link: frames.pack(frames.ENTRY.pack(kind, mode, size), name, link),
        st.sampled_from([b"f", b"d", b"l", b"?"]),
        _U32,
        _U64,
        st.sampled_from([b"", b".", b"..", b"a", b"a/b", b"\xff", b"a" * 300]),
        st.sampled_from([b"", b"a", b"../x", b"/etc"]),
    ).flatmap(
        lambda entry: st.sampled_from([entry, entry + entry, frames.pack(entry), frames.pack(entry, entry)])
    ),
)
_KINDS = st.sampled_from([*range(frames.READY_KIND, frames.STDERR_KIND + 1), 0, 255])
REPLIES = st.lists(st.tuples(_KINDS, _BODIES, st.sampled_from([0, 0, 0, 1, 7])), min_size=1, max_size=6)
ACTS = st.sampled_from(["exec", "read", "download"])


def check_replies(act: str, replies: list[tuple[int, bytes, int]]) -> None:
    """Use a sandbox whose process 1 gives these replies and then breaks off."""
    left = iter(replies)
    broken = b"\xff" * 64  # fills what was cut; then a frame that is too large, which ends the channel

    def reply(_kind: int, number: int) -> bytes:
        kind, body, cut = next(left, (frames.STDOUT_KIND, b"", 0))
        frame = frames.HEADER.pack(len(body), kind, number) + body
        cut = min(cut, len(frame) - 4)  # never the size: another one may fit, and is waited for
        is_answer = kind not in (frames.READY_KIND, frames.STDOUT_KIND, frames.STDERR_KIND)
        return frame if is_answer and not cut else frame[: len(frame) - cut] + broken

    async def use() -> None:
        with tempfile.TemporaryDirectory(prefix="hone-fuzz-") as folder:
            async with taken_over(reply) as sandbox:
                with contextlib.suppress(SandboxError, OSError):
                    if act == "exec":
                        await sandbox.exec("true", timeout_s=5)
                    elif act == "read":
                        await sandbox.read("/x")
                    else:
                        await sandbox.download("/x", Path(folder) / "x")

    asyncio.run(use())


@short
@given(act=ACTS, replies=REPLIES)
def test_replies_of_a_sandbox_are_read_or_refused(act: str, replies: list[tuple[int, bytes, int]]) -> None:
    check_replies(act, replies)


@pytest.mark.full
@pytest.mark.timeout(900)  # ten seconds on an idle machine
@long
@given(act=ACTS, replies=REPLIES)
def test_any_replies_of_a_sandbox_are_read_or_refused(
    act: str, replies: list[tuple[int, bytes, int]]
) -> None:
    check_replies(act, replies)


@given(data=st.binary(max_size=60) | _BODIES, offset=st.integers(0, 9))
def test_fields_of_a_frame_are_read_or_refused(data: bytes, offset: int) -> None:
    with contextlib.suppress(ValueError, struct.error):
        assert sum(map(len, frames.unpack(data, offset))) <= len(data)


# --- the spawn server

_TEXTS = st.text(max_size=5)
_PAIRS = st.lists(st.tuples(_TEXTS, _TEXTS), max_size=2)
PLANS = st.builds(
    Plan,
    id=_TEXTS,
    owner=_TEXTS,
    bwrap=_TEXTS,
    base=st.builds(
        Base,
        name=_TEXTS,
        uid=st.integers(0, 9),
        gid=st.integers(0, 9),
        env=st.dictionaries(_TEXTS, _TEXTS, max_size=2),
        workdir=_TEXTS,
        directories=st.lists(_TEXTS, max_size=2),
        links=st.dictionaries(_TEXTS, _TEXTS, max_size=2),
        files=st.dictionaries(_TEXTS, _TEXTS, max_size=2),
        overlays=st.lists(
            st.builds(
                Overlay,
                target=_TEXTS,
                name=_TEXTS,
                lowers=st.lists(_TEXTS, max_size=2),
                translated=st.booleans(),
            ),
            max_size=2,
        ),
        shown=_PAIRS,
    ),
    workdir=_TEXTS,
    copied=_TEXTS | st.none(),
    mounts=_PAIRS,
    sockets=_PAIRS,
    limits=st.builds(Limits, cpus=st.floats(0.1, 9), memory_mib=st.integers(1, 9)),
    cores=st.integers(0, 9),
    init=st.lists(_TEXTS, max_size=2),
)


@given(plan=PLANS)
def test_plan_reaches_the_spawn_server_unchanged(plan: Plan) -> None:
    sent = json.loads(json.dumps(plan.to_json()))
    assert json.loads(json.dumps(Plan.from_json(sent).to_json())) == sent
