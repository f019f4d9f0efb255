"""Plan which peers are active and how often versions are published, again at every review.

Pure: `Planner.review` takes what is known now and returns the active peers, kappa, and every change with its reason.
The time is in the `Situation`, in seconds of any clock. ECHO-2 (sections 3.4, 3.5, B.2.1) adds cheap workers when the
pool is persistently below target, and gradually releases expensive ones when it is well above. Here that is a list of
rules, tried in this order:

    ends     an active peer's owner's hours end soon: its successors are activated as long before as they take to start
    short    the active peers supply too little (the less is missing, the longer that must last), or a peer left: the
             cheapest addition, now
    better   another set has been cheaper for a while, by more than what moving to it costs: its new peers are
             activated; once they supply, the peers not in it are deactivated, the dearest first, a few per review
    enough   otherwise no peer is activated or deactivated

With S = 0, all peers are active too: learner and peers take turns, so each peer makes the step shorter.

`succession` decides which peers take over, `hysteresis` what is short, `cheaper_set` what is better, and `trials` which
peers may be active; this module acts on it. The numbers are in `constants`.

Invariants:

- No peer is deactivated because of a newcomer, whose rate is a promise until it has delivered.
- No peer is deactivated before the others are enough with half of their margin or more.
- An activated peer stays active until its start has paid off, unless it delivers nothing.
- No peer is activated whose owner's hours end before it has started.
- If not even all peers are enough, all are active, except those whose trial failed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import replace
from statistics import median

from learner.provisioning.model.capacity import Clockwork
from learner.provisioning.model.machine_selection import MARGIN, Choice, cheapest
from learner.provisioning.planner import reasons
from learner.provisioning.planner.cheaper_set import Aim, CheaperSetSearch
from learner.provisioning.planner.constants import RELEASED, SHORT
from learner.provisioning.planner.hysteresis import Shortages
from learner.provisioning.planner.pool import Pool
from learner.provisioning.planner.publish_period import Period, Publishing, usual_delay_s
from learner.provisioning.planner.review import Change, Decision, Settings, Situation
from learner.provisioning.planner.succession import is_brief, succession
from learner.provisioning.planner.trials import TrialTracker

__all__ = ["Change", "Decision", "Planner", "Settings", "Situation"]


class Planner:
    """The planner of one swarm. `review` may take `machine_selection.SOLVER_S`, so a driver calls it on a worker
    thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._turns = TrialTracker(settings.review_s)
        self._shortages = Shortages(settings.review_s)
        self._bargain = CheaperSetSearch(settings.review_s)
        self._period = Period(settings.review_s)
        self._pool: Pool | None = None
        self._everybody: str | None = None
        self._kappa = settings.kappa or 1
        self._now_s = self._train_s = 0.0
        self._changes: list[Change] = []
        self._resting: Collection[str] = ()
        self._brief: Collection[str] = ()

    def set_staleness(self, staleness: int) -> None:
        """Plan with this window S from the next review on."""
        self._settings = replace(self._settings, staleness=staleness)

    def review(self, situation: Situation) -> Decision:
        """Decide again. It may be called at any time, in order of `now_s`."""
        self._now_s, self._changes = situation.now_s, []
        self._train_s = situation.train_s or 0.0
        self._resting = situation.resting
        unproven = {*situation.unproven, *(one.name for one in situation.candidates if one.rate == 0)}
        num_left = self._follow(situation, unproven)
        before, kappa = self._kappa, self._review_kappa(situation)
        self._kappa = kappa
        everybody = self._everybody = self._why_everybody(situation)
        pool = self._pool = self._pool_of(situation, unproven, kappa)
        self._bargain.note_offers(pool, self._now_s)
        if everybody is not None:
            self._activate(pool, pool.names - self._active, everybody)
        else:
            if (found := succession(pool, self._active, self._settings.review_s)) is not None:
                self._activate(pool, found.names, reasons.succeeds(found.num_ending, found.in_s, found.share))
            if not self._replenish(pool, num_left):
                aim = self._bargain.review(pool, self._active, self._now_s)
                if aim is not None:
                    self._move(pool, aim, least=MARGIN if num_left else 0.0)
        return Decision(
            active=self._active,
            kappa=kappa,
            changes=tuple(self._changes),
            share=None if everybody is not None else pool.share(self._active),
            price=pool.price(self._active),
            next_review_s=self._settings.review_s,
            kappa_reason=reasons.period(before, kappa) if before != kappa else "",
        )

    def explain(self, name: str) -> str:
        """Return why this peer is active or on standby, and what would change that: one or two sentences for its
        owner."""
        if name in self._resting:
            return reasons.RESTING
        if name in self._turns.failed_s:
            return reasons.FAILED
        if name in self._brief:
            return reasons.TOO_BRIEF
        pool, active = self._pool, self._active
        if pool is None or name not in pool:
            return reasons.UNKNOWN
        if name in active:
            return reasons.active(pool, active, name) if self._everybody is None else reasons.to_owner(self._everybody)
        price = self._bargain.price_to_be_active(pool, active, name, self._now_s)
        return reasons.standing_by(pool, active, name, price=price, currency=self._settings.currency)

    @property
    def _active(self) -> frozenset[str]:
        return self._turns.active

    def _activate(self, pool: Pool, names: Iterable[str], reason: str) -> None:
        for name in sorted(names):
            self._turns.begin(pool[name], self._now_s)
            self._changes.append(Change(peer=name, active=True, reason=reason))

    def _follow(self, situation: Situation, unproven: Collection[str]) -> int:
        """Deactivate peers that left, whose owner's hours are over, or that failed a trial. Return how many are no
        longer available."""
        turns, now_s = self._turns, self._now_s
        for name in sorted(self._active.intersection(situation.resting)):
            self._changes.append(Change(peer=name, active=False, reason=reasons.HOURS_OVER))
        num_left = turns.follow(now_s, situation.candidates)
        if not self._settings.activate:
            return num_left
        for name, lasted_s in turns.end_trials(now_s, situation.candidates, unproven, train_s=self._train_s):
            self._changes.append(Change(peer=name, active=False, reason=reasons.trial_failed(lasted_s)))
        return num_left

    def _pool_of(self, situation: Situation, unproven: Collection[str], kappa: int) -> Pool:
        """Return the peers that may be active. A peer with nothing admitted recently and no promised rate is taken to
        be like the others. Its rate of 0 would stay, since a peer on standby delivers nothing."""
        everybody, active = self._everybody is not None, self._active
        self._brief = {
            one.name
            for one in situation.candidates
            if not everybody and one.name not in active and is_brief(one, self._settings.review_s)
        }
        proven = [one.rate for one in situation.candidates if one.name not in unproven]
        usual = median(proven) if proven else 0.0
        candidates = [
            replace(one, rate=usual) if one.rate == 0 else one
            for one in situation.candidates
            if one.name not in self._turns.failed_s and one.name not in self._brief
        ]
        clock = Clockwork(
            train_s=(situation.train_s or 1.0) + situation.publish_s / kappa,
            rollouts=self._settings.rollouts,
            staleness=max(1, self._settings.staleness),
            kappa=kappa,
            broadcast_s=situation.broadcast_s,
        )
        return Pool(clock, candidates, unproven)

    def _why_everybody(self, situation: Situation) -> str | None:
        """Return why all peers are active, whatever they supply; None if they are not."""
        if not self._settings.activate:
            return reasons.ALL_WANTED
        if self._settings.staleness == 0:
            return reasons.ONLY_TURNS
        return reasons.NO_STEP_YET if situation.train_s is None else None

    def _review_kappa(self, situation: Situation) -> int:
        settings = self._settings
        if settings.kappa is not None or settings.staleness == 0 or situation.train_s is None:
            return self._kappa
        active = [one.supplier() for one in situation.candidates if one.name in self._active]
        publishing = Publishing(
            train_s=situation.train_s,
            delay_s=usual_delay_s(active or [one.supplier() for one in situation.candidates]),
            source_s=situation.broadcast_s,
            publish_s=situation.publish_s,
        )
        return self._period.review(publishing, settings.staleness, self._now_s)

    # Short: too little is supplied.

    def _replenish(self, pool: Pool, num_left: int) -> bool:
        """Add what is missing if that is due. Return whether the pool was short."""
        share, bargain = pool.share(self._active), self._bargain
        if self._shortages.is_due(share, num_left, self._now_s, caution=bargain.caution) or not self._active:
            bargain.aim = None
            self._add(pool, share, num_left)
            return True
        return share < SHORT

    def _add(self, pool: Pool, share: float, num_left: int) -> None:
        active = self._active
        choice = pool.additions(active) if active else cheapest(pool.target)
        if not isinstance(choice, Choice):
            self._activate(pool, pool.names - active, reasons.not_enough(pool))
            return  # it stays short, so each peer that comes next is activated at once
        self._shortages.made_good()
        names = {one.name for one in choice.chosen}
        if not active and not num_left:
            self._activate(pool, names, reasons.chosen(len(names), choice.price, self._settings.currency))
            return
        if not num_left:
            self._note_regret(names - active)
        self._activate(pool, names - active, reasons.added(share, self._shortages.lasted_s, num_left))

    def _note_regret(self, names: Collection[str]) -> None:
        """Record a regret if one of these peers was deactivated a while ago, since that was wrong."""
        if not self._turns.released_s.keys().isdisjoint(names):
            self._bargain.regret(self._now_s)

    # Better: the same supply for less.

    def _move(self, pool: Pool, aim: Aim, *, least: float) -> None:
        """Take one step towards the aim: first activate its new peers. Once all of it supply, deactivate some of the
        others, while the share stays above `least`."""
        aim.begun = True
        self._note_regret(aim.names - self._active)
        before, after = pool.price(self._active), pool.price(aim.names)
        for name in sorted(aim.names - self._active):
            self._activate(pool, [name], self._why_joins(pool, name, before, after))
        if all(name not in pool.unproven and self._turns.supplies(name, self._now_s) for name in aim.names):
            self._release(pool, self._active - aim.names, least)
        if self._active == aim.names:
            self._bargain.aim = None

    def _why_joins(self, pool: Pool, name: str, before: float, after: float) -> str:
        on_trial_s = None
        if name in pool.unproven:
            on_trial_s = pool[name].start_s + self._turns.trial_s(pool[name], train_s=self._train_s)
        return reasons.joins(before, after, self._settings.currency, on_trial_s=on_trial_s)

    def _release(self, pool: Pool, names: Collection[str], least: float) -> None:
        """Deactivate the dearest of these peers, a few at a time."""
        turns, now_s, currency = self._turns, self._now_s, self._settings.currency
        if now_s - max(turns.released_s.values(), default=-math.inf) < self._settings.review_s:
            return
        most = max(1, int(RELEASED * len(self._active)))
        for name in [name for name in pool.dearest_first(names) if turns.may_end(pool[name], now_s)][:most]:
            before, after = pool.share(self._active), pool.share(self._active - {name})
            if after < least:  # a peer has just left, and one that is missed then is replaced at once
                continue
            turns.release(name, now_s)
            reason = reasons.released(pool[name], before, after, currency)
            self._changes.append(Change(peer=name, active=False, reason=reason))
