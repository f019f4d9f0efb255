"""Raise the exception that ended a nursery, instead of the group around it.

A nursery of our loops ends by one cause (a broken stream, a full disk), and the other tasks are only cancelled. Callers
want to catch the cause by its own type, so they use `first_cause` around a nursery whose tasks may raise one.

Invariants:

- A cancellation never hides an error, and a broken connection never hides an error of ours.
- The notes of the raised exception list the errors that happened at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from protocol.core.errors import PeerError
from swarm.transport.interface import TransportError


@contextmanager
def first_cause() -> Iterator[None]:
    """Raise the most severe exception of an ExceptionGroup instead of the group; the first of equally severe ones."""
    try:
        yield
    except BaseExceptionGroup as group:
        leaves = sorted(_leaves(group), key=_rank)
        cause = leaves[0]
        for other in leaves[1:]:
            if not isinstance(other, trio.Cancelled):
                cause.add_note(f"At the same time: {other!r}")
        context = cause.__context__
        try:
            raise cause
        finally:
            # `raise` made the group the context of the cause, and the group contains the cause. Restore the original.
            cause.__context__ = context
            del cause, leaves, context


def _rank(error: BaseException) -> int:
    """Return an error's rank, most severe first: Ctrl-C, unexpected errors, broken connections, cancellations."""
    match error:
        case trio.Cancelled():
            return 3
        case TransportError() | PeerError():
            return 2
        case Exception():
            return 1
        case _:
            return 0


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
