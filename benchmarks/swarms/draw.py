"""Draw random swarms: a learner and its machines, and their description for our model.

Pure.

Invariants:

- A seed is one swarm.
- Times are in proportion to T_train = TRAIN_S, so that their absolute values have no meaning.
- Every number is drawn from a named range below, and nothing drawn is discarded.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from learner.provisioning.model.capacity import Clockwork, Supplier
from learner.provisioning.model.machine_selection import Candidate
from learner.provisioning.model.windows import Timings
from learner.provisioning.planner.publish_period import Publishing, choose_kappa, usual_delay_s
from learner.simulation.machines import Machine
from learner.simulation.trace import Learning

TRAIN_S = 60.0
TRAIN_SPREAD = 0.05
"""Deviation over mean of a training step; the same batch takes the same time, but prompts differ in length."""

STALENESS = (1, 11)
PEERS = (3, 200)
"""Log-uniform."""

BROADCAST = (0.05, 2.0)
"""T_bcast over T_train."""

BROADCAST_SHARE = (0.6, 1.1)
"""One machine's T_bcast over the swarm's, and how much it varies between versions (DELAY_SPREAD)."""
DELAY_SPREAD = 0.1

GENERATION = (0.05, 0.6)
"""T_gen over T_train, of the swarm. One machine's is that times a log-normal factor with GENERATION_SPREAD, and longer
if its batch would be less than a group."""
GENERATION_SPREAD = 0.3

BATCH_SPREAD = (0.05, 0.3)
"""Deviation over mean of a batch's seconds, for one machine: with 0.3, one batch in twenty takes half as long again."""

FIXED_SHARE = (0.0, 0.8)
"""Share of a full batch's seconds that a batch of one takes too: 0 is an engine without batching."""

RATE_SPREAD = 0.6
"""Deviation of the logarithm of rates: the fastest sixth is 3.3 times as fast as the slowest sixth."""

GROUPS = (4, 8, 16)
GROUPS_AT_ONCE = (0.7, 3.0)
"""Groups that the mean machine generates at once, if the supply is just R / T_train."""

INSTALL = 0.01
PUBLISH = (0.0, 0.05)
"""Over T_train: loading a version, during which nothing is generated; publishing one, during which nothing is
trained."""

SUPPLY = (0.6, 1.4)
"""All rates together over R / T_train, for the measurement of waits."""

POOL = (1.3, 3.0)
"""The same of a pool to choose from."""

RICH_POOL = (3.0, 6.0)
"""The same for pools where the paper's rule must find enough: at S = 3 it asks for up to five times R / T_train."""

PRICE_SPREAD = 0.5
"""Deviation of the logarithm of the price per rollout."""

_P95 = 1.645
"""Standard deviations above the mean of a normal distribution beyond which a twentieth lies."""


@dataclass(frozen=True, kw_only=True)
class Swarm:
    """The operator's settings and the machines; `broadcast` and `supply` over T_train and R / T_train."""

    seed: int
    learning: Learning
    machines: tuple[Machine, ...]
    broadcast: float
    supply: float

    def clock(self) -> Clockwork:
        """Return the model's view: T_train with its share of a publication."""
        learning = self.learning
        return Clockwork(
            train_s=learning.train_s + learning.publish_s / learning.kappa,
            rollouts=learning.rollouts,
            staleness=learning.staleness,
            kappa=learning.kappa,
            broadcast_s=learning.broadcast_s,
        )


def drawn(
    seed: int,
    *,
    supply: tuple[float, float] = SUPPLY,
    staleness: tuple[int, int] = STALENESS,
    broadcast: tuple[float, float] = BROADCAST,
) -> Swarm:
    """Return a swarm; its kappa is any of 1 to S."""
    rng = random.Random(f"swarm {seed}")
    window, group = rng.randint(*staleness), rng.choice(GROUPS)
    peers = round(math.exp(rng.uniform(*(math.log(many) for many in PEERS))))
    broadcast_share, generation, share = rng.uniform(*broadcast), rng.uniform(*GENERATION), rng.uniform(*supply)
    batches = peers / share / generation  # by mean machines, in one training step at R / T_train
    rollouts = group * max(8, round(batches * rng.uniform(*GROUPS_AT_ONCE)))
    learning = Learning(
        rollouts=rollouts,
        group_size=group,
        staleness=window,
        kappa=rng.randint(1, window),
        train_s=TRAIN_S,
        train_spread=TRAIN_SPREAD,
        publish_s=TRAIN_S * rng.uniform(*PUBLISH),
        broadcast_s=TRAIN_S * broadcast_share,
    )
    machines = _machines(rng, peers, learning, generation_s=TRAIN_S * generation, total=share * rollouts / TRAIN_S)
    return Swarm(seed=seed, learning=learning, machines=machines, broadcast=broadcast_share, supply=share)


def _machines(
    rng: random.Random, peers: int, learning: Learning, *, generation_s: float, total: float
) -> tuple[Machine, ...]:
    weights = [rng.lognormvariate(0, RATE_SPREAD) for _ in range(peers)]
    machines = []
    for number, weight in enumerate(weights):
        rate, group = total * weight / math.fsum(weights), learning.group_size
        own_s = generation_s * rng.lognormvariate(0, GENERATION_SPREAD)
        machines.append(
            Machine(
                name=f"m{number}",
                rate=rate,
                batch_rollouts=max(group, round(rate * own_s / group) * group),
                fixed_share=rng.uniform(*FIXED_SHARE),
                spread=rng.uniform(*BATCH_SPREAD),
                broadcast_s=learning.broadcast_s * rng.uniform(*BROADCAST_SHARE),
                delay_spread=DELAY_SPREAD,
                install_s=INSTALL * TRAIN_S,
                price=3600 * rate * rng.lognormvariate(0, PRICE_SPREAD),
            )
        )
    return tuple(machines)


def supplier(machine: Machine) -> Supplier:
    """Return the average machine as exact knowledge would describe it to the model, which predicts mean waits."""
    return Supplier(
        rate=machine.rate,
        broadcast_s=machine.broadcast_s + machine.install_s,
        generation_s=machine.batch_s + 3 * machine.latency_s,
        lump_s=machine.batch_s,
    )


def slow(machine: Machine) -> Supplier:
    """Return the machine when it takes long: T_gen is the 95th percentile."""
    factor = math.exp(_P95 * math.sqrt(math.log1p(machine.spread**2))) / math.sqrt(1 + machine.spread**2)
    return replace(supplier(machine), generation_s=machine.batch_s * factor + 3 * machine.latency_s)


def candidate(machine: Machine) -> Candidate:
    """Return the machine as a plan sees it."""
    known = supplier(machine)
    return Candidate(
        name=machine.name,
        price=machine.price,
        rate=known.rate,
        broadcast_s=known.broadcast_s,
        generation_s=known.generation_s,
        batch_rollouts=machine.batch_rollouts,
    )


def timings(swarm: Swarm) -> Timings:
    """Return the input of the paper's rule: T_bcast and T_gen, the 95th percentile, of QUORUM of the supply."""
    suppliers = [slow(machine) for machine in swarm.machines]
    delay_s = usual_delay_s(suppliers)
    generation_s = usual_delay_s([replace(one, broadcast_s=0.0) for one in suppliers])
    return Timings(
        train_s=swarm.clock().train_s,
        rollouts=swarm.learning.rollouts,
        broadcast_s=max(0.0, delay_s - generation_s),
        generation_s=min(delay_s, generation_s),
    )


def planned(swarm: Swarm) -> Swarm:
    """Return the same swarm with the publication period that the planner would choose."""
    learning = swarm.learning
    publishing = Publishing(
        train_s=learning.train_s,
        delay_s=usual_delay_s(supplier(machine) for machine in swarm.machines),
        source_s=learning.broadcast_s,
        publish_s=learning.publish_s,
    )
    return replace(swarm, learning=replace(learning, kappa=choose_kappa(publishing, learning.staleness)))


def only(swarm: Swarm, names: Iterable[str]) -> Swarm:
    """Return the same swarm with only these machines."""
    chosen = set(names)
    return replace(swarm, machines=tuple(machine for machine in swarm.machines if machine.name in chosen))


def usual_generation(machines: Sequence[Machine]) -> float:
    """Return the mean seconds of a batch over T_train."""
    return math.fsum(machine.batch_s for machine in machines) / len(machines) / TRAIN_S
