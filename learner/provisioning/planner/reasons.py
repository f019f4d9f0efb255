"""Why somebody is on, goes, or stands by, in words with the numbers: for the log, the report and the peer's owner.

Pure. What always holds: a reason names no other peer, and however many there are, it is no longer than what a peer
accepts (MAX_REASON_CHARS).
"""

from __future__ import annotations

from collections.abc import Collection

from learner.provisioning.model.machine_selection import MARGIN, Candidate
from learner.provisioning.planner.pool import Pool

# To everybody, where all are on.
ALL_WANTED = "on: the operator wants everybody to work"
ONLY_TURNS = "on: learner and peers take turns, so every machine makes the step shorter"
NO_STEP_YET = "on: there was no training step yet, so nobody knows how few would do"

HOURS_OVER = "released: it is not lent now, outside its owner's hours or paused"
"""Whether his hours ended or he paused it, the learner is not told."""

# To an owner.
FAILED = "Standing by: nothing from here was admitted in a trial. There will be another within an hour."
"""True for as long as it is so, since it is told once."""
RESTING = (
    "Standing by: your machine was not lent when the last plan was made, outside your hours or paused. The next plan "
    "that is made while it is lent can have it on again."
)
"""True as well when he lends it again and no plan was made since."""
TOO_BRIEF = "Standing by: your hours end too soon for you to be switched on. You can be on when they begin again."
UNKNOWN = "Standing by: you came after the last review."
"""To somebody who was not there then."""


def not_enough(pool: Pool) -> str:
    """Everybody is on."""
    share = pool.share(pool.names)
    if pool.target.is_overtaken:
        return "on: versions are published faster than they can be sent, so no number of machines is enough"
    count = len(pool.candidates)
    who = "the only machine supplies" if count == 1 else f"all {count} machines together supply"
    return f"on: {who} {_share(share)} of what the learner takes, and {_share(MARGIN)} is wanted"


def chosen(num_on: int, price: float, currency: str) -> str:
    """The first set."""
    return (
        f"on: one of the cheapest set that keeps the learner busy, {_machines(num_on)} for {_money(price, currency)}/h"
        if num_on > 1
        else f"on: alone the cheapest that keeps the learner busy, for {_money(price, currency)}/h"
    )


def added(share: float, lasted_s: float, num_left: int) -> str:
    """One of the cheapest addition to a pool that supplied `share`."""
    since = f"after {_machines(num_left)} left" if num_left else f"for {lasted_s:.0f} s"
    return f"on: the pool supplied {_share(share)} of what the learner takes {since}; this is the cheapest addition"


def succeeds(num_ending: int, in_s: float, share: float) -> str:
    """One of the cheapest addition to a pool that will supply `share` when the hours of `num_ending` are over."""
    who = "the hours of 1 machine's owner end" if num_ending == 1 else f"the hours of {num_ending} machines' owners end"
    return (
        f"on: {who} in {in_s / 60:.0f} min, and the others supply {_share(share)} of what the learner takes; this is "
        "the cheapest addition"
    )


def joins(before: float, after: float, currency: str, *, on_trial_s: float | None) -> str:
    """One of a cheaper set, `before` and `after` per hour; its rate is to be proven within `on_trial_s`."""
    trial = "" if on_trial_s is None else f", if it delivers what it promises; tried for {on_trial_s:.0f} s"
    if after >= before:
        return f"on: with it fewer machines do{trial}"
    return f"on: with it the pool costs {_money(after, currency)}/h instead of {_money(before, currency)}/h{trial}"


def released(one: Candidate, before: float, after: float, currency: str) -> str:
    """The pool supplied `before` with it and supplies `after` without it, of what the learner takes."""
    what = "the slowest" if one.running_price == 0 else "the dearest per rollout"
    offer = f"{_money(one.running_price, currency)}/h for {_number(one.usable_rate)} rollouts/s"
    return (
        f"released: {offer} is {what} that the pool can do without; it supplied {_share(before)} of what the "
        f"learner takes, now {_share(after)}"
    )


def period(before: int, after: int) -> str:
    """The publication period changes."""
    if after > before:
        why = "publishing takes less of the time of learner and lines"
    else:
        why = "rollouts become younger, or fewer machines do"
    if after == 1:
        return f"kappa: a version every training step instead of every {before}: {why}"
    return f"kappa: a version every {after} training steps instead of {before}: {why}"


def trial_failed(trial_s: float) -> str:
    """A newcomer delivered nothing."""
    return f"released: nothing from here was admitted in a trial of {trial_s:.0f} s"


def to_owner(reason: str) -> str:
    """The reason of a change, as a sentence."""
    return f"{reason[0].upper()}{reason[1:]}."


def on(pool: Pool, names: Collection[str], name: str) -> str:
    """To its owner."""
    trial = ", on trial until something of yours is admitted" if name in pool.unproven else ""
    if len(names) == 1:
        return f"On{trial}: alone you supply {_supplied(pool, names)}."
    return f"On{trial}: one of {_machines(len(names))} that supply {_supplied(pool, names)}."


def standing_by(pool: Pool, names: Collection[str], name: str, *, price: float, currency: str) -> str:
    """To its owner; at about `price` per hour, or less, it would be on."""
    if pool[name].usable_rate == 0:
        return "Standing by: nothing from here was admitted of late. You will be on when everybody is needed."
    is_one = len(names) == 1
    kind = "faster volunteer" if pool.price(names) == 0 else "machine"
    said = f"Standing by: {len(names)} {kind}{' supplies' if is_one else 's supply'} {_supplied(pool, names)}"
    leaves, any_of = ("it leaves", "not replace it") if is_one else ("one of them leaves", "replace none of them")
    if pool[name].running_price == 0:
        return f"{said}. You will be on when {leaves} and is missed."
    if price <= 0:
        return f"{said}, and you could {any_of}. You will be on when {leaves} and is missed."
    if pool[name].price <= price:
        return f"{said}. With you it would be cheaper: you will be on in some minutes if that stays so."
    return f"{said}. At about {_money(price, currency)}/h or less you would be on, or when {leaves}."


def _supplied(pool: Pool, names: Collection[str]) -> str:
    return f"{_share(pool.share(names))} of what the learner takes"


def _machines(count: int) -> str:
    return "1 machine" if count == 1 else f"{count} machines"


def _money(amount: float, currency: str) -> str:
    return f"{_number(amount)} {currency}"


def _share(value: float) -> str:
    return f"{100 * value:.3g} %"


def _number(value: float) -> str:
    return f"{value:.3g}"
