"""A run whose learner never waited had enough machines, and a plan for it says so."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from learner.provisioning.estimation.estimator import fit
from learner.provisioning.estimation.recording import (
    FILE,
    Began,
    Delivered,
    Installed,
    Joined,
    Left,
    Planned,
    Published,
    Recorded,
    Stepped,
)
from learner.provisioning.model.windows import Outcome, Shown
from learner.simulation.machines import Machine
from learner.simulation.trace import Learning
from learner.simulation.world import World
from node.commands.plan.inputs import terms_of
from node.commands.plan.measured_run import Fitted, read_run
from node.commands.plan.plan import make_plan
from node.commands.plan.shown_run import HARDLY, shown_enough
from tests.support.examples import examples
from tests.support.plan_calls import plan, planned
from tests.support.recorded_runs import write

TAKES_S = 12.0
"""Each of two peers makes 16 rollouts in so long, and a training step takes 32."""

PROMISED = 0.10
"""Predicted and measured bubble differ by no more (`bubble_error_points` in docs/explain/benchmarks.md) ..."""

STEADY = 0.05
"""... where training steps vary by no more than in `benchmarks/capacity.py`: the model takes T_train for a constant."""


def busy_run(
    steps: int = 40, *, waited_s: float = 0.12, mode: str = "async", staleness: int = 3, held_s: float = 12.0
) -> list[Recorded]:
    """Two peers that are kept busy, and a learner of which every fourth step takes nearly twice as long as the others:
    12 s in the mean, 10 s by the median."""
    began = Began(
        at_s=0,
        swarm="s",
        mode=mode,
        rollouts=32,
        group_size=8,
        staleness=staleness,
        kappa=1,  # type: ignore[arg-type]
    )
    events: list[Recorded] = [began, *(Joined(at_s=0, peer=peer, price=0.5) for peer in "ab")]
    for peer in "ab":
        events.append(Installed(at_s=0.5, peer=peer, version=0))
    for step in range(steps):
        events += _step(step, waited_s, held_s)
    return events


def _step(step: int, waited_s: float, held_s: float) -> Iterator[Recorded]:
    at_s = 1 + step * TAKES_S
    yield Published(at_s=at_s, version=step + 1)
    for peer in "ab":
        yield Installed(at_s=at_s + 1, peer=peer, version=step + 1)
    for peer in "ab":
        end_s = at_s + TAKES_S - 0.5
        started_s = end_s - TAKES_S if step else at_s
        yield Delivered(
            at_s=end_s, peer=peer, admitted=16, tokens=16, version=step, leased_s=max(0.0, started_s - held_s),
            started_s=started_s,
        )  # fmt: skip
    busy_s = 18.0 if step % 4 == 3 else 10.0
    yield Stepped(at_s=at_s + TAKES_S, step=step + 1, waited_s=waited_s, busy_s=busy_s, rollouts=32, lags={2: 32})


def shown(events: list[Recorded]) -> Shown | None:
    seen = fit(events)
    return shown_enough(events, seen, {one.peer: one.peer for one in seen.profiles()})


def test_machines_with_which_the_learner_waited_for_a_hundredth_of_its_time_are_enough() -> None:
    found = shown(busy_run())
    assert found is not None
    assert found.names == {"a", "b"}
    assert (found.staleness, found.kappa) == (3, 1)
    assert found.bubble == pytest.approx(0.12 / 12.12)


def test_the_plan_of_a_run_that_never_waited_is_the_run(tmp_path: Path) -> None:
    """By the median step and with a reserve on top, 1.26 times the machines were wanted."""
    path = write(tmp_path / FILE, busy_run())
    found = planned("--from", path)
    ours = found["windows"][3]["ours"]
    assert (found["feasible"], found["remedies"], ours["shown_by_run"]) == (True, None, True)
    assert sum(ours["machines"].values()) == 2
    assert ours["bubble"] <= 0.0100
    assert found["terms"]["train_s"] == pytest.approx(12)
    said = " ".join(plan("--from", path).out.split())
    assert "enough in the run, whose learner waited 1.0% of its time" in said
    assert "may be faster than shown" not in said


def test_who_asks_for_something_else_is_told_what_that_takes(tmp_path: Path) -> None:
    path = write(tmp_path / FILE, busy_run())
    for changed in (("--train-s", 11), ("--rollouts", 40), ("--margin", 1.2), ("--kappa", 2)):
        assert not planned("--from", path, *changed, code=1)["feasible"]
    narrower, wider = (planned("--from", path, "--staleness", window, code=code) for window, code in ((1, 1), (6, 0)))
    assert not narrower["feasible"]
    assert wider["windows"][6]["ours"]["shown_by_run"]


def test_rates_of_peers_that_were_not_kept_busy_are_bounds(tmp_path: Path) -> None:
    path = write(tmp_path / FILE, busy_run(held_s=1.0))
    found = planned("--from", path)
    assert [row["rate_at_least"] for row in found["pool"]] == [True, True]
    least = {one["name"]: one["rate_at_least"] for one in found["measured"]["peers"]}
    assert list(least.values()) == [True, True]
    said = " ".join(plan("--from", path).out.split())
    assert "2 machines; admitted rollouts: at least 2.67 a second with all active" in said
    assert "or more" in said
    assert "These machines may be faster than shown, because the run did not keep them busy: " in said


@pytest.mark.parametrize(
    "events",
    [
        busy_run(waited_s=12 * HARDLY * 1.1),
        busy_run(mode="sequential"),
        busy_run(staleness=0),
        busy_run(10),
        [Left(at_s=300, peer="b"), *busy_run()],
    ],
    ids=["it waited", "in turns", "S = 0", "few steps", "who left"],
)
def test_nothing_was_shown(events: list[Recorded]) -> None:
    """Ten steps may have lived on what was in the buffer, and what somebody delivered who is gone is missing now."""
    ordered = sorted(events, key=lambda event: (event.at_s, not isinstance(event, Began | Joined)))
    assert shown(ordered) is None


def test_a_peer_that_stood_by_all_the_time_is_not_one_of_them() -> None:
    events = busy_run()
    active = Planned(at_s=0, kappa=1, active=["a", "b"], price=1, reasons=[])
    found = shown([*events[:3], Joined(at_s=0, peer="idle"), active, *events[3:]])
    assert found is not None
    assert found.names == {"a", "b"}


# Swarms in virtual time.


def simulated(path: Path, seed: int, supply: float, spread: float, way_s: float) -> Fitted:
    """A run of a small swarm whose machines give `supply` of R / T_train together; `spread` of the training steps, and
    `way_s` to the learner and through its verdict, of steps of 60 s."""
    rng = random.Random(seed)
    machines, staleness = rng.randint(2, 6), rng.randint(2, 5)
    learning = Learning(
        rollouts=64, group_size=4, staleness=staleness, kappa=1, train_s=60.0, train_spread=spread, publish_s=1.0,
        broadcast_s=rng.uniform(5, 40),
    )  # fmt: skip
    weights = [rng.uniform(0.5, 1.5) for _ in range(machines)]
    pool = [
        Machine(
            name=f"m{number}",
            rate=(rate := supply * 64 / 61 * weight / sum(weights)),
            batch_rollouts=max(4, round(rate * rng.uniform(6, 24) / 4) * 4),
            fixed_share=rng.uniform(0, 0.8),
            broadcast_s=learning.broadcast_s,
            install_s=0.5,
            latency_s=way_s,
            price=1.0,
        )
        for number, weight in enumerate(weights)
    ]
    events: list[Recorded] = []
    World(learning, pool, seed=seed, watch=events.append).run(steps=45, until_s=45 * 60 * 4)
    return read_run(write(path, events))


@given(st.integers(0, 1000), st.floats(0.6, 2.5), st.sampled_from([0.05, 0.5]), st.sampled_from([0.05, 3.0]))
@example(0, 1.0, 0.05, 0.05)
@example(1, 1.02, 0.05, 0.05)
@example(2, 1.05, 0.5, 3.0)
@example(3, 1.3, 0.5, 3.0)
@settings(max_examples=examples(60), deadline=None)
def test_a_plan_for_a_simulated_run_agrees_with_what_the_run_showed(
    tmp_path_factory: pytest.TempPathFactory, seed: int, supply: float, spread: float, way_s: float
) -> None:
    fitted = simulated(tmp_path_factory.mktemp("run") / FILE, seed, supply, spread, way_s)
    assert fitted.pool is not None
    measured, predicted = fitted.measured.late.bubble, fitted.measured.predicted
    assert predicted is not None
    if spread <= STEADY:
        assert predicted.bubble == pytest.approx(measured, abs=PROMISED)
    ours = make_plan(terms_of(fitted.pool, {}, fitted.settings)).asked.ours
    if measured <= HARDLY:
        assert isinstance(ours, Outcome)
        assert len(ours.choice.chosen) <= len(fitted.pool.machines)
        assert ours.bubble <= HARDLY + 1e-9
    if isinstance(ours, Outcome) and ours.is_shown:
        assert measured <= HARDLY
