"""Every number and text that a node accepts is finite and bounded."""

from __future__ import annotations

import json

import pytest
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from hone.sandbox.node import api, exec_server
from hone.sandbox.remote.wire import CreateRequest, ExecReply, ExecRequest, RenewRequest

NUMBERS = ("Infinity", "-Infinity", "NaN", "1e300", "-1", "9" * 4000, str(1 << 64))
REPLY = {"exit_code": 0, "stdout": "", "stderr": "", "stdout_bytes": 0, "stderr_bytes": 0,
         "timed_out": False, "seconds": 0.1}  # fmt: skip
NUMERIC: list[tuple[type[BaseModel], str]] = [
    *((CreateRequest, f'{{"spec": {{"limits": {{"{name}": %s}}}}}}')
      for name in ("memory_mib", "pids", "cpus", "disk_mib", "output_kib")),
    (CreateRequest, '{"spec": {}, "ttl_s": %s}'),
    (CreateRequest, '{"spec": {}, "generation": %s}'),
    (ExecRequest, '{"command": "true", "timeout_s": %s}'),
    (RenewRequest, '{"ids": [], "ttl_s": %s}'),
    *((ExecReply, json.dumps(REPLY | {name: 0.5}).replace("0.5", "%s"))
      for name in ("stdout_bytes", "stderr_bytes")),
    (exec_server.Create, '{"image": "host", "timeout": %s}'),
    (exec_server.Exec, '{"container_id": "c", "command": "true", "timeout": %s}'),
    (exec_server.Evaluate, '{"container_id": "c", "timeout": %s}'),
]  # fmt: skip
LONG = json.dumps("x" * 200_000)
TEXTS: list[tuple[type[BaseModel], str]] = [
    *((CreateRequest, f'{{"spec": {{"{name}": %s}}}}') for name in ("image", "workdir", "run")),
    (CreateRequest, '{"spec": {"network": [%s]}}'),
    (CreateRequest, '{"spec": {"mounts": [{"content": "' + "0" * 64 + '", "target": %s}]}}'),
    (CreateRequest, '{"spec": {}, "lease": %s}'),
    (ExecRequest, '{"command": "true", "cwd": %s}'),
    (RenewRequest, '{"ids": [%s], "ttl_s": 1}'),
    (exec_server.Create, '{"image": "host", "cwd": %s}'),
    (exec_server.Exec, '{"container_id": %s, "command": "true"}'),
]  # fmt: skip


@pytest.mark.parametrize("number", NUMBERS, ids=lambda text: text[:9])
@pytest.mark.parametrize(("model", "body"), NUMERIC)
def test_numbers_are_bounded(model: type[BaseModel], body: str, number: str) -> None:
    model.model_validate_json(body % 1)  # the honest control
    with pytest.raises(ValidationError):
        model.model_validate_json(body % number)


@pytest.mark.parametrize(("model", "body"), TEXTS)
def test_texts_are_bounded(model: type[BaseModel], body: str) -> None:
    model.model_validate_json(body % '"x"')
    with pytest.raises(ValidationError):
        model.model_validate_json(body % LONG)


@pytest.mark.parametrize(("digits", "wanted"), [("644", 0o644), ("7777", 0o7777), ("0", 0)])
def test_permissions_are_octal_digits(digits: str, wanted: int) -> None:
    assert api.permissions(_request(f"mode={digits}")) == wanted


@pytest.mark.parametrize("digits", ["10000", "-1", "7" * 5000, "9", "x", "0x1ff"])
def test_other_permissions_are_refused(digits: str) -> None:
    with pytest.raises(ValueError, match=r"mode|literal"):
        api.permissions(_request(f"mode={digits}"))


def _request(query: str) -> Request:
    return Request({"type": "http", "query_string": query.encode(), "headers": []})
