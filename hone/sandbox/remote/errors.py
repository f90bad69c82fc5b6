"""Exceptions on the wire: the server sends an `ErrorBody`, and the client raises the same exception.

SandboxError and its subclasses     the class's own `code`
OSError of a file operation         "os_error", with its errno; never a file name of the server's
ValueError (a bad request)          "bad_request"
anything else                       "internal", without any detail of the server
"""

from __future__ import annotations

import errno
import os

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from hone.sandbox.contract import (
    ImageUnavailable,
    LeaseLost,
    ProviderUnavailable,
    QueueTimeout,
    SandboxError,
    SandboxLost,
    TooLarge,
    Unauthorized,
)
from hone.sandbox.remote.wire import ErrorBody
from hone.utils.http_memory import ServerBusy
from hone.utils.http_server import BodyTooLarge, model_response

INTERNAL = "the server met an error that it did not expect; its log says more"
_STATUS: dict[type[SandboxError], int] = {
    SandboxError: 422,
    SandboxLost: 410,
    LeaseLost: 410,
    TooLarge: 413,
    ProviderUnavailable: 503,
    QueueTimeout: 504,
    Unauthorized: 401,
    ImageUnavailable: 424,
}
_BY_CODE = {kind.code: kind for kind in _STATUS if kind is not ImageUnavailable}
_OS_STATUS = {
    errno.ENOENT: 404,
    errno.EACCES: 403,
    errno.EPERM: 403,
    errno.EEXIST: 409,
    errno.ENOSPC: 507,
    errno.EDQUOT: 507,
}
_ERRNO: dict[type[OSError], int] = {  # for exceptions that were raised without an errno
    FileNotFoundError: errno.ENOENT,
    FileExistsError: errno.EEXIST,
    IsADirectoryError: errno.EISDIR,
    NotADirectoryError: errno.ENOTDIR,
    PermissionError: errno.EACCES,
}


EXPECTED = (SandboxError, BodyTooLarge, ServerBusy, OSError, ValueError)  # not defects of the server


def error_response(error: BaseException) -> Response:
    status, body = to_body(error)
    return model_response(body, status)


def to_body(error: BaseException) -> tuple[int, ErrorBody]:
    """Return the HTTP status and the body that describe an exception."""
    if isinstance(error, HTTPException):  # no such path, or not with this method
        return error.status_code, ErrorBody(error=str(error.detail), code="bad_request", retryable=False)
    if isinstance(error, BodyTooLarge):
        error = TooLarge(str(error))
    if isinstance(error, ServerBusy):
        error = ProviderUnavailable(str(error), retryable=True)
    if isinstance(error, SandboxError):
        kind = next(kind for kind in type(error).__mro__ if kind in _STATUS)
        problem = error.problem if isinstance(error, ImageUnavailable) else ""
        body = ErrorBody(error=str(error), code=kind.code, retryable=error.retryable, problem=problem)
        return _STATUS[kind], body
    if isinstance(error, OSError) and (number := error.errno or _ERRNO.get(type(error), 0)):
        said = error.strerror or str(error) or os.strerror(number)
        body = ErrorBody(error=said, code="os_error", retryable=False, errno=number)
        return _OS_STATUS.get(number, 422), body
    if isinstance(error, ValueError):
        return 400, ErrorBody(error=_sentence(error), code="bad_request", retryable=False)
    return 500, ErrorBody(error=INTERNAL, code="internal", retryable=False)


def from_body(body: ErrorBody) -> Exception:
    """Return the exception that the server raised: the same class, with the same message.

    Unknown codes, and "internal", become SandboxError.
    """
    if body.code == "os_error":
        return OSError(body.errno, body.error)  # its constructor returns FileNotFoundError etc.
    if body.code == "bad_request":
        return ValueError(body.error)
    if body.code == ImageUnavailable.code and body.problem:
        return ImageUnavailable(body.error, problem=body.problem, retryable=body.retryable)
    kind = _BY_CODE.get(body.code, SandboxError)
    if issubclass(kind, ProviderUnavailable):
        return kind(body.error, retryable=body.retryable)
    return kind(body.error)


def _sentence(error: ValueError) -> str:
    """Return the message in one line; for pydantic errors the fields and problems, never the values."""
    if not isinstance(error, ValidationError):
        return " ".join(str(error).split()) or "the request is malformed"
    found = [
        f"{'.'.join(map(str, part['loc'])) or 'the body'}: {part['msg']}"
        for part in error.errors(include_url=False, include_input=False, include_context=False)[:5]
    ]
    return "; ".join(found)
