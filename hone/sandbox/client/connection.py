"""Requests to node and pool servers, whose errors arrive as the exceptions of the sandbox contract."""

from __future__ import annotations

import aiohttp
from pydantic import ValidationError

from hone.sandbox.contract import ProviderUnavailable
from hone.sandbox.remote.errors import from_body
from hone.sandbox.remote.wire import ErrorBody
from hone.utils.http_client import HttpClient, HttpError


class Unreachable(ProviderUnavailable):
    """No complete reply arrived: the server may or may not have done what it was asked."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=True)


def connect(session: aiohttp.ClientSession, url: str, token: str) -> HttpClient:
    """Return a client whose requests raise what the server raised, or Unreachable."""
    return HttpClient(session, url, token=token, translate=_to_exception)


def _to_exception(error: HttpError) -> Exception:
    if error.status is None:
        return Unreachable(str(error))
    try:
        return from_body(ErrorBody.model_validate_json(error.body))
    except ValidationError:
        return ProviderUnavailable(
            f"{error}. This is not the reply of a node or pool server: check the address",
            retryable=error.status >= 500,
        )
