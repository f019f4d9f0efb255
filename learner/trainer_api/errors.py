"""What a failed request is told as: a kind for programs, one paragraph for people.

What always holds: every exception becomes exactly one (kind, text); an exception that carries a `kind` of its own keeps
it. No torch.
"""

from __future__ import annotations

import msgspec


class BadRequest(ValueError):
    """The node asked for something that makes no sense; the message names the field."""

    kind = "bad_request"


class Elsewhere(Exception):
    """Another rank could not do its part of a request; this one was told so, and stops as well."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def agreed(error: Exception) -> Exception:
    """Mark `error`: all ranks know that this one could not do its part, and none waits for it."""
    error.__dict__["agreed"] = True
    return error


def is_agreed(error: Exception) -> bool:
    """Whether no rank is left waiting: a disk refuses one rank something, all else comes of what all were sent."""
    return not isinstance(error, OSError) or "agreed" in error.__dict__


def explain(error: BaseException) -> tuple[str, str]:
    """Return (kind, one paragraph) for a failed request; kind "internal" is our own mistake, or memory that ran out."""
    match error:
        case msgspec.ValidationError() | FileExistsError():
            kind = "bad_request"
        case OSError():
            place = f"{error.filename}: " if error.filename else ""
            return (
                "disk",
                f"{place}{error.strerror or error}; nothing was left half-written: "
                "free some space or choose another place",
            )
        case _:
            kind = str(getattr(error, "kind", "internal"))
    return kind, " ".join(str(error).split()) or type(error).__name__
