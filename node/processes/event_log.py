"""Write the moments of a child's life as events of the program."""

from __future__ import annotations

from collections.abc import Callable

from node.processes.outcomes import ChildDied, ChildEvent, ChildSaid, ChildStarted
from node.runtime.events import EventLog


def child_events(events: EventLog, name: str) -> Callable[[ChildEvent], None]:
    """Return a function that emits a child's events, under the name that people know."""

    def on_event(event: ChildEvent) -> None:
        match event:
            case ChildStarted(pid=pid, start_s=start_s):
                events.emit("child_started", child=name, pid=pid, seconds=round(start_s, 2))
            case ChildSaid(line=line):
                events.emit("child_said", child=name, line=line)
            case ChildDied(exit=exit):
                events.emit("child_died", child=name, reason=exit.predicate, said="\n".join(exit.last_words))
            case _:
                events.emit("child_restarting" if hasattr(event, "attempt") else "child_abandoned", child=name)

    return on_event
