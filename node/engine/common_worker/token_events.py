"""Send tokens as they are drawn, to callers that asked for them with their `generate` request.

A call that names a `stream` receives its tokens in events before its reply, which is the same as without them:

    {"event": "tokens", "stream": name}   arrays: by row `rows`, `starts`, `lengths` int32; `tokens`, `logprobs` flat

Invariants:

- A row's tokens come in order. A row that is restarted is sent again from an earlier start, so a listener must heed
  `starts`.
- Nothing is sent for a call that was answered, or that named no stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from protocol.core.pipe import Arrays, Header

from .generate_call import Call, Row


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Tokens of a row from `start` on, with their logprobs."""

    row: Row
    start: int
    tokens: Sequence[int]
    logprobs: Sequence[float]


def listens(row: Row) -> bool:
    """Return whether a caller waits for this row's tokens as they come."""
    return row.call.stream is not None and not row.call.answered


def token_events(drawn: Sequence[Drawn]) -> Iterator[tuple[Header, Arrays]]:
    """Yield one event for each call among `drawn`."""
    calls: dict[int, list[Drawn]] = {}
    names: dict[int, Call] = {}
    for one in drawn:
        calls.setdefault(one.row.call.id, []).append(one)
        names[one.row.call.id] = one.row.call
    for id, mine in calls.items():
        yield (
            {"event": "tokens", "stream": names[id].stream},
            {
                "rows": np.array([one.row.number for one in mine], np.int32),
                "starts": np.array([one.start for one in mine], np.int32),
                "lengths": np.array([len(one.tokens) for one in mine], np.int32),
                "tokens": np.array([token for one in mine for token in one.tokens], np.int32),
                "logprobs": np.array([logprob for one in mine for logprob in one.logprobs], np.float32),
            },
        )
