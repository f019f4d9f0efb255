"""Turn a recorded run into a swarm to simulate: its peers as they were, with their times of coming and going.

Invariants:

- If a run was started several times, the start with the most steps is replayed, up to its last step.
- Peers are active when the run had them active.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev

from learner.provisioning.estimation.estimator import SwarmEstimator, fit
from learner.provisioning.estimation.learner_time import LearnerTime, TimeKind
from learner.provisioning.estimation.recording import Began, Joined, Planned, Recorded, Stepped
from learner.provisioning.estimation.step_stats import Steps, steady, steps_of, time_of_run, time_of_step
from learner.simulation.trace import NEVER_S, Learning
from node.commands.plan.recordings import find_recording, peer_names, read_events
from node.commands.simulate.recorded_machines import machines_of
from node.commands.simulate.scenario import Swarm
from node.runtime.errors import UsageError
from protocol.core.limits import MAX_GROUP_SIZE


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A swarm that was recorded in `source`, and the measurements of its steps, except the first ones of its start.

    Args:
        time: what the learner's time went into, over the whole recording.
        silent: peers that are left out, because they neither delivered nor reported their speed.
    """

    source: str
    swarm: Swarm
    steps: Steps
    time: LearnerTime
    seconds: float
    silent: int


def read_replay(target: Path, *, learner_price: float | None = None, broadcast_s: float | None = None) -> Replay:
    """Return the run that `target` names. Raises UsageError.

    Args:
        learner_price: price of the learner's machine, which no recording contains.
        broadcast_s: T_bcast for a recording in which no version was sent.
    """
    path, config = find_recording(target)
    everything = read_events(path)
    events = _longest(everything)
    if events is None:
        raise UsageError(f"{path} contains no training step yet. Let the run take some steps, then replay it.")
    seen = fit(events)
    began = events[0]
    assert isinstance(began, Began)
    names = peer_names(_called(events))
    stepped, _ = steady(events)
    seconds = events[-1].at_s - began.at_s
    _require_sane(path, began, seen, broadcast_s)
    machines = tuple(machines_of(events, seen, names, unseen_s=broadcast_s or 0.0))
    if not machines:
        raise UsageError(f"{path}: no peer delivered or reported its speed, so there is nothing to simulate.")
    took = _took([event for event in events if isinstance(event, Stepped)])
    learning = Learning(
        rollouts=began.rollouts,
        group_size=began.group_size,
        staleness=began.staleness,
        kappa=min(began.kappa, max(1, began.staleness)),
        broadcast_s=(seen.source_s if seen.broadcast_s is not None else broadcast_s) or 0.0,
        ahead=config.learn.max_batches_ahead if config is not None else None,
        lease_s=config.learn.lease_timeout_s if config is not None else NEVER_S,
        price=learner_price if learner_price is not None else config.price.per_hour if config is not None else 0.0,
        train_s=took.train_s,
        train_spread=took.train_spread,
        overhead_s=took.overhead_s,
        publish_s=took.publish_s,
        tells_kinds=took.tells_kinds,
    )
    plans = tuple(
        Planned(
            at_s=event.at_s - began.at_s,
            active=sorted({names[peer] for peer in event.active if peer in names}),
            kappa=min(event.kappa, max(1, began.staleness)),
            price=event.price,
            reasons=event.reasons,
        )
        for event in events
        if isinstance(event, Planned)
    )
    swarm = Swarm(
        learning=learning,
        machines=machines,
        kinds={one.name: one.name for one in machines},
        currency=began.currency,
        copy_s=learning.broadcast_s,
        seconds=max(seconds, 1.0),
        kappa=None if plans else learning.kappa,
        plans=plans,
        is_planned=bool(plans),
    )
    steps = steps_of(stepped)
    return Replay(
        source=str(path),
        swarm=swarm,
        steps=steps,
        time=time_of_run(everything),
        seconds=seconds,
        silent=len(names) - len(machines),
    )


def _require_sane(path: Path, began: Began, seen: SwarmEstimator, broadcast_s: float | None) -> None:
    if began.group_size > MAX_GROUP_SIZE:
        raise UsageError(f"{path}: no swarm has groups of {began.group_size:,} rollouts. The recording is damaged.")
    if seen.broadcast_s is None and broadcast_s is None:
        raise UsageError(f"{path} contains no broadcast of a version, so T_bcast is not known. Give --broadcast-s.")


def _longest(events: Sequence[Recorded]) -> list[Recorded] | None:
    """Return the start with the most steps, up to the last of them; None without any step."""
    starts: list[list[Recorded]] = []
    for event in events:
        if isinstance(event, Began):
            starts.append([])
        starts[-1].append(event)
    cut = [start[: last + 1] for start in starts if (last := _last_step(start)) is not None]
    return max(cut, key=lambda start: sum(isinstance(one, Stepped) for one in start), default=None)


def _last_step(events: Sequence[Recorded]) -> int | None:
    return max((number for number, event in enumerate(events) if isinstance(event, Stepped)), default=None)


def _called(events: Sequence[Recorded]) -> dict[str, str]:
    """Return the display name of each peer, "" if it never gave one."""
    called: dict[str, str] = {}
    for event in events:
        if isinstance(event, Joined):
            called[event.peer] = event.name or called.get(event.peer, "")
    return called


@dataclass(frozen=True, kw_only=True)
class _Took:
    """The durations of steps, as `Learning` has them."""

    train_s: float
    train_spread: float
    overhead_s: float
    publish_s: float
    tells_kinds: bool


def _took(steps: Sequence[Stepped]) -> _Took:
    tells_kinds = all(step.time for step in steps)
    others = [time_of_step(step).of(TimeKind.BATCH, TimeKind.LEDGER) if tells_kinds else 0.0 for step in steps]
    trained = [max(0.0, one.busy_s - one.publish_s - other) for one, other in zip(steps, others, strict=True)]
    published = [step.publish_s for step in steps if step.publish_s > 0]
    mean = fmean(trained)
    return _Took(
        train_s=max(mean, 1e-3),
        train_spread=pstdev(trained) / mean if mean > 0 else 0.0,
        overhead_s=fmean(others),
        publish_s=fmean(published) if published else 0.0,
        tells_kinds=tells_kinds,
    )
