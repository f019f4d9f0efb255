"""Decide for a machine that joins the first one: it begins when the first machine says so, and ends with it.

A pure core; `learner.training.distributed.machines.meeting` carries its messages.

    GATHERING -> TRAINING -> ENDING -> OVER      GATHERING -> OVER when it is refused, or the first machine is gone

Invariants:

- Its ranks are ended when the first machine says so, or is gone.
- `Finish` comes once, with the first machine's verdict if that can still be read.
"""

from __future__ import annotations

from dataclasses import dataclass

from learner.training.distributed.machines.messages import (
    FIRST,
    SETTLE_S,
    TIMEOUT_S,
    Begin,
    Cause,
    ConnectionLost,
    Effect,
    End,
    Ended,
    EndRanks,
    Event,
    Finish,
    Place,
    Present,
    State,
    Tell,
    Told,
    Wait,
    Word,
    explain_timeout,
    timeout,
)


@dataclass(kw_only=True)
class Other:
    """Machine `place.machine` of `machines`, with `ranks` ranks. `address` is its own, `reaches` the first machine's.

    `meeting`: where the first machine is, for people.
    """

    place: Place
    machines: int
    ranks: int
    meeting: str
    address: str
    reaches: str
    began_s: float
    state: State = State.GATHERING
    _count: int = 0
    _heard_count: int = 0
    _cause: Cause | None = None
    _own: Cause | None = None
    _has_ended: bool = False
    _stopped_s: float | None = None
    _deadline_s: float = 0.0
    _verdict: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        self._heard_s = self.began_s
        self._wait = Wait(since_s=self.began_s)

    def say(self, now_s: float) -> Present:
        """Return this machine's message at `now_s`."""
        self._count += 1
        own = self._own
        return Present(
            count=self._count,
            machines=self.machines,
            ranks=self.ranks,
            address=self.address,
            reaches=self.reaches,
            ended=self._has_ended,
            end=None
            if own is None
            else End(cause=own.text, words=own.words, lost_line=own.lost_line, ago_s=now_s - own.at_s),
        )

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Handle an event at `now_s` of a steady clock, and return its effects."""
        if self.state is State.OVER:
            return []
        match event:
            case Told(word=word) if word.count != self._heard_count:
                self._heard_count, self._heard_s = word.count, now_s
                return self._hear(word, now_s)
            case ConnectionLost(why=why):
                return self._lose(why, now_s)
            case Ended(end=end):
                self._take_own_end(end, now_s)
        if now_s - self._heard_s > TIMEOUT_S:
            return self._lose(timeout(self._heard_s, now_s), now_s)
        return self._go_on(now_s)

    def _hear(self, word: Word, now_s: float) -> list[Effect]:
        if word.verdict is not None:
            self._verdict = word.verdict
        if self.state is State.GATHERING:
            if why := word.refused.get(str(self.place)):
                return self._conclude((f"machine {FIRST} at {self.meeting} refuses this one: {why}",))
            if word.stop or word.verdict is not None:  # too late
                return self._lose("its run has ended", now_s)
            if str(self.place) in word.begin:
                self.state = State.TRAINING
                return [Begin()]
            if word.begin:
                why = f"training has begun with another machine {self.place.machine}. Try again when that has ended."
                return self._conclude((f"machine {FIRST} at {self.meeting} refuses this one: {why}",))
            if self._wait.is_news(now_s):
                return [Tell(text=f"this machine is ready, and waits for the others of {self.machines}")]
        stopped = self._stop(now_s) if word.stop or word.verdict is not None else []
        return [*stopped, *self._go_on(now_s)]

    def _lose(self, why: str, now_s: float) -> list[Effect]:
        """End everything, because the first machine is gone."""
        if self._has_ended and self._own is None and self._stopped_s is None:
            return self._conclude(self._verdict or ())  # this machine's ranks ended well, and so may the first one's
        if self._verdict is None and self._cause is None:
            self._cause = explain_timeout(FIRST, f"machine {FIRST} at {self.meeting}", self._heard_s, why)
        if self.state is State.GATHERING:
            return self._conclude((f"machine {FIRST} at {self.meeting} has gone: {why}",))
        return [*self._stop(now_s), *self._go_on(now_s)]

    def _stop(self, now_s: float) -> list[Effect]:
        if self._stopped_s is not None:
            return []
        self.state, self._stopped_s, self._deadline_s = State.ENDING, now_s, now_s + SETTLE_S
        return [] if self._has_ended else [EndRanks()]

    def _take_own_end(self, end: End | None, now_s: float) -> None:
        self._has_ended = True
        self._deadline_s = now_s + 2 * SETTLE_S  # the first waits that long for the others
        if end is not None and (self._stopped_s is None or now_s - end.ago_s < self._stopped_s):
            self._own = Cause(
                machine=self.place.machine,
                text=end.cause,
                words=end.words,
                lost_line=end.lost_line,
                at_s=now_s - end.ago_s,
            )
        if self.state is State.TRAINING:
            self.state = State.ENDING

    def _go_on(self, now_s: float) -> list[Effect]:
        is_known = self._verdict is not None or self._cause is not None
        if not self._has_ended or (not is_known and now_s < self._deadline_s):
            return []
        return self._conclude(self._lines())

    def _lines(self) -> tuple[str, ...]:
        """Return why it is over: the first machine's verdict, or else what is known here."""
        if self._verdict is not None:
            return self._verdict
        known = [cause for cause in (self._own, self._cause) if cause is not None]
        if not known:
            return ()
        first = min(known, key=lambda cause: cause.rank)
        return (f"{first.text}. All {self.ranks} ranks of this machine were ended", *first.words)

    def _conclude(self, lines: tuple[str, ...]) -> list[Effect]:
        self.state, self._has_ended = State.OVER, True
        return [Finish(lines=lines)]
