"""Messages for node, pool and gateway that nearly are valid ones, drawn from a seed."""

from __future__ import annotations

import json
import random
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from hone.policy.gateway.settings import SessionLimits
from hone.sandbox.node import exec_server
from hone.sandbox.pool import compatible
from hone.sandbox.remote import wire
from tests.attacks.sandbox.test_specs import HOSTILE

_TEXTS = (
    "",
    "a",
    "host",
    "docker://x",
    "é",
    "\x00",
    "\ud800",
    "../x",
    "/",
    "a" * 5000,
    "1e999",
    "\x1b[2J",
    "AA==",
)
_NUMBERS = (0, -1, 1, 60, 2**31, 2**63, 2**64, 10**400, -0.0, 0.5, 1e308, float("inf"), float("nan"))
_LONG = (json.dumps("x" * 150_000), "[" * 5000, "[" + "[]," * 20_000 + "0]", "9" * 4000)
_NODES = ("http://a\r\nb", "http://\x1b[2J", "http://a\x00", "http://[::", "http://a b", "file:///etc", "")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`{own}` in the path is the id of a sandbox of the attacker."""

    method: str
    path: str
    model: type[BaseModel]


@dataclass(frozen=True, slots=True)
class Message:
    method: str
    path: str
    body: bytes


NODE = (
    Endpoint("POST", "/v1/sandboxes", wire.CreateRequest),
    Endpoint("POST", "/v1/renewals", wire.RenewRequest),
    Endpoint("POST", "/v1/sandboxes/{own}/exec", wire.ExecRequest),
    Endpoint("PUT", "/v1/sandboxes/{own}/files?path=a", wire.ExecRequest),
    Endpoint("PUT", "/v1/sandboxes/{own}/archive?path=a", wire.ExecRequest),
    Endpoint("POST", "/container/create", exec_server.Create),
    Endpoint("POST", "/container/exec", exec_server.Exec),
    Endpoint("POST", "/container/diff", exec_server.Call),
    Endpoint("POST", "/container/evaluate", exec_server.Evaluate),
    Endpoint("POST", "/container/destroy", exec_server.Of),
)
POOL = (
    Endpoint("POST", "/v1/leases", wire.LeaseRequest),
    Endpoint("POST", "/v1/heartbeats", wire.HeartbeatRequest),
    Endpoint("POST", "/v1/nodes", wire.NodeRequest),
    Endpoint("POST", "/allocate", compatible.Allocate),
    Endpoint("POST", "/heartbeat", compatible.OfLease),
    Endpoint("POST", "/close", compatible.OfLease),
    Endpoint("POST", "/exec", compatible.Call),
    Endpoint("POST", "/evaluate", compatible.Call),
)
GATEWAY = (
    Endpoint("POST", "/chat/completions", SessionLimits),
    Endpoint("POST", "/messages", SessionLimits),
    Endpoint("POST", "/messages/count_tokens", SessionLimits),
    Endpoint("POST", "/responses", SessionLimits),
)


def draw(dice: random.Random, endpoints: Sequence[Endpoint]) -> Message:
    endpoint = dice.choice(endpoints)
    return Message(endpoint.method, endpoint.path, _body(dice, endpoint))


def _body(dice: random.Random, endpoint: Endpoint) -> bytes:
    if endpoint.model is wire.CreateRequest and dice.random() < 0.3:
        return dice.choice([*HOSTILE.values()]).encode("utf-8", "surrogatepass")
    fields: Any = _object(dice, endpoint.model)
    if endpoint in GATEWAY:
        fields = _chat(dice)
    if endpoint.model is wire.NodeRequest:
        fields = {"url": dice.choice(_NODES)}
    text = json.dumps(fields, ensure_ascii=dice.random() < 0.5)
    if dice.random() < 0.1:
        text = text.replace('"a"', dice.choice(_LONG)).replace("60", dice.choice(_LONG))
    return _damaged(dice, text.encode("utf-8", "surrogatepass"))


def _object(dice: random.Random, model: type[BaseModel]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        if field.is_required() or dice.random() < 0.4:
            found[name] = _value(dice, field.annotation) if dice.random() < 0.85 else _any(dice, 3)
    return found if dice.random() < 0.95 else {**found, "odd": 1}


def _value(dice: random.Random, kind: Any) -> Any:
    """Return a value of about the type of a field."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return _object(dice, kind)
    if origin in (typing.Union, types.UnionType):
        return _value(dice, dice.choice(arguments))
    if origin is typing.Literal:
        return dice.choice(arguments)
    if origin is typing.Annotated:
        return _value(dice, arguments[0])
    if origin in (list, tuple):
        return [_value(dice, arguments[0]) for _ in range(dice.choice([0, 1, 1, 300]))]
    if origin is dict:
        return {dice.choice(_TEXTS): _value(dice, arguments[1]) for _ in range(dice.randrange(3))}
    if kind in (int, float):
        return dice.choice(_NUMBERS)
    if kind is bool:
        return dice.random() < 0.5
    return dice.choice(_TEXTS) if kind in (str, bytes) else _any(dice, 2)


def _any(dice: random.Random, depth: int) -> Any:
    if depth and dice.random() < 0.5:
        inner = [_any(dice, depth - 1) for _ in range(dice.randrange(4))]
        return inner if dice.random() < 0.5 else {dice.choice(_TEXTS): each for each in inner}
    return dice.choice([None, True, dice.choice(_NUMBERS), dice.choice(_TEXTS)])


def _chat(dice: random.Random) -> dict[str, Any]:
    names = ("messages", "input", "system", "tools", "stop", "stream", "model", "max_tokens", "odd")
    roles = ("user", "system", "assistant", "tool", "odd")
    items = [{"role": dice.choice(roles), "content": _any(dice, 2)} for _ in range(dice.randrange(4))]
    fields = {name: _any(dice, 3) for name in names if dice.random() < 0.2}
    return {"messages": items, **fields} if dice.random() < 0.8 else fields


def _damaged(dice: random.Random, data: bytes) -> bytes:
    place, how = dice.randrange(len(data) + 1), dice.random()
    if how < 0.06:
        return data[:place]
    if how < 0.12:
        return data[:place] + bytes([dice.randrange(256)]) + data[place + 1 :]
    return b'{"a":' * 5000 + data if how < 0.15 else data
