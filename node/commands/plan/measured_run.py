"""Read a recorded run for `--from`: its measurements, what a plan predicts for the run itself, and its pool.

The peers are those that were connected when the last training step with any peer ended: when a run is over, all leave,
and a learner whose last peer left continues with its rollout buffer.

Invariants:

- A prediction is compared with the same steps from which its inputs were measured.
- A value that the run did not show is not invented; the plan then asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from learner.provisioning.estimation.estimates import WINDOW, Estimate
from learner.provisioning.estimation.estimator import SwarmEstimator, fit
from learner.provisioning.estimation.learner_time import LearnerTime
from learner.provisioning.estimation.recording import Began, Joined, Left, Recorded, Stepped
from learner.provisioning.estimation.step_stats import Steps, seconds, steady, steps_of, time_of_run
from learner.provisioning.model.machine_selection import Candidate, Choice
from learner.provisioning.model.windows import Outcome, Windows
from node.commands.plan.inputs import terms_of
from node.commands.plan.pool import Machine, Pool
from node.commands.plan.pool_keys import MAX_MACHINES, MAX_WINDOW
from node.commands.plan.recordings import find_recording, peer_names, read_events
from node.commands.plan.shown_run import shown_enough
from node.config.swarm_config import SwarmConfig
from node.runtime.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A peer that was connected at the end. A value that it did not show is None.

    `is_rate_least`: it may be faster, because it was never kept busy.
    """

    name: str
    price: float
    rate: Estimate | None
    is_rate_least: bool
    broadcast_s: Estimate | None
    generation_s: Estimate | None


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A recorded run.

    Args:
        time: what the learner's time went into, start and end included.
        began: the settings of the run.
        runs: how often it was started.
        step: training step up to whose end it is read.
        alone: later steps, which the learner took when no peer was left; they are not in the measurements.
        silent: peers left out of the pool, because they neither delivered nor reported their speed.
        steady: its steps, except the `left_out` first ones after each start.
        late: the last of these; the estimates are made from them.
        predicted: what our model predicts for `late`; None if a measurement is missing.
    """

    source: str
    time: LearnerTime
    began: Began
    runs: int
    seconds: float
    step: int
    alone: int
    kappa: int
    train_s: Estimate | None
    broadcast_s: Estimate | None
    generation_s: Estimate | None
    peers: tuple[Peer, ...]
    silent: int
    steady: Steps
    left_out: int
    late: Steps
    predicted: Outcome | None


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A run as an input of plans: its measurements, its peers as a pool (None without any), and its settings."""

    measured: Measured
    pool: Pool | None
    settings: Mapping[str, Any]

    def pool_under(self, command: Mapping[str, Any]) -> Pool | None:
        """Return the peers; T_bcast or T_gen from the command line replaces what they have shown."""
        if self.pool is None:
            return None
        forgotten: dict[str, Any] = {}
        if command.keys() & {"broadcast_s", "weights_mb"}:
            forgotten["broadcast_s"] = None
        if "generation_s" in command:
            forgotten["generation_s"] = None
        return replace(self.pool, machines=tuple(replace(one, **forgotten) for one in self.pool.machines))


def read_run(target: Path) -> Fitted:
    """Return the run that `target` names. Raises UsageError.

    `target` is a recording, a learner's state directory, a swarm.toml, or a demo's directory.
    """
    path, config = find_recording(target)
    events = read_events(path)
    last = _last_step(events)
    if last is None:
        raise UsageError(f"{path} contains no training step yet. Let the run take some steps, then plan from it.")
    alone = sum(isinstance(event, Stepped) for event in events[last + 1 :])
    return _fitted(str(path), events[: last + 1], config, alone, time_of_run(events))


def _last_step(events: Sequence[Recorded]) -> int | None:
    """Return the position of the last training step that ended while a peer was connected; without any, of the last."""
    here: set[str] = set()
    last = last_with_peers = None
    for place, event in enumerate(events):
        match event:
            case Began():
                here.clear()
            case Joined():
                here.add(event.peer)
            case Left():
                here.discard(event.peer)
            case Stepped():
                last, last_with_peers = place, place if here else last_with_peers
    return last if last_with_peers is None else last_with_peers


def _fitted(
    source: str, events: Sequence[Recorded], config: SwarmConfig | None, alone: int, time: LearnerTime
) -> Fitted:
    seen = fit(events)
    began = seen.terms
    assert began is not None  # `read_lines` allows no event before it
    names = peer_names({one.peer: one.name for one in seen.profiles()})
    supplying = [one for one in seen.candidates() if one.rate > 0]
    pool = _pool(seen, supplying, names)
    if pool is not None and (shown := shown_enough(events, seen, {one.name: names[one.name] for one in supplying})):
        pool = replace(pool, shown=shown)
    settings = _settings(seen, began, config)
    steps, left_out = steady(events)
    late = steps_of(steps[-WINDOW:])
    peers = {names[one.name]: one.name for one in supplying}
    measured = Measured(
        source=source,
        time=time,
        began=began,
        runs=sum(isinstance(event, Began) for event in events),
        seconds=seconds(events),
        step=next(event.step for event in reversed(events) if isinstance(event, Stepped)),
        alone=alone,
        kappa=seen.kappa or began.kappa,
        train_s=seen.train_s,
        broadcast_s=seen.broadcast_s,
        generation_s=seen.generation_s,
        peers=tuple(
            Peer(
                name=names[one.peer],
                price=one.price,
                rate=one.rate(),
                is_rate_least=one.is_least,
                broadcast_s=one.broadcast_s,
                generation_s=one.generation_s,
            )
            for one in seen.profiles()
        ),
        silent=len(names) - len(supplying),
        steady=steps_of(steps),
        left_out=left_out,
        late=late,
        predicted=_predicted(seen, began, pool, settings | {"train_s": late.train_s}, peers),
    )
    return Fitted(measured=measured, pool=pool, settings=settings)


def _pool(seen: SwarmEstimator, supplying: Sequence[Candidate], names: Mapping[str, str]) -> Pool | None:
    if not supplying:
        return None
    if len(supplying) > MAX_MACHINES:
        raise UsageError(f"{len(supplying)} peers were present, and a plan takes at most {MAX_MACHINES}. Name a pool.")
    knows_broadcast, knows_generation = seen.broadcast_s is not None, seen.generation_s is not None
    machines = tuple(
        Machine(
            where=f"peer {names[one.name]}",
            name=names[one.name],
            price=one.price,
            rate=one.rate,
            broadcast_s=one.broadcast_s if knows_broadcast else None,
            generation_s=one.generation_s if knows_generation else None,
            batch_rollouts=round(one.batch_rollouts) or None,
            start_s=one.start_s,
            start_price=one.start_price,
            stops_per_hour=one.stops_per_hour,
            is_rate_least=one.is_least,
        )
        for one in supplying
    )
    return Pool(machines=machines, currency=seen.terms.currency if seen.terms else "USD", settings={})


def _settings(seen: SwarmEstimator, began: Began, config: SwarmConfig | None) -> dict[str, Any]:
    found: dict[str, Any] = {"rollouts": began.rollouts, "staleness": began.staleness}
    estimates = {"train_s": seen.train_s, "broadcast_s": seen.broadcast_s, "generation_s": seen.generation_s}
    found |= {key: one.value for key, one in estimates.items() if one is not None and (one.value or key != "train_s")}
    if seen.broadcast_s is not None and seen.source_s is not None:
        found["source_s"] = seen.source_s
    if config is not None and config.price.per_hour:
        found["learner_price"] = config.price.per_hour
    if config is not None and config.learn.max_batches_ahead is not None:
        found["ahead"] = config.learn.max_batches_ahead
    return found


def _predicted(
    seen: SwarmEstimator, began: Began, pool: Pool | None, settings: Mapping[str, Any], peers: Mapping[str, str]
) -> Outcome | None:
    """Return what our model predicts for the last steps as they were: their window, period, and active peers."""
    if pool is None or not settings["train_s"] or not {"broadcast_s", "generation_s"} <= settings.keys():
        return None
    if began.staleness > MAX_WINDOW:
        return None
    terms = terms_of(pool, {}, settings)
    active = [one for one in terms.setting.candidates if peers[one.name] in seen.active]
    if not active:
        return None
    windows = Windows(terms.setting)
    if began.staleness == 0 or began.mode == "sequential":
        return windows.in_turns(active)
    choice = Choice(chosen=tuple(active), price=math.fsum(one.running_price for one in active))
    outcome = windows.outcome(began.staleness, min(seen.kappa or began.kappa, began.staleness), choice)
    return outcome if math.isfinite(outcome.period_s) else None
