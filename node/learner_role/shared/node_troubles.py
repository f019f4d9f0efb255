"""Keep the troubles that nodes report with their heartbeats, and log them if they are news."""

from __future__ import annotations

from collections import ChainMap

import trio

from node.learner_role.shared.context import LearnerContext
from protocol.core.ids import PeerId
from protocol.work import Heartbeat


def hear_troubles(context: LearnerContext, peer: PeerId, name: str, heartbeat: Heartbeat) -> None:
    """Note what the node with this `name` cannot do, and log what is new."""
    state, now_s, now_ms = context.state, trio.current_time(), context.now_ms()
    for trouble in state.troubles.record(
        peer, heartbeat.troubles, now_s=now_s, now_ms=now_ms, present=ChainMap(state.present, state.teachers)
    ):
        context.events.emit(
            "node_trouble",
            peer=peer,
            name=name,
            kind=trouble.kind.value,
            version=str(trouble.version) if trouble.version else None,
            times=trouble.times,
            reason=trouble.reason,
        )
