"""Handle what the learner sends beside leases: introductions to peers, lease recalls, revised receipts.

Invariants:

- If two peers can both be dialled, only one of them dials.
- No message raises an error.
- Only peers that the learner introduced, or that we dialled, have the budgets of a member here.
"""

from __future__ import annotations

from collections.abc import Callable

from node.network.first_contact import apart
from node.runtime.events import Clock, EventLog
from protocol.work import Introduction, LeaseRecall, Window
from swarm.work.client import Connected, Disconnected, NoLease, ReceiptRevised, SessionEvent

CLOCK_TOLERATED_MS = 5 * 60 * 1000
"""Milliseconds between our clock and the learner's above which the owner is told. Leases use the learner's clock, hours
ours."""


def session_event_handler(
    events: EventLog,
    meet: Callable[[Introduction], None],
    recalled: Callable[[LeaseRecall], None],
    revised: Callable[[ReceiptRevised], None],
    now_ms: Callable[[], int] = Clock.now_ms,
) -> Callable[[SessionEvent], None]:
    """Return a handler for the connection's events: it logs them, introduces peers, drops leases and keeps receipts.

    If our clock differs from the learner's, the owner is told once.
    """
    is_clock_told = False

    def tell_clock(learners_ms: int) -> None:
        nonlocal is_clock_told
        offset_ms = learners_ms - (here_ms := now_ms())
        if abs(offset_ms) > CLOCK_TOLERATED_MS and not is_clock_told:
            is_clock_told = True
            events.emit("clock_differs", offset_s=round(offset_ms / 1000), text=apart(here_ms, learners_ms))

    def on_event(event: SessionEvent) -> None:
        match event:
            case Connected(learner=learner, welcome=welcome):
                tell_clock(welcome.now_ms)
                newest = str(welcome.newest) if welcome.newest else None
                events.emit("joined", learner=learner, staleness=welcome.staleness, newest=newest)
                meet(Introduction(peers=welcome.peers))
            case Disconnected(reason=reason, pause_s=pause, refused=refused):
                events.emit("turned_away" if refused else "learner_unreachable", reason=reason, retry_s=round(pause, 1))
            case Introduction():
                meet(event)
            case Window(staleness=staleness):
                events.emit("window_changed", staleness=staleness)
            case LeaseRecall():
                recalled(event)
            case ReceiptRevised():
                revised(event)
            case NoLease(reason=reason):
                events.emit("no_lease", reason=reason)

    return on_event
