"""Who is on and how often versions are published, decided again and again while rates, prices and peers change.

Pure: `Planner.review` takes what is known now and answers with who is to be on, kappa, and every change with its
reason; the time is in the `Situation`, in seconds of any clock. ECHO-2 (sections 3.4, 3.5, B.2.1) adds cheap workers
when the pool is persistently below target and gradually releases expensive ones when it is well above; here that is
three rules, tried in this order:

    short    what is on supplies too little, for longer the less it lacks, or somebody left: the cheapest addition, now
    better   another set has been cheaper, by what moving to it costs and more, for a while: who is new in it is
             switched on, and once they supply, who is not in it is released, the dearest first, a few per review
    enough   otherwise nobody is switched on or off

What always holds: nobody is released on the word of a newcomer, whose rate is a promise until it has delivered, nor
before the others suffice with their margin; who was switched on stays so long that its start was worth it, unless it
delivers nothing; where not even everybody suffices, everybody is on. With S = 0 too: learner and peers take turns, so
each of them makes the step shorter.

A swap that had to be taken back doubles the time that the next one must look better (`patience`), so whatever the
noise, changes that undo each other become rare. The numbers are in `pace`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from statistics import median

from learner.provisioning import reasons
from learner.provisioning.activation import MARGIN, PLAN_STANDS_S, Choice, cheapest, greedy
from learner.provisioning.overlap import Clockwork
from learner.provisioning.pace import (
    BETTER_REVIEWS,
    EXACT_ADDITIONS,
    HELD,
    LOOK_REVIEWS,
    PATIENCE_MOST,
    PAYS,
    RELEASED,
    SAVING,
    SEVERE,
    SEVERE_REVIEWS,
    SHORT,
    SHORT_REVIEWS,
    SURPLUS,
    TRIED_AGAIN_S,
)
from learner.provisioning.period import Publishing, choose_kappa, usual_delay_s
from learner.provisioning.pool import Pool
from learner.provisioning.review import Change, Decision, Settings, Situation
from learner.provisioning.turns import Turns

__all__ = ["Change", "Decision", "Planner", "Settings", "Situation"]


@dataclass(kw_only=True)
class _Aim:
    """A better set, since when it is that, and whether moving to it has begun."""

    names: frozenset[str]
    since_s: float
    begun: bool = False


@dataclass
class _Lasting:
    """For how long something has been so without a break."""

    since_s: float | None = None

    def update(self, is_so: bool, now_s: float) -> float:
        """Seconds; negative if it is not so."""
        if not is_so:
            self.since_s = None
            return -1.0
        self.since_s = now_s if self.since_s is None else self.since_s
        return now_s - self.since_s


@dataclass
class _State:
    """What a planner remembers, beside the turns."""

    aim: _Aim | None = None
    looked_s: float = -math.inf
    offers: frozenset[tuple[str, float]] = frozenset()
    offered_s: float = 0.0
    """Who is there at what price, and since when that has not changed."""
    patience: float = 1.0
    doubted_s: float = -math.inf
    """What BETTER_REVIEWS is multiplied by, and when that was last changed."""
    severe: _Lasting = field(default_factory=_Lasting)
    short: _Lasting = field(default_factory=_Lasting)
    thin: _Lasting = field(default_factory=_Lasting)
    kappa: int | None = None
    other_kappa: _Lasting = field(default_factory=_Lasting)


class Planner:
    """One swarm's. `review` may take `activation.SOLVER_S`: a driver calls it on a worker thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._state = _State()
        self._turns = Turns(settings.review_s)
        self._pool: Pool | None = None
        self._everybody: str | None = None
        self._now_s = 0.0
        self._changes: list[Change] = []

    def review(self, situation: Situation) -> Decision:
        """Decide anew; at any time, in order of `now_s`."""
        state, self._now_s, self._changes = self._state, situation.now_s, []
        num_left = self._turns.follow(self._now_s, situation.candidates)
        for name, lasted_s in self._turns.end_trials(self._now_s, situation.candidates, situation.unproven):
            self._changes.append(Change(peer=name, on=False, reason=reasons.trial_failed(lasted_s)))
        before, kappa = state.kappa, self._review_kappa(situation)
        pool = self._pool = self._pool_of(situation, kappa)
        offers = frozenset((one.name, one.running_price) for one in pool.candidates)
        if offers != state.offers:
            state.offers, state.offered_s = offers, self._now_s
        everybody = self._everybody = self._why_everybody(situation)
        if everybody is not None:
            self._switch_on(pool, pool.useful - self._on, everybody)
        elif not self._replenish(pool, num_left):
            self._improve(pool)
        return Decision(
            active=self._on,
            kappa=kappa,
            changes=tuple(self._changes),
            share=None if everybody is not None else pool.share(self._on),
            price=pool.price(self._on),
            next_review_s=self._settings.review_s,
            kappa_reason=reasons.period(before, kappa) if before not in (None, kappa) else "",
        )

    def explain(self, name: str) -> str:
        """Why this peer is on or stands by, and what would change that: one or two sentences for its owner."""
        if (at_s := self._turns.failed_s.get(name)) is not None:
            return reasons.failed(at_s + TRIED_AGAIN_S - self._now_s)
        pool, on = self._pool, self._on
        if pool is None or name not in pool:
            return reasons.unknown()
        if name in on:
            return reasons.on(pool, on, name) if self._everybody is None else reasons.to_owner(self._everybody)
        one = pool[name]
        saved = pool.price(pool.replaceable(on, name)) - SAVING * pool.price(on)
        starting = PAYS * one.start_price * 3600 / self._stands_s
        price = (saved - starting) / (1 + PAYS * one.start_s / self._stands_s)
        return reasons.standing_by(pool, on, name, price=price, currency=self._settings.currency)

    @property
    def _on(self) -> frozenset[str]:
        return self._turns.on

    @property
    def _stands_s(self) -> float:
        """For so long is a plan likely to stand: what has not changed for hours goes on like that for some."""
        return max(PLAN_STANDS_S, self._now_s - self._state.offered_s)

    def _reviews_s(self, num_reviews: float) -> float:
        return num_reviews * self._settings.review_s

    def _switch_on(self, pool: Pool, names: Iterable[str], reason: str) -> None:
        for name in sorted(names):
            self._turns.begin(pool[name], self._now_s)
            self._changes.append(Change(peer=name, on=True, reason=reason))

    def _pool_of(self, situation: Situation, kappa: int) -> Pool:
        """Who may be on. A newcomer of whom nothing is known is expected to be like the others."""
        proven = [one.rate for one in situation.candidates if one.name not in situation.unproven and one.rate > 0]
        usual = median(proven) if proven else 0.0
        candidates = [
            replace(one, rate=usual) if one.rate == 0 and one.name in situation.unproven else one
            for one in situation.candidates
            if one.name not in self._turns.failed_s
        ]
        clock = Clockwork(
            train_s=(situation.train_s or 1.0) + situation.publish_s / kappa,
            rollouts=self._settings.rollouts,
            staleness=max(1, self._settings.staleness),
            kappa=kappa,
            broadcast_s=situation.broadcast_s,
        )
        return Pool(clock, candidates, situation.unproven)

    def _why_everybody(self, situation: Situation) -> str | None:
        """Why everybody is on, whatever they supply."""
        if self._settings.staleness == 0:
            return reasons.only_turns()
        return reasons.no_step_yet() if situation.train_s is None else None

    # The publication period.

    def _review_kappa(self, situation: Situation) -> int:
        """The period in use, until another has been the better one for as long as a shortage must last."""
        state, settings = self._state, self._settings
        if settings.kappa is not None or settings.staleness == 0 or situation.train_s is None:
            return settings.kappa or state.kappa or 1
        names = self._on
        on = [one.supplier() for one in situation.candidates if one.name in names]
        publishing = Publishing(
            train_s=situation.train_s,
            delay_s=usual_delay_s(on or [one.supplier() for one in situation.candidates]),
            source_s=situation.broadcast_s,
            publish_s=situation.publish_s,
        )
        best = choose_kappa(publishing, settings.staleness, current=state.kappa)
        lasted_s = state.other_kappa.update(best != state.kappa, self._now_s)
        if state.kappa is None or lasted_s >= self._reviews_s(SHORT_REVIEWS):
            state.kappa, state.other_kappa = best, _Lasting()
        return state.kappa

    # Short: somebody is missing.

    def _replenish(self, pool: Pool, num_left: int) -> bool:
        """Add what is missing if that is due. Returns whether the pool was short."""
        state, on, now_s = self._state, self._on, self._now_s
        share = pool.share(on)
        lasted_s = max(0.0, state.thin.update(share < HELD, now_s))
        due = [
            not on,
            num_left > 0 and share < MARGIN,
            state.severe.update(share < SEVERE, now_s) >= self._reviews_s(SEVERE_REVIEWS),
            state.short.update(share < SHORT, now_s) >= self._reviews_s(SHORT_REVIEWS),
            lasted_s >= self._reviews_s(BETTER_REVIEWS) * state.patience,
        ]
        if any(due):
            state.aim = None
            self._add(pool, share, lasted_s, num_left)
            return True
        return share < SHORT

    def _add(self, pool: Pool, share: float, lasted_s: float, num_left: int) -> None:
        state, on = self._state, self._on
        choose = cheapest if len(pool.candidates) <= EXACT_ADDITIONS else greedy
        choice = choose(pool.target, keep=on) if on else cheapest(pool.target)
        if not isinstance(choice, Choice):
            self._switch_on(pool, pool.useful - on, reasons.not_enough(pool))
            return  # it stays short, so whoever comes next is on at once
        state.severe, state.short, state.thin = _Lasting(), _Lasting(), _Lasting()
        names = {one.name for one in choice.chosen}
        if not on and not num_left:
            self._switch_on(pool, names, reasons.chosen(len(names), choice.price, self._settings.currency))
            return
        if not num_left:
            self._doubt(names - on)
        self._switch_on(pool, names - on, reasons.added(share, lasted_s, num_left))

    def _doubt(self, names: frozenset[str] | set[str]) -> None:
        """If one of them was released a while ago, that was wrong: the next better set must look so for longer."""
        state = self._state
        if names & self._turns.released_s.keys():
            state.patience, state.doubted_s = min(PATIENCE_MOST, 2 * state.patience), self._now_s

    # Better: the same for less.

    def _improve(self, pool: Pool) -> None:
        state = self._state
        if self._now_s - state.doubted_s >= PLAN_STANDS_S:
            state.patience, state.doubted_s = max(1.0, state.patience / 2), self._now_s
        if state.aim is not None and not self._stands(pool, state.aim):
            state.aim = None
        if state.aim is None:
            state.aim = self._look(pool)
        aim = state.aim
        if aim is None:
            return
        if aim.begun or self._now_s - aim.since_s >= self._reviews_s(BETTER_REVIEWS) * state.patience:
            self._move(pool, aim)

    def _look(self, pool: Pool) -> _Aim | None:
        """Search for a better set, unless that was done a moment ago."""
        state = self._state
        pause_s = self._reviews_s(LOOK_REVIEWS if state.offered_s > state.looked_s else BETTER_REVIEWS)
        if self._now_s - state.looked_s < pause_s:
            return None
        state.looked_s = self._now_s
        choice = cheapest(pool.target, self._on, stands_s=self._stands_s)
        if not isinstance(choice, Choice):
            return None
        names = frozenset(one.name for one in choice.chosen)
        return _Aim(names=names, since_s=self._now_s) if self._is_worth_it(pool, names) else None

    def _is_worth_it(self, pool: Pool, names: frozenset[str]) -> bool:
        """Whether moving to this set pays, or lets somebody go who is not needed at all."""
        on = self._on
        saved = pool.price(on) - pool.price(names) - PAYS * pool.moving_price(names - on, self._stands_s)
        if saved > 0 and saved >= SAVING * pool.price(on):
            return True
        return saved >= 0 and len(names) < len(on) and pool.share(on) >= SURPLUS * MARGIN

    def _stands(self, pool: Pool, aim: _Aim) -> bool:
        """Whether it is still the thing to move to, without those who left: of a thousand some leave each minute."""
        aim.names &= pool.names
        if pool.share(aim.names) < HELD:
            return False
        return aim.begun or self._is_worth_it(pool, aim.names)

    def _move(self, pool: Pool, aim: _Aim) -> None:
        """One stride towards it: first who is new, then, once all of it supply, some of the others go."""
        on, currency = self._on, self._settings.currency
        aim.begun = True
        self._doubt(aim.names - on)
        for name in sorted(aim.names - on):
            trial_s = pool[name].start_s + self._turns.trial_s(pool[name]) if name in pool.unproven else None
            before, after = pool.price(on), pool.price(aim.names)
            self._switch_on(pool, [name], reasons.joins(before, after, currency, on_trial_s=trial_s))
        if all(name not in pool.unproven and self._turns.supplies(name, self._now_s) for name in aim.names):
            self._release(pool, self._on - aim.names)
        if self._on == aim.names:
            self._state.aim = None

    def _release(self, pool: Pool, names: Collection[str]) -> None:
        """The dearest of them, a few at a time."""
        turns, now_s, currency = self._turns, self._now_s, self._settings.currency
        if now_s - max(turns.released_s.values(), default=-math.inf) < self._reviews_s(1):
            return
        most = max(1, int(RELEASED * len(self._on)))
        for name in [name for name in pool.dearest_first(names) if turns.may_end(pool[name], now_s)][:most]:
            before, after = pool.share(self._on), pool.share(self._on - {name})
            turns.release(name, now_s)
            reason = reasons.released(pool[name], before, after, currency)
            self._changes.append(Change(peer=name, on=False, reason=reason))
