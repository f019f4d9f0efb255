"""Show a run as lines: every notice, and now and then the state in one line.

Invariant: each notice is written once, and a line is never longer than its texts' bounds allow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from node.reports.model.report import Role
from node.runtime import formatting as words
from node.ui.charts import clock
from node.ui.facts import UNABLE_CHARS, buffer
from node.ui.live_view import ViewState


@dataclass(kw_only=True)
class PlainLines:
    """Writes every notice as a line, and a status line every `every_s` seconds, to `write`."""

    write: Callable[[list[str]], object]
    every_s: float = 5.0
    _printed: int = 0
    _next_s: float = 0.0

    def update(self, state: ViewState) -> None:
        """Write what is new since the last call."""
        unseen = min(state.noted - self._printed, len(state.notices))
        lines = [f"{clock(one.at_s)} {one.text}" for one in list(state.notices)[len(state.notices) - unseen :]]
        self._printed = state.shown = state.noted
        if state.now_s >= self._next_s:
            lines.append(f"{clock(state.now_s)} {status_line(state)}")
            self._next_s = state.now_s + self.every_s
        if lines:
            self.write(lines)


def status_line(state: ViewState) -> str:
    """Return the state in one line of `key value` pairs."""
    if state.role is Role.LEARNER and not state.is_open:
        return f"{state.activity}, peers {len(state.present)}"
    if state.role is Role.ROLLOUT and state.installed is None and state.newest is None:
        return state.activity
    pairs: list[tuple[str, object]] = []
    if state.role is Role.LEARNER:
        pairs += [("step", state.step), ("version", state.newest or words.NOTHING)]
        pairs += [("reward", f"{state.rewards[-1]:.3f}")] if state.rewards else []
        pairs += [("entropy", f"{state.entropies[-1]:.3f}")] if state.entropies else []
        pairs += [("greedy", f"{state.greedy:.3f}")] if state.greedy is not None else []
        pairs += [("sampled", f"{state.sampled:.3f}")] if state.sampled is not None else []
        pairs += [("time left", words.duration(left))] if (left := state.left_s) is not None else []
    else:
        pairs += [("version", state.installed or words.NOTHING), ("newest", state.newest or words.NOTHING)]
        pairs += [("leased", state.pending)]
    pairs += [
        ("admitted", state.admitted),
        ("rejected", state.rejected),
        ("rollouts per s", words.rate(state.rate.per_s)),
    ]
    pairs += [("admitted in all", state.admitted_in_all)] if state.admitted_before else []
    if state.role is Role.LEARNER:
        pairs += [("buffer", buffer(state))] if state.batch else []
        pairs += [("peers", len(state.present))]
        pairs += [("ALARM", " and ".join(state.alarms))] if state.alarms else []
        pairs += [("NODES", words.plain_name(state.unable, UNABLE_CHARS))] if state.unable else []
    if state.sent_bytes is not None and state.received_bytes is not None:
        pairs += [("sent", words.size(state.sent_bytes)), ("received", words.size(state.received_bytes))]
    pairs += [("chunks up", words.size(state.bytes_up)), ("chunks down", words.size(state.bytes_down))]
    return ", ".join(f"{key} {value}" for key, value in pairs)
