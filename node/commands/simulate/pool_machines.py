"""Turn a pool into the machines of a simulation, with the same file and settings as `volery plan`.

Pure.

Invariants:

- A missing value is taken as in a plan. By Little's law, a machine generates as many rollouts at once as fit its rate
  and T_gen, rounded to whole groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from learner.provisioning.model.broadcast_time import source_s
from learner.provisioning.model.machine_selection import Candidate
from learner.simulation.machines import Absence, Change, Machine, batch_for
from learner.simulation.trace import Learning
from node.commands.plan.inputs import BYTES_PER_MB, Terms, terms_of
from node.commands.plan.pool import Happening, Pool
from node.commands.plan.pool import Machine as Row
from node.commands.simulate.scenario import Swarm

GROUP_SIZE = 4
"""Smaller than in most swarms: machines get whole groups, and small ones follow a machine's rate and T_gen closely."""

SPREAD = 0.1
BACK_S = 300.0

HOUR_S = 3600.0


def swarm_of(pool: Pool, command: Mapping[str, Any]) -> Swarm:
    """Return the swarm that a pool describes, with the settings of the command line. Raises UsageError."""
    terms = terms_of(pool, command)
    said = {**pool.settings, **command}
    setting, group = terms.setting, said.get("group_size", GROUP_SIZE)
    install_s = said.get("install_s", 0.0)
    rows = {name: row for row in pool.machines for name in row.names}
    return Swarm(
        learning=Learning(
            rollouts=setting.timings.rollouts,
            group_size=group,
            staleness=terms.staleness,
            kappa=1,
            train_s=setting.timings.train_s,
            train_spread=said.get("train_spread", 0.0),
            publish_s=said.get("publish_s", 0.0),
            broadcast_s=setting.source_s,
            ahead=setting.ahead,
            price=setting.learner_price or 0.0,
        ),
        machines=tuple(_machine(pool, rows[one.name], one, group, install_s) for one in setting.candidates),
        kinds=terms.kinds,
        currency=terms.currency,
        copy_s=_copy_s(terms, said),
        seconds=HOUR_S,
        kappa=setting.kappa,
    )


def _copy_s(terms: Terms, said: Mapping[str, Any]) -> float:
    """Return the seconds of one copy. If the size is not known, the source's own uplink is taken to limit T_bcast."""
    if not terms.is_computed:
        return terms.setting.source_s
    return source_s(BYTES_PER_MB * said["weights_mb"], said["learner_up_mbit"], [])


def _machine(pool: Pool, row: Row, one: Candidate, group: int, install_s: float) -> Machine:
    held = row.batch_rollouts or batch_for(row.rate, one.generation_s, group)
    return Machine(
        name=one.name,
        rate=row.rate,
        batch_rollouts=held,
        fixed_share=row.fixed_share,
        spread=SPREAD if row.spread is None else row.spread,
        broadcast_s=max(0.0, one.broadcast_s - install_s),
        install_s=min(install_s, one.broadcast_s),
        price=row.price,
        start_s=row.start_s,
        start_price=row.start_price,
        claimed_rate=row.rate,
        stops_per_hour=row.stops_per_hour,
        back_s=row.back_s or BACK_S,
        absences=tuple(Absence(**what) for what in _of(pool.absences, one.name)),
        changes=tuple(Change(**what) for what in _of(pool.changes, one.name)),
    )


def _of(happenings: tuple[Happening, ...], name: str) -> list[Mapping[str, float]]:
    return [one.values for one in happenings if name in one.names]
