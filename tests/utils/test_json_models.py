"""Documents of any size are read as pydantic reads them; hostile ones are refused before they are built."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from hone.sandbox.node import exec_server
from hone.sandbox.pool import compatible
from hone.sandbox.remote import wire
from hone.utils import json_models
from hone.utils.json_models import LONG, SMALL, read_json
from tests.examples import examples
from tests.fuzz.messages import objects

MODELS = (
    *(wire.CreateRequest, wire.ExecRequest, wire.RenewRequest),
    *(wire.LeaseRequest, wire.HeartbeatRequest, wire.NodeRequest),
    *(exec_server.Create, exec_server.Of, exec_server.Call, exec_server.Exec, exec_server.Evaluate),
    *(compatible.Allocate, compatible.OfLease, compatible.Call),
)
DOCUMENTS = st.sampled_from(MODELS).flatmap(lambda model: st.tuples(st.just(model), objects(model)))


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(document=DOCUMENTS)
def test_documents_are_read_as_pydantic_reads_them(document: tuple[type[BaseModel], object]) -> None:
    model, fields = document
    data = json.dumps(fields).encode()
    try:
        expected = model.model_validate_json(data)
    except ValidationError:
        expected = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_models, "SMALL", 0)
        try:
            found = read_json(model, data)
        except ValueError:
            found = None
    assert found == expected or not _is_json(fields)


def _is_json(value: object) -> bool:
    """Whether JSON has all of a value's numbers and texts; pydantic reads more than that."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return abs(value) < 10**300
    if isinstance(value, str):
        return value.isprintable() or value.encode("utf-8", "replace").decode() == value
    if isinstance(value, dict):
        return all(_is_json(part) for pair in value.items() for part in pair)
    return not isinstance(value, list) or all(map(_is_json, value))


@pytest.mark.parametrize("item", ["[]", "{}", "0", "null", "[[[[]]]]"])
@pytest.mark.parametrize(
    ("model", "document"),
    [
        (wire.ExecRequest, '{"command": [%s]}'),
        (wire.CreateRequest, '{"spec": [%s]}'),
        (wire.CreateRequest, '{"spec": {"network": [%s]}}'),
        (wire.RenewRequest, '{"ttl_s": 1, "ids": [%s]}'),
        (wire.HeartbeatRequest, '{"leases": [%s]}'),
        (exec_server.Evaluate, '{"container_id": "a", "patch": [%s]}'),
        (compatible.Call, '{"lease_id": "a", "patch": [%s]}'),
    ],
)
def test_trees_are_refused_at_their_first_wrong_value(
    model: type[BaseModel], document: str, item: str
) -> None:
    """pydantic would name each of them; this names one."""
    with pytest.raises(ValueError, match=r"\w") as refused:
        read_json(model, (document % ",".join([item] * SMALL)).encode())
    assert not isinstance(refused.value, ValidationError)
    assert len(str(refused.value)) < 200


def test_deep_documents_are_refused() -> None:
    for model in MODELS:
        with pytest.raises(ValueError, match=r"\w"):
            read_json(model, b'{"lease_id":' * SMALL)


def test_unknown_fields_are_ignored_only_below_the_limit() -> None:
    def document(size: int) -> bytes:
        return json.dumps({"container_id": "a", "odd": "x" * size}).encode()

    assert read_json(exec_server.Call, document(2 * SMALL)).container_id == "a"
    with pytest.raises(ValueError, match="unknown field `odd`"):
        read_json(exec_server.Call, document(LONG))
