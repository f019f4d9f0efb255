"""Describe a failed request by a kind for programs and one paragraph for people. No torch.

Invariants:

- Every exception becomes exactly one (kind, text).
- An exception that carries a `kind` keeps it.
"""

from __future__ import annotations

import msgspec


class BadRequest(ValueError):
    """The node asked for something impossible or contradictory; the message names the field."""

    kind = "bad_request"


class Elsewhere(Exception):
    """Another rank could not do its part of a request, so this rank stops as well."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def agreed(error: Exception) -> Exception:
    """Mark `error` as agreed: all ranks know that this rank could not do its part, and none waits for it."""
    error.__dict__["agreed"] = True
    return error


def is_agreed(error: Exception) -> bool:
    """Return whether no rank is left waiting. A disk error concerns one rank, so it must be marked; every other error
    comes from the request that all ranks were sent, so all ranks fail in the same way."""
    return not isinstance(error, OSError) or "agreed" in error.__dict__


def explain(error: BaseException) -> tuple[str, str]:
    """Return (kind, one paragraph) for a failed request. Kind "internal" means a bug here, or that memory ran out."""
    match error:
        case msgspec.ValidationError() | FileExistsError():
            kind = "bad_request"
        case OSError():
            place = f"{error.filename}: " if error.filename else ""
            return (
                "disk",
                f"{place}{error.strerror or error}; nothing was left half-written: "
                "free some space or choose another directory",
            )
        case _:
            kind = str(getattr(error, "kind", "internal"))
    return kind, " ".join(str(error).split()) or type(error).__name__
