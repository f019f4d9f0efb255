"""Decide for the machine on which the node runs: it waits for the others, and says why training is over.

A pure core; `learner.training.distributed.machines.meeting` carries its messages.

    GATHERING -> TRAINING -> ENDING -> OVER      GATHERING -> OVER when its own launcher gives up

Invariants:

- Training begins when all machines have come and none is silent; one launcher holds each number.
- When a machine's ranks end with an error, or it vanishes, the ranks of all machines are ended.
- A rank that only lost its connection to another rank is not named while another cause is known.
- `Finish` comes once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from learner.training.distributed.machines.messages import (
    FIRST,
    SETTLE_S,
    STALE_S,
    TIMEOUT_S,
    Begin,
    Cause,
    Effect,
    End,
    Ended,
    EndRanks,
    Event,
    Finish,
    Place,
    Present,
    Read,
    State,
    Tell,
    Wait,
    Word,
    cause_of,
    explain_timeout,
    timeout,
)


@dataclass(kw_only=True, slots=True)
class Member:
    """Another machine that holds its number."""

    place: Place
    present: Present
    heard_s: float

    @property
    def called(self) -> str:
        where = f" ({self.present.address})" if self.present.address else ""
        return f"machine {self.place.machine}{where}"


@dataclass(kw_only=True)
class First:
    """The first of `machines` machines with `ranks` ranks each; `meeting` is where the others reach it.

    `places`: the holders of the numbers. Only messages from these, and from the newest place of each number, matter.
    """

    machines: int
    ranks: int
    meeting: str
    began_s: float
    state: State = State.GATHERING
    _count: int = 0
    _members: dict[int, Member] = field(default_factory=dict)
    _refused: dict[int, tuple[Place, str]] = field(default_factory=dict)
    _told: set[tuple[int, str]] = field(default_factory=set)
    _causes: list[Cause] = field(default_factory=list)
    _has_ended: bool = False
    _stopped_s: float | None = None
    _deadline_s: float = 0.0
    _verdict: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        self.places: tuple[Place, ...] = ()
        self._wait = Wait(since_s=self.began_s)

    def say(self, now_s: float) -> Word:
        """Return this machine's message."""
        self._count += 1
        return Word(
            count=self._count,
            refused={str(place): why for place, why in self._refused.values()},
            begin=()
            if self.state is State.GATHERING
            else tuple(str(self._members[machine].place) for machine in sorted(self._members)),
            stop=self._stopped_s is not None,
            verdict=self._verdict,
        )

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Handle an event at `now_s` of a steady clock, and return its effects."""
        effects: list[Effect] = []
        match event:
            case Read(present=present):
                for place in sorted(present):
                    effects += self._hear(place, present[place], now_s)
            case Ended(end=end):
                self._take_own_end(end, now_s)
        effects += self._go_on(now_s)
        self.places = tuple(member.place for member in self._members.values())
        return effects

    def _hear(self, place: Place, present: Present, now_s: float) -> list[Effect]:
        member = self._members.get(place.machine)
        if member is not None and member.place == place:
            if member.present.count != present.count:
                member.present, member.heard_s = present, now_s
            return []
        refused, _ = self._refused.get(place.machine, (None, ""))
        is_known = refused == place or (member is not None and place < member.place)
        if is_known or self.state is not State.GATHERING:  # a machine that comes too late sees who takes part
            return []
        if why := self._objection(present, member, now_s):
            return self._refuse(place, present, why)
        self._members[place.machine] = Member(place=place, present=present, heard_s=now_s)
        return []

    def _objection(self, present: Present, holder: Member | None, now_s: float) -> str:
        if (present.machines, present.ranks) != (self.machines, self.ranks):
            return (
                f"it was started with {present.ranks} ranks and {present.machines} machines, but [trainer] has ranks "
                f"= {self.ranks} and machines = {self.machines}. Start it with the same numbers."
            )
        if holder is not None and not holder.present.ended and now_s - holder.heard_s < STALE_S:
            return f"{holder.called} is here already. Give each machine its own number, from 1."
        return ""

    def _refuse(self, place: Place, present: Present, why: str) -> list[Effect]:
        """Refuse the machine. Report that only once for each reason, however often it is started again."""
        self._refused[place.machine] = place, why
        if (place.machine, why) in self._told:
            return []
        self._told.add((place.machine, why))
        return [Tell(text=f"machine {place.machine} ({present.address}) may not take part: {why}")]

    def _take_own_end(self, end: End | None, now_s: float) -> None:
        self._has_ended = True
        self._deadline_s = now_s + SETTLE_S
        if end is not None and (self._stopped_s is None or now_s - end.ago_s < self._stopped_s):
            self._causes.append(cause_of(FIRST, f"machine {FIRST}", end, now_s - end.ago_s))

    def _go_on(self, now_s: float) -> list[Effect]:
        match self.state:
            case State.GATHERING:
                return self._gather(now_s)
            case State.TRAINING:
                return self._watch(now_s)
            case State.ENDING:
                return self._settle(now_s)
            case State.OVER:
                return []

    def _gather(self, now_s: float) -> list[Effect]:
        for machine, member in list(self._members.items()):
            if member.present.ended or now_s - member.heard_s > TIMEOUT_S:
                del self._members[machine]
        if self._has_ended:  # its launcher gave up
            return self._conclude()
        heard = {machine for machine, member in self._members.items() if now_s - member.heard_s <= STALE_S}
        missing = [machine for machine in range(1, self.machines) if machine not in heard]
        if not missing:
            self.state = State.TRAINING
            members = [self._members[machine] for machine in sorted(self._members)]
            return [Begin(reached=tuple(member.present.reaches for member in members))]
        return [Tell(text=self._waits_for(missing, now_s))] if self._wait.is_news(now_s) else []

    def _waits_for(self, missing: Sequence[int], now_s: float) -> str:
        here = ", ".join(self._members[machine].called for machine in sorted(self._members) if machine not in missing)
        return (
            f"the trainer has waited {now_s - self.began_s:.0f} s for machine {', '.join(map(str, missing))} of "
            f"{self.machines}{f'; {here} came' if here else ''}. Run there: "
            f"python -m learner.training.distributed.launcher {self.ranks} {self.machines} "
            f"{missing[0] if len(missing) == 1 else 'NUMBER'} {self.meeting}"
        )

    def _watch(self, now_s: float) -> list[Effect]:
        self._note()
        for member in self._members.values():
            if now_s - member.heard_s > TIMEOUT_S:  # even if its ranks ended well, because this machine's have not
                self._causes.append(self._gone(member, now_s))
        if not self._causes and not self._has_ended:
            return []
        self.state = State.ENDING
        self._deadline_s = now_s + SETTLE_S
        if self._causes:
            self._stopped_s = now_s
        end_ranks: list[Effect] = [EndRanks()] if self._causes and not self._has_ended else []
        return [*end_ranks, *self._settle(now_s)]

    def _settle(self, now_s: float) -> list[Effect]:
        self._note()
        if self._causes and self._stopped_s is None:  # this machine's ranks had ended well
            self._stopped_s = now_s
        waits = [member for member in self._members.values() if not member.present.ended]
        silent = [member for member in waits if now_s - member.heard_s > STALE_S]
        if not self._has_ended or (len(silent) < len(waits) and now_s < self._deadline_s):
            return []
        known = {cause.machine for cause in self._causes}
        self._causes += [self._gone(member, now_s) for member in silent if member.place.machine not in known]
        return self._conclude()

    def _note(self) -> None:
        """Add the ends that the others reported, each once. They do not report ends that were ordered."""
        known = {cause.machine for cause in self._causes}
        for machine, member in self._members.items():
            end = member.present.end
            if end is not None and machine not in known:
                self._causes.append(cause_of(machine, member.called, end, member.heard_s - end.ago_s))

    def _gone(self, member: Member, now_s: float) -> Cause:
        return explain_timeout(member.place.machine, member.called, member.heard_s, timeout(member.heard_s, now_s))

    def _conclude(self) -> list[Effect]:
        self.state = State.OVER
        self._verdict = ()
        if self._causes:
            first = min(self._causes, key=lambda cause: cause.rank)
            every = f"All {self.ranks * self.machines} ranks of {self.machines} machines were ended"
            self._verdict = (f"{first.text}. {every}", *first.words)
        return [Finish(lines=self._verdict)]
