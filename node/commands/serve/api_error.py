"""Describe errors of requests in the form that OpenAI's clients read."""

from __future__ import annotations

from typing import Any

from node.commands.serve.limits import RETRY_AFTER_S

KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
"""Types of errors by HTTP status; all others are "invalid_request_error"."""


class ApiError(Exception):
    """An error answer. `param`: the wrong field of the request. `code`: a word for programs."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    @property
    def body(self) -> dict[str, Any]:
        """Return the body of the answer."""
        kind = KINDS.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Return additional headers of the answer."""
        if self.status in (429, 503):
            return [("Retry-After", str(RETRY_AFTER_S))]
        return [("WWW-Authenticate", "Bearer")] if self.status == 401 else []


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return the error for a request that is itself wrong."""
    return ApiError(400, message, param=param, code=code)


def busy(message: str) -> ApiError:
    """Return the error for a request that may be repeated later."""
    return ApiError(429, message, code="rate_limit_exceeded")
