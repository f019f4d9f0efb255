"""Say why a peer is active, deactivated, or on standby, in words with numbers, for the log, the report and the owner.

Pure.

Invariants:

- A reason names no other peer.
- However many peers there are, it is no longer than what a peer accepts (MAX_REASON_CHARS).
"""

from __future__ import annotations

from collections.abc import Collection

from learner.provisioning.model.machine_selection import MARGIN, Candidate
from learner.provisioning.planner.pool import Pool

# To all peers, if all are active
ALL_WANTED = "active: the operator wants every machine to work"
ONLY_TURNS = "active: learner and peers take turns, so every machine makes the step shorter"
NO_STEP_YET = "active: there was no training step yet, so it is not known how few machines are enough"

LEAST_SHARE = 0.005
"""Less is shown as 0 %."""

LATE = (
    "active: by the usual times, a version's first rollouts come after the training steps that may use it, so every "
    "machine works; a larger [learn] staleness gives them more time"
)
"""If each machine has a rate, and none supplies anything in time."""

HOURS_OVER = "deactivated: it is not lent now (outside its owner's hours, or paused)"
"""The learner does not know which of the two it is."""

# To an owner
FAILED = "On standby: no rollout from here was admitted in a trial. There will be another trial within an hour."
"""It must stay true as long as the state lasts, since it is sent once."""
RESTING = (
    "On standby: when the last plan was made, your machine was not lent, because it was outside your hours or paused. "
    "The next plan that is made while it is lent can activate it again."
)
"""It must stay true also when the owner lends the machine again, until the next plan."""
TOO_BRIEF = "On standby: your hours end too soon to activate your machine. It can be active when they begin again."
UNKNOWN = "On standby: your machine came after the last plan was made."
"""For a peer that was not there at that review."""


def not_enough(pool: Pool) -> str:
    """Return the reason if all peers are active because they are too few."""
    share = pool.share(pool.names)
    if pool.target.is_overtaken:
        return (
            "active: sending a version takes longer than the training steps until the next one, so every machine "
            "works; a larger [learn] publish_every, or more upload at the learner, needs fewer"
        )
    count = len(pool.candidates)
    if share < LEAST_SHARE and any(one.rate > 0 for one in pool.candidates):
        return LATE
    who = "the only machine supplies" if count == 1 else f"all {count} machines together supply"
    return f"active: {who} {_share(share)} of what the learner takes; the target is {_share(MARGIN)}"


def chosen(num_active: int, price: float, currency: str) -> str:
    """Return the reason for the first set."""
    return (
        f"active: in the cheapest set that keeps the learner busy, {_machines(num_active)} for "
        f"{_money(price, currency)}/h"
        if num_active > 1
        else f"active: the cheapest machine that alone keeps the learner busy, for {_money(price, currency)}/h"
    )


def added(share: float, lasted_s: float, num_left: int) -> str:
    """Return the reason for an addition to a pool that supplied `share`."""
    since = f"after {_machines(num_left)} left" if num_left else f"for {lasted_s:.0f} s"
    return f"active: the pool supplied {_share(share)} of what the learner takes {since}; this is the cheapest addition"


def succeeds(num_ending: int, in_s: float, share: float) -> str:
    """Return the reason for an addition to a pool that will supply `share` when the hours of `num_ending` peers are
    over."""
    who = "the hours of 1 machine's owner end" if num_ending == 1 else f"the hours of {num_ending} machines' owners end"
    return (
        f"active: {who} in {in_s / 60:.0f} min, and the others supply {_share(share)} of what the learner takes; this "
        "is the cheapest addition"
    )


def joins(before: float, after: float, currency: str, *, on_trial_s: float | None) -> str:
    """Return the reason for a peer of a cheaper set; `before` and `after` are prices per hour. It must prove its rate
    within `on_trial_s`."""
    trial = "" if on_trial_s is None else f", if it delivers what it promises; on trial for {on_trial_s:.0f} s"
    if after >= before:
        return f"active: with it, fewer machines are enough{trial}"
    return f"active: with it, the pool costs {_money(after, currency)}/h instead of {_money(before, currency)}/h{trial}"


def released(one: Candidate, before: float, after: float, currency: str) -> str:
    """Return why a peer is deactivated. The pool supplied `before` with it, and supplies `after` without it, as shares
    of what the learner takes."""
    what = "the slowest" if one.running_price == 0 else "the dearest per rollout"
    offer = f"{_money(one.running_price, currency)}/h for {_number(one.usable_rate)} rollouts/s"
    return (
        f"deactivated: {offer} is {what} that the pool can do without; the pool supplied {_share(before)} of what the "
        f"learner takes, and supplies {_share(after)} now"
    )


def period(before: int, after: int) -> str:
    """Return why the publication period changes."""
    if after > before:
        why = "publishing takes less time of the learner and the connections"
    else:
        why = "rollouts become younger, or fewer machines are enough"
    if after == 1:
        return f"kappa: a version every training step instead of every {before}: {why}"
    return f"kappa: a version every {after} training steps instead of {before}: {why}"


def trial_failed(trial_s: float) -> str:
    """Return the reason for a newcomer that delivered nothing."""
    return f"deactivated: no rollout from here was admitted in a trial of {trial_s:.0f} s"


def to_owner(reason: str) -> str:
    """Return the reason of a change as a sentence."""
    return f"{reason[0].upper()}{reason[1:]}."


def active(pool: Pool, names: Collection[str], name: str) -> str:
    """Return the text for the owner of an active peer."""
    trial = ", on trial until a rollout of yours is admitted" if name in pool.unproven else ""
    if len(names) == 1:
        return f"Active{trial}: alone you supply {_supplied(pool, names)}."
    return f"Active{trial}: one of {_machines(len(names))} that supply {_supplied(pool, names)}."


def standing_by(pool: Pool, names: Collection[str], name: str, *, price: float, currency: str) -> str:
    """Return the text for the owner of a peer on standby. At about `price` per hour, or less, it would be active."""
    if pool[name].usable_rate == 0:
        return "On standby: no rollout from here was admitted lately. You will be active when all machines are needed."
    is_one = len(names) == 1
    kind = "faster volunteer" if pool.price(names) == 0 else "machine"
    said = f"On standby: {len(names)} {kind}{' supplies' if is_one else 's supply'} {_supplied(pool, names)}"
    leaves, any_of = ("it leaves", "not replace it") if is_one else ("one of them leaves", "replace none of them")
    if pool[name].running_price == 0:
        return f"{said}. You will be active when {leaves} and is missed."
    if price <= 0:
        return f"{said}, and you could {any_of}. You will be active when {leaves} and is missed."
    if pool[name].price <= price:
        return f"{said}. With you it would be cheaper: you will be active in some minutes if that stays so."
    return f"{said}. At about {_money(price, currency)}/h or less you would be active, or when {leaves}."


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
