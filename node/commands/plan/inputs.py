"""Collect the inputs of a plan: the command line takes precedence over POOL, and POOL over a recorded run.

Invariants:

- The first of the three that names T_bcast, as a time or as a size, decides it, except for machines whose own row names
  it.
- A missing value is a UsageError that names the option and the key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from learner.provisioning.model.broadcast_time import Link, arrival_s, quorum_s, source_s
from learner.provisioning.model.machine_selection import MARGIN, Candidate
from learner.provisioning.model.windows import STANDS_S, Setting, Timings
from node.commands.plan.pool import Machine, Pool
from node.commands.plan.pool_keys import MAX_WINDOW
from node.runtime.errors import UsageError

STALENESS, MAX_STALENESS = 3, 11
"""The default S of a swarm.toml, and the widest window that ECHO-2 tried."""

MAX_DELAY_STEPS = 1000
"""Widest window of a swarm.toml. The choice has a condition for each step until all machines take part."""

BYTES_PER_MB = 1e6

MANY = 1e9
"""Training steps above which a number of steps is shown with two significant digits."""

_HOUR = 3600.0
_BROADCAST = ("broadcast_s", "weights_mb")

_OTHERWISE = {*_BROADCAST, "train_s", "rollouts", "generation_s", "kappa", "margin", "ahead"}
"""Options that ask for something else than the machines that were enough in a run."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The question: a setting, the requested window, and the last window of the table.

    Args:
        kinds: the row of the pool, by candidate.
        broadcast: where T_bcast comes from, in words.
        is_computed: whether T_bcast is computed from the size of a version.
    """

    setting: Setting
    staleness: int
    max_staleness: int
    currency: str
    kinds: Mapping[str, str]
    broadcast: str
    is_computed: bool


@dataclass(frozen=True)
class Said:
    """The settings of the command line, POOL and a run, in this order."""

    levels: tuple[Mapping[str, Any], ...]

    def get(self, key: str, default: Any = None) -> Any:
        """Return the first value of `key`, else `default`."""
        return next((level[key] for level in self.levels if key in level), default)

    def need(self, key: str, what: str) -> Any:
        """Return the first value of `key`. Raises UsageError if there is none; `what` names it in words."""
        if (value := self.get(key)) is None:
            raise UsageError(
                f"{what} is not known. Give --{key.replace('_', '-')}, or {key} in the pool's [swarm] table, or --from "
                "with a recorded run."
            )
        return value

    def broadcast(self) -> tuple[str, float, Mapping[str, Any]] | None:
        """Return the first of T_bcast and size that is given, its value, and the level that gives it.

        Raises UsageError if one level gives both.
        """
        for level in self.levels:
            if all(key in level for key in _BROADCAST):
                raise UsageError("broadcast_s and weights_mb are both given in one place. Give only one of them.")
            for key in _BROADCAST:
                if key in level:
                    return key, level[key], level
        return None


def terms_of(pool: Pool, command: Mapping[str, Any], run: Mapping[str, Any] | None = None) -> Terms:
    """Return the question that `command`, `pool` and the settings of `run` make together. Raises UsageError."""
    said = Said((command, pool.settings, run or {}))
    train_s, rollouts = said.need("train_s", "T_train"), said.need("rollouts", "R")
    times, swarm_s, busy_s, words = _broadcast(pool.machines, said)
    _require_near(pool.machines, times, said.get("generation_s", 0.0), train_s)
    candidates = _candidates(pool.machines, times, said.get("generation_s", 0.0))
    generation_s = said.get("generation_s")
    if generation_s is None:
        generation_s = quorum_s([one.generation_s for one in candidates])
    staleness = said.get("staleness", STALENESS)
    if staleness > MAX_WINDOW:
        raise UsageError(f"S = {staleness} is above the widest window of a plan. Use --staleness {MAX_WINDOW} or less.")
    setting = Setting(
        timings=Timings(train_s=train_s, rollouts=rollouts, broadcast_s=swarm_s, generation_s=generation_s),
        source_s=busy_s,
        candidates=candidates,
        learner_price=said.get("learner_price"),
        kappa=said.get("kappa"),
        margin=said.get("margin", MARGIN),
        ahead=said.get("ahead"),
        stands_s=_HOUR * said.get("hours", STANDS_S / _HOUR),
        shown=None if command.keys() & _OTHERWISE else pool.shown,
    )
    return Terms(
        setting=setting,
        staleness=staleness,
        max_staleness=max(staleness, said.get("max_staleness", MAX_STALENESS)),
        currency=pool.currency,
        kinds={name: machine.name for machine in pool.machines for name in machine.names},
        broadcast=words,
        is_computed=(first := said.broadcast()) is not None and first[0] == "weights_mb",
    )


def _require_near(machines: Sequence[Machine], times: Sequence[float], generation_s: float, train_s: float) -> None:
    for machine, broadcast_s in zip(machines, times, strict=True):
        own_s = generation_s if machine.generation_s is None else machine.generation_s
        if (steps := (broadcast_s + own_s) / train_s) > MAX_DELAY_STEPS:
            told = f"{steps:,.0f}" if steps < MANY else f"{steps:.2g}"
            raise UsageError(
                f"{machine.where}: T_bcast + T_gen is {told} training steps, and no window has more than "
                f"{MAX_DELAY_STEPS}. Check its bandwidth and T_train, or leave the machine out."
            )


def _candidates(machines: Sequence[Machine], times: Sequence[float], generation_s: float) -> tuple[Candidate, ...]:
    return tuple(
        Candidate(
            name=name,
            price=machine.price,
            rate=machine.rate,
            broadcast_s=broadcast_s,
            generation_s=generation_s if machine.generation_s is None else machine.generation_s,
            batch_rollouts=machine.batch_rollouts or 0,
            start_s=machine.start_s,
            start_price=machine.start_price,
            stops_per_hour=machine.stops_per_hour,
            is_least=machine.is_rate_least,
        )
        for machine, broadcast_s in zip(machines, times, strict=True)
        for name in machine.names
    )


def _broadcast(machines: Sequence[Machine], said: Said) -> tuple[list[float], float, float, str]:
    """Return T_bcast of each row and of the swarm, the seconds a version keeps the source busy, and their origin."""
    match said.broadcast():
        case ("weights_mb", size_mb, _):
            return _from_lines(machines, size_mb, said)
        case (_, given_s, level):
            times = [given_s if one.broadcast_s is None else one.broadcast_s for one in machines]
            # A run also measured how long the source is busy with a version; otherwise that is T_bcast.
            whence = "measured" if level is said.levels[-1] else "given"
            return times, given_s, level.get("source_s", given_s), whence
        case _:
            if missing := next((one for one in machines if one.broadcast_s is None), None):
                raise UsageError(
                    f"T_bcast is not known. Give --broadcast-s, or --weights-mb with bandwidths, or broadcast_s in "
                    f"every row; {missing.where} has none."
                )
            times = [one.broadcast_s for one in machines if one.broadcast_s is not None]
            swarm_s = quorum_s(_each(times, machines))
            return times, swarm_s, swarm_s, "from the machines' own"


def _from_lines(machines: Sequence[Machine], size_mb: float, said: Said) -> tuple[list[float], float, float, str]:
    uplink = said.need("learner_up_mbit", "The learner's uplink, which is needed with weights_mb,")
    lines = [_link(machine) for machine in machines]
    size = BYTES_PER_MB * size_mb
    everybody = _each(lines, machines)
    install_s = said.get("install_s", 0.0)
    arrived = [arrival_s(size, uplink, line, everybody, install_s=install_s) for line in lines]
    times = [
        there if one.broadcast_s is None else one.broadcast_s for there, one in zip(arrived, machines, strict=True)
    ]
    words = f"computed: {size_mb:,g} MB, {uplink:g} Mbit/s from the learner"
    return times, quorum_s(_each(times, machines)), source_s(size, uplink, everybody), words


def _link(machine: Machine) -> Link:
    if machine.broadcast_s is None and (machine.up_mbit is None or machine.down_mbit is None):
        raise UsageError(
            f"{machine.where}: T_bcast is computed from weights_mb, which needs up_mbit and down_mbit. Give both, or "
            "give its broadcast_s."
        )
    return Link(up_mbit=machine.up_mbit or 0.0, down_mbit=machine.down_mbit or 0.0)


def _each(values: Sequence[T], machines: Sequence[Machine]) -> list[T]:
    return [value for value, machine in zip(values, machines, strict=True) for _ in range(machine.count)]
