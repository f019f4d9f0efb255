"""Put the answer of a plan into a few lines: its inputs, and which machines to activate at what cost.

Pure.

Invariants:

- If the machines are too few, the line that says so is followed by numbers that would suffice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from learner.provisioning.model.broadcast_time import OVER_BOUND
from learner.provisioning.model.capacity import QUORUM
from learner.provisioning.model.windows import Infeasible, Outcome
from node.commands.plan.plan import Plan
from node.runtime import formatting as words

Lines = Iterator[tuple[str, str]]

KINDS_TOLD = 8
"""Kinds of machines in a few lines. The table below lists all."""

TOO_FEW = "too few"

WAITS = 0.005
"""Smallest bubble that is mentioned."""


def given(plan: Plan) -> Lines:
    """Yield the inputs of the plan."""
    terms, setting = plan.terms, plan.terms.setting
    timings, pool = setting.timings, setting.candidates
    rate = words.per_second(math.fsum(one.usable_rate for one in pool))
    if any(one.is_least for one in pool):
        rate = f"at least {rate}"
    price = math.fsum(one.running_price for one in pool)
    with_all = "with it active" if len(pool) == 1 else "with all active"
    whole = f"{words.counted(len(pool), 'machine')}; admitted rollouts: {rate} {with_all}"
    yield "pool", f"{whole}, for {words.per_hour(price, terms.currency)}"
    learner = f"R / T_train = {words.per_second(setting.balance)}"
    rollouts = words.counted(timings.rollouts, "rollout")
    yield "T_train", f"{words.seconds(timings.train_s)} for a training step of R = {rollouts}; it uses {learner}"
    use = f"to send a version, until {words.share(QUORUM)} of the machines use it"
    yield "T_bcast", f"{words.seconds(timings.broadcast_s)} {use} ({terms.broadcast})"
    yield "T_gen", f"{words.seconds(timings.generation_s)} to generate a rollout, from its start until it is admitted"


def answer(plan: Plan) -> Lines:
    """Yield which machines to activate, or what would be enough."""
    ours, currency = plan.asked.ours, plan.terms.currency
    if isinstance(ours, Infeasible):
        yield "infeasible", _shortage(plan, ours)
        if plan.remedies is not None:
            yield "would do", _remedies(plan)
        if plan.asked.everyone is not None:
            yield "with all", _with_all(plan.asked.everyone, currency, plan.terms.setting.margin)
    else:
        yield "machines", _counted(plan, ours)
        yield "cost", _cost(plan, ours)
        yield "kappa", _kappa(plan, ours)
        if ours.staleness and not ours.is_shown:
            yield "target", _asked(plan, ours)
        yield "waiting", _waits(ours)
        yield "lag", f"{ours.lag:.1f} training steps expected, {ours.lag_bound} at most"


def _waits(outcome: Outcome) -> str:
    step = f"{words.seconds(round(outcome.wait_s, 3))} of {words.seconds(outcome.period_s)} a step"
    return f"{step}: the learner waits {words.share(outcome.bubble)} of its time (bubble)"


def _counted(plan: Plan, outcome: Outcome) -> str:
    kinds = plan.kinds(outcome.choice)
    told = " + ".join(f"{count} x {name}" for name, count in kinds.items())
    if len(kinds) > KINDS_TOLD:
        count = len(outcome.choice.chosen)
        told = f"{count} machines{f' of {len(kinds)} kinds' if len(kinds) < count else ''}, listed below"
    exact = "the cheapest set" if outcome.choice.exact else "the cheapest set found"
    if outcome.is_shown and (shown := plan.terms.setting.shown) is not None:
        rate = words.per_second(outcome.choice.rate)
        least = "at least " if any(one.is_least for one in outcome.choice.chosen) else ""
        return f"{told}: {least}{rate}; enough in the run, whose learner waited {words.share(shown.bubble)} of its time"
    what = exact if outcome.staleness else "in turns with the learner"
    return f"{told}, for {words.per_second(outcome.choice.rate)}: {what}"


def _cost(plan: Plan, outcome: Outcome) -> str:
    currency, setting = plan.terms.currency, plan.terms.setting
    step = f"{words.money(outcome.cost_per_step, currency)} a training step"
    parts = [f"{words.per_hour(outcome.price, currency)}, {step}"]
    if setting.learner_price is not None:
        parts.append(f"including {words.money(setting.learner_price, '')} for the learner")
    starts = math.fsum(one.moving_price(setting.stands_s) for one in outcome.choice.chosen) * setting.stands_s / 3600
    if starts:
        parts.append(f"plus {words.money(starts, currency)} once to start them")
    return ", ".join(parts)


def _kappa(plan: Plan, outcome: Outcome) -> str:
    if outcome.staleness == 0:
        return "1: the machines wait for every version before they generate"
    every = "every training step" if outcome.kappa == 1 else f"every {outcome.kappa} training steps"
    same = f"; {outcome.kappas[0]} to {outcome.kappas[-1]} need the same machines" if len(outcome.kappas) > 1 else ""
    return f"{outcome.kappa}: publish a version {every}{same}"


def _asked(plan: Plan, outcome: Outcome) -> str:
    margin = plan.terms.setting.margin
    if not math.isfinite(outcome.asked):
        return "no single rate: each machine has its own T_bcast and T_gen, and none is in time at the swarm's T_bcast"
    over = f"{words.ratio(outcome.over_balance)} x R / T_train"
    return f"{words.per_second(outcome.asked)} for equal machines: {over}, times {margin:g} as a reserve"


def _shortage(plan: Plan, short: Infeasible) -> str:
    setting = plan.terms.setting
    if short.needed == 0:
        return "no machine generates anything"
    needed = f"{words.per_second(short.needed)} would be needed if versions arrived at once"
    rates = f"{words.per_second(short.rate)}, and {needed}"
    if short.is_overtaken:
        steps_s = words.seconds(short.staleness * setting.timings.train_s)
        steps = "1 training step takes" if short.staleness == 1 else f"{short.staleness} training steps take"
        return (
            f"versions would overtake each other: sending one takes {words.seconds(setting.source_s)}, but S = "
            f"{steps} {steps_s}; {together(plan)} {rates}"
        )
    if short.share == 0:
        least_s = min(one.broadcast_s + one.generation_s for one in setting.candidates)
        due_s = (short.staleness - setting.periods(short.staleness)[0] + 1) * setting.timings.train_s
        return (
            f"no machine is in time: the first rollouts of a version come {words.seconds(least_s)} after it or "
            f"later, but the first batch that needs them is due after {words.seconds(due_s)}"
        )
    return f"{together(plan)} {words.share(short.share)} of the rate that the strictest condition needs ({rates})"


def together(plan: Plan) -> str:
    """Return the words before a rate of all machines."""
    return "the one machine gives" if len(plan.terms.setting.candidates) == 1 else "all machines together give"


def _with_all(outcome: Outcome, currency: str, margin: float) -> str:
    cost = words.money(outcome.cost_per_step, currency)
    period = words.seconds(outcome.period_s)
    said = f"the learner waits {words.share(outcome.bubble)} of its time, and a step takes {period} and costs {cost}"
    # Rates that are met exactly make nobody wait in theory. Without this remark the two lines would contradict.
    lacks = f"; only the reserve of {margin:g} times the needed rate is missing" if outcome.bubble <= WAITS else ""
    return f"{said}{lacks}"


def _remedies(plan: Plan) -> str:
    found, timings = plan.remedies, plan.terms.setting.timings
    assert found is not None
    ways = []
    if found.times is not None:
        ways.append(f"{words.enough(found.times, math.ceil)} times the machines")
    if found.rollouts is not None:
        ways.append(f"R = {found.rollouts:,}")
    if found.train_s is not None:
        ways.append(f"T_train = {words.enough(found.train_s, math.ceil)} s")
    if found.broadcast is not None:
        broadcast_s = words.enough(found.broadcast * timings.broadcast_s, math.floor)
        percent = words.enough(100 * found.broadcast, math.floor)
        ways.append(f"T_bcast = {broadcast_s} s ({percent} % of it for every machine)")
    if found.staleness is not None:
        ways.append(f"S = {found.staleness}")
    if not ways:
        return "no single change: more machines, a longer T_train and a shorter T_bcast are needed together"
    return f"any one of: {'; '.join(ways)}" if len(ways) > 1 else ways[0]


def _ahead(plan: Plan, outcome: Outcome) -> float:
    suppliers = [one.supplier() for one in outcome.choice.chosen]
    return plan.terms.setting.clock(outcome.staleness, outcome.kappa, suppliers).ahead


def notes(plan: Plan) -> Iterator[str]:
    """Yield remarks on the plan, and what its symbols mean."""
    terms, setting = plan.terms, plan.terms.setting
    if least := [
        name for name in plan.pool if name in {terms.kinds[one.name] for one in setting.candidates if one.is_least}
    ]:
        told = ", ".join(least[:KINDS_TOLD]) + (
            f" and {len(least) - KINDS_TOLD} more" if len(least) > KINDS_TOLD else ""
        )
        yield f"These machines may be faster than shown, because the run did not keep them busy: {told}."
    if all(one.running_price == 0 for one in setting.candidates):
        yield "All prices are 0, so the plan chooses as few machines as suffice."
    ours = plan.asked.ours
    if isinstance(ours, Outcome) and ours.staleness and ours.bubble > WAITS and not ours.is_shown:
        yield (
            "The learner waits although the machines suffice, because at most `ahead` batches are leased at a time, "
            f"here {_ahead(plan, ours):.3g}. Raise it."
        )
    if terms.is_computed:
        yield (
            f"T_bcast of a machine = {OVER_BOUND:g} x max(G / B0, G / its downlink, N G / (B0 + all uplinks)) + "
            "install, where G is the size of a version, B0 the learner's uplink, and N the number of machines, active "
            "or standby."
        )
    yield (
        "S: staleness window, in training steps. kappa: training steps between published versions. target: admitted "
        "rollouts a second to plan for, as a multiple of R / T_train. bubble: fraction of its time that the learner "
        "waits. lag: training steps between a rollout's version and its training. With S = 0 the learner and the "
        "machines take turns: a step takes T_train, and T_bcast + T_gen + R / mu to generate R rollouts with equal "
        "machines of together mu rollouts a second."
    )
    if any(isinstance(window.ours, Infeasible) for window in plan.windows):
        yield "Too few: even all machines are not enough. The row shows the cost and the waiting with all of them."
