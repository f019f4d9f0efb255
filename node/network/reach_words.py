"""Tell how a node is reached, in a sentence for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from learner.ledger.reach import VERDICTS
from node.runtime.formatting import counted, size
from protocol.reach import Reach, ReachKind, Way

KINDS: Mapping[ReachKind, str] = {
    ReachKind.DIRECTLY: "others dial it",
    ReachKind.MAPPED: "others dial a port that its router forwards",
    ReachKind.BY_PUNCHING: "others reach it by hole punching",
    ReachKind.NOT: "others cannot reach it; it dials those that can be dialled",
}
"""What the verdict of each kind means; `not known` needs no more words."""

WAYS = {
    Way.DIALLED: "dialled",
    Way.WAS_DIALLED: "dialled by them",
    Way.REVERSED: "dialled back",
    Way.PUNCHED: "punched",
    Way.RELAYED: "over a circuit",
}


def reach_words(reach: Reach, bytes_carried: int = 0) -> str:
    """Return a sentence on how a node is reached, how it met the peers that it is connected to, and what its circuits
    carried between others."""
    meaning = KINDS.get(reach.kind, "")
    kind = VERDICTS[reach.kind] + (f": {meaning}" if meaning else "")
    why = f" ({reach.why})" if reach.why else ""
    ways = Counter(meeting.way for meeting in reach.met)
    met = ", ".join(f"{number} {WAYS[way]}" for way, number in ways.items() if way in WAYS)
    carried = f"; {size(bytes_carried)} carried between others" if bytes_carried else ""
    return f"{kind}{why}; {counted(len(reach.met), 'connection')}{f': {met}' if met else ''}{carried}"
