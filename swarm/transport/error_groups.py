"""What ended a nursery, instead of the group around it.

Our loops die of one cause (a broken stream, a full disk) and their siblings are only cancelled; callers want to catch
the cause by its own type. Used around a nursery whose tasks may raise such a cause. What always holds: an error is
never hidden behind a cancellation, nor a mistake of ours behind a broken line; what else went wrong at the same time
stands in the notes of the exception that is raised.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from protocol.core.errors import PeerError
from swarm.transport.interface import TransportError


@contextmanager
def first_cause() -> Iterator[None]:
    """Raise the gravest exception of an ExceptionGroup instead of the group; of several as grave, the first."""
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
            # `raise` has made the group its context, which holds the cause itself: put back what it was raised in.
            cause.__context__ = context
            del cause, leaves, context


def _rank(error: BaseException) -> int:
    """Ctrl-C before all others; then what is nobody's everyday trouble; a line that broke; a cancellation."""
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
