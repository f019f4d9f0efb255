"""What a request is answered with that cannot be done, in the shape that OpenAI's clients read."""

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
"""Types of errors by status; of others "invalid_request_error"."""


class ApiError(Exception):
    """`param` is the field of the request that is at fault, `code` a word for programs."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    @property
    def body(self) -> dict[str, Any]:
        """The answer."""
        kind = KINDS.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> list[tuple[str, str]]:
        """What the answer's head has besides."""
        if self.status in (429, 503):
            return [("Retry-After", str(RETRY_AFTER_S))]
        return [("WWW-Authenticate", "Bearer")] if self.status == 401 else []


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A request that is wrong in itself."""
    return ApiError(400, message, param=param, code=code)


def busy(message: str) -> ApiError:
    """A request that may be made again later."""
    return ApiError(429, message, code="rate_limit_exceeded")
