"""The errors that the gateway answers with; each wire format gives them its own shape."""

from __future__ import annotations

from enum import StrEnum


class Problem(StrEnum):
    """The closed list of errors. The value is the error's `code` on the wire."""

    INVALID = "invalid_request"
    TOO_LONG = "context_length_exceeded"
    UNAUTHORIZED = "invalid_api_key"
    LIMIT = "session_limit"  # the session is over: a retry cannot help
    NOT_FOUND = "not_found"
    TOO_LARGE = "request_too_large"
    BUSY = "too_many_requests"  # of this session at a time; a retry may help
    ENGINE = "engine_error"  # a retry may help
    OBSERVER = "session_failed"  # the session's observer failed; the session is over
    DEFECT = "internal_error"  # of the gateway or the chat behind it; the log says more


# HTTP status, type for OpenAI's clients, type for Anthropic's, status for Google's
_TYPES = {
    Problem.INVALID: (400, "invalid_request_error", "invalid_request_error", "INVALID_ARGUMENT"),
    Problem.TOO_LONG: (400, "invalid_request_error", "invalid_request_error", "INVALID_ARGUMENT"),
    Problem.UNAUTHORIZED: (401, "authentication_error", "authentication_error", "UNAUTHENTICATED"),
    # Command-line clients retry 408, 409, 429 and 5xx, some of them for minutes; none retries 403.
    Problem.LIMIT: (403, "permission_error", "permission_error", "PERMISSION_DENIED"),
    Problem.OBSERVER: (403, "permission_error", "permission_error", "PERMISSION_DENIED"),
    Problem.NOT_FOUND: (404, "invalid_request_error", "not_found_error", "NOT_FOUND"),
    Problem.TOO_LARGE: (413, "invalid_request_error", "request_too_large", "INVALID_ARGUMENT"),
    Problem.BUSY: (429, "rate_limit_error", "rate_limit_error", "RESOURCE_EXHAUSTED"),
    Problem.ENGINE: (503, "server_error", "api_error", "UNAVAILABLE"),
    Problem.DEFECT: (500, "server_error", "api_error", "INTERNAL"),
}


class GatewayError(Exception):
    """A request that gets no reply.

    Args:
        param: the field of the request that is at fault.
        prompt_tokens, context_tokens: of TOO_LONG.
    """

    def __init__(
        self,
        problem: Problem,
        message: str,
        *,
        param: str | None = None,
        prompt_tokens: int = 0,
        context_tokens: int = 0,
    ) -> None:
        super().__init__(message)
        self.problem = problem
        self.status, self.openai_type, self.anthropic_type, self.google_status = _TYPES[problem]
        self.param = param
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens


def invalid(message: str, param: str | None = None) -> GatewayError:
    return GatewayError(Problem.INVALID, message, param=param)


def defect() -> GatewayError:
    return GatewayError(Problem.DEFECT, "the gateway failed unexpectedly: its log has the traceback")
