"""What the gateway answers instead of a reply; each wire format gives it its own shape."""

from __future__ import annotations

from enum import StrEnum


class Problem(StrEnum):
    """The closed list of refusals. The value is the error's `code` on the wire."""

    INVALID = "invalid_request"
    TOO_LONG = "context_length_exceeded"
    UNAUTHORIZED = "invalid_api_key"
    LIMIT = "session_limit"  # the session is over: asking again cannot help
    NOT_FOUND = "not_found"
    TOO_LARGE = "request_too_large"
    ENGINE = "engine_error"  # asking again may help
    OBSERVER = "session_failed"  # who watches the session could not go on; it is over
    DEFECT = "internal_error"  # of the gateway, or of what it stands before; its log says more


STATUS = {
    Problem.INVALID: 400,
    Problem.TOO_LONG: 400,
    Problem.UNAUTHORIZED: 401,
    # Command-line clients retry 408, 409, 429 and 5xx, some of them for minutes; none retries 403.
    Problem.LIMIT: 403,
    Problem.OBSERVER: 403,
    Problem.NOT_FOUND: 404,
    Problem.TOO_LARGE: 413,
    Problem.ENGINE: 503,
    Problem.DEFECT: 500,
}


class GatewayError(Exception):
    """A request that gets no reply; the message says why and what to do."""

    def __init__(self, problem: Problem, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.problem = problem
        self.param = param  # the field of the request that is at fault
        self.prompt_tokens = self.context_tokens = 0  # of TOO_LONG

    @property
    def status(self) -> int:
        return STATUS[self.problem]


def invalid(message: str, param: str | None = None) -> GatewayError:
    return GatewayError(Problem.INVALID, message, param=param)


def too_long(prompt_tokens: int, context_tokens: int) -> GatewayError:
    """In the words by which clients recognise that they must shorten their history."""
    error = GatewayError(
        Problem.TOO_LONG,
        f"This model's maximum context length is {context_tokens} tokens, and the messages have "
        f"{prompt_tokens}: shorten them.",
        param="messages",
    )
    error.prompt_tokens, error.context_tokens = prompt_tokens, context_tokens
    return error


def defect() -> GatewayError:
    return GatewayError(
        Problem.DEFECT, "the gateway failed in a way that nobody expected; its log says where"
    )
