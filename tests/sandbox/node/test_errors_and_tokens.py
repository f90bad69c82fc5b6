"""Errors arrive as they were raised; tokens are read from safe files, and found wherever they may come."""

from __future__ import annotations

import base64
import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from starlette.requests import Request

from hone.sandbox import (
    ImageUnavailable,
    LeaseLost,
    ProviderUnavailable,
    QueueTimeout,
    SandboxError,
    SandboxLost,
    TooLarge,
    Unauthorized,
)
from hone.sandbox.remote.errors import INTERNAL, from_body, to_body
from hone.sandbox.remote.server import read_token, refuse_open_door
from hone.sandbox.remote.wire import ErrorBody, ExecRequest
from hone.utils.http_server import is_same_token, presented_token

ERRORS = (
    SandboxError("a"),
    SandboxLost("b"),
    LeaseLost("c"),
    TooLarge("d"),
    ProviderUnavailable("e", retryable=True),
    ProviderUnavailable("f", retryable=False),
    QueueTimeout("g"),
    Unauthorized("h"),
    ImageUnavailable("i", problem="disk_full"),
    ImageUnavailable("j", problem="registry_unavailable", retryable=True),
    FileNotFoundError(errno.ENOENT, "no such file"),
    IsADirectoryError(errno.EISDIR, "is a directory"),
    PermissionError(errno.EACCES, "denied"),
    OSError(errno.ENOSPC, "full"),
    ValueError("k"),
)


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_error_arrives_as_it_was_raised(error: Exception) -> None:
    status, body = to_body(error)
    assert 400 <= status < 600
    with pytest.raises(type(error)) as raised:
        raise from_body(ErrorBody.model_validate_json(body.model_dump_json()))
    assert type(raised.value) is type(error)
    assert str(raised.value) == str(error)
    for name in ("retryable", "problem", "errno"):
        assert getattr(raised.value, name, None) == getattr(error, name, None)


def test_each_error_has_its_http_status() -> None:
    statuses = {type(error): to_body(error)[0] for error in ERRORS}
    assert statuses[Unauthorized] == 401
    assert statuses[FileNotFoundError] == 404
    assert statuses[SandboxLost] == 410
    assert statuses[TooLarge] == 413
    assert statuses[ProviderUnavailable] == 503
    assert statuses[ValueError] == 400


def test_unexpected_error_hides_server_details() -> None:
    for error in (KeyError("/etc/secret"), RuntimeError("password"), OSError("no number")):
        status, body = to_body(error)
        assert (status, body.code, body.error) == (500, "internal", INTERNAL)
    with pytest.raises(SandboxError, match="did not expect"):
        raise from_body(body)


def test_error_hides_file_names_of_the_server() -> None:
    _, body = to_body(FileNotFoundError(errno.ENOENT, "No such file", "/srv/secret/path"))
    assert "secret" not in body.model_dump_json()


def test_validation_error_names_fields_and_hides_values() -> None:
    with pytest.raises(ValidationError) as raised:
        ExecRequest.model_validate_json('{"command": "x", "timeout_s": -77.5, "wrong": 1}')
    status, body = to_body(raised.value)
    assert (status, body.code) == (400, "bad_request")
    assert "timeout_s" in body.error
    assert "wrong" in body.error
    assert "77.5" not in body.error
    assert "\n" not in body.error


def _file(tmp_path: Path, text: str, mode: int = 0o600) -> Path:
    path = tmp_path / "token"
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_token_is_read_without_white_space(tmp_path: Path) -> None:
    assert read_token(_file(tmp_path, "  s3cret\n")) == "s3cret"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o602])
def test_token_file_open_to_others_is_refused(mode: int, tmp_path: Path) -> None:
    with pytest.raises(ProviderUnavailable, match="chmod 600"):
        read_token(_file(tmp_path, "s3cret", mode))


@pytest.mark.parametrize("text", ["", "\n", "two words", "two\nlines", "é", "x" * 5000])
def test_a_token_file_without_one_plain_token_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ProviderUnavailable, match="one line of printable ASCII"):
        read_token(_file(tmp_path, text))


def test_a_missing_token_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ProviderUnavailable, match="cannot be read"):
            read_token(path)


def _request(headers: dict[str, str], query: str = "") -> Request:
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    return Request({"type": "http", "headers": raw, "query_string": query.encode()})


def _basic(text: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(text.encode()).decode()}


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({"Authorization": "Bearer s3cret"}, ""),
        ({"authorization": "bearer s3cret"}, "token=other"),
        (_basic("s3cret:"), ""),
        (_basic(":s3cret"), ""),
        ({}, "token=s3cret"),
    ],
)
def test_token_is_accepted_in_header_or_address(headers: dict[str, str], query: str) -> None:
    assert is_same_token(presented_token(_request(headers, query)), "s3cret")


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({}, ""),
        ({"Authorization": "Bearer"}, ""),
        ({"Authorization": "Bearer s3cre"}, ""),
        ({"Authorization": "Bearer other"}, "token=s3cret"),
        ({"Authorization": "Basic !!!"}, ""),
        ({"Authorization": "Digest s3cret"}, ""),
        ({"Authorization": "Bearer \xff\xfe"}, ""),
        ({}, "token=%ff%fe"),
    ],
)
def test_any_other_token_is_refused(headers: dict[str, str], query: str) -> None:
    assert not is_same_token(presented_token(_request(headers, query)), "s3cret")


@given(given_text=st.text())
def test_only_the_exact_token_matches(given_text: str) -> None:
    assert is_same_token(given_text, "s3cret") == (given_text == "s3cret")
    assert not is_same_token(given_text, "")


def test_server_without_token_listens_on_loopback_only() -> None:
    for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8"):
        refuse_open_door(host, "")
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.com", ""):
        with pytest.raises(ProviderUnavailable, match="loopback"):
            refuse_open_door(host, "")
        refuse_open_door(host, "token")
