"""The command line overrides POOL, POOL overrides a run; and T_bcast comes from the right source."""

from __future__ import annotations

from typing import Any

import pytest

from learner.provisioning.model.broadcast_time import OVER_BOUND
from node.commands.plan.inputs import Terms, terms_of
from node.commands.plan.pool import pool_of
from node.runtime.errors import UsageError

BOX = {"name": "box", "price": 1, "rate": 1}
TIMES = {"train_s": 60.0, "rollouts": 64, "broadcast_s": 30.0}


def terms(*rows: dict[str, Any], settings: Any = None, command: Any = None, run: Any = None) -> Terms:
    pool = pool_of("pool", rows=[(f"row {i}", row) for i, row in enumerate(rows)], settings=settings or {})
    return terms_of(pool, TIMES if command is None else command, run)


def test_the_command_line_wins_over_the_pool_and_the_pool_over_the_run() -> None:
    run = {"train_s": 1.0, "rollouts": 1, "broadcast_s": 1.0, "staleness": 1, "learner_price": 1.0}
    found = terms(BOX, settings={"train_s": 2.0, "rollouts": 2, "ahead": 4.0}, command={"train_s": 3.0}, run=run)
    timings = found.setting.timings
    assert (timings.train_s, timings.rollouts, timings.broadcast_s) == (3.0, 2, 1.0)
    assert (found.staleness, found.setting.ahead, found.setting.learner_price) == (1, 4.0, 1.0)


def test_a_machine_s_own_times_are_its_own() -> None:
    own = {**BOX, "name": "own", "broadcast_s": 90, "generation_s": 45}
    found = terms(BOX, own, command={**TIMES, "generation_s": 20.0})
    assert [(one.broadcast_s, one.generation_s) for one in found.setting.candidates] == [(30, 20), (90, 45)]
    assert (found.setting.timings.broadcast_s, found.setting.timings.generation_s) == (30, 20)


def test_t_bcast_of_the_swarm_is_that_of_ten_of_eleven_machines_where_it_is_not_given() -> None:
    quick = {**BOX, "count": 10, "broadcast_s": 10}
    slow = {**BOX, "name": "slow", "broadcast_s": 500}
    found = terms(quick, slow, command={"train_s": 60.0, "rollouts": 64})
    assert found.setting.timings.broadcast_s == found.setting.source_s == 10


def test_t_bcast_computed_from_lines() -> None:
    rows = (
        {**BOX, "count": 2, "up_mbit": 100, "down_mbit": 100},
        {**BOX, "name": "slow", "up_mbit": 0, "down_mbit": 10},
        {**BOX, "name": "own", "broadcast_s": 5},
    )
    command = {"train_s": 60.0, "rollouts": 64, "weights_mb": 100.0, "learner_up_mbit": 100.0, "install_s": 2.0}
    found = terms(*rows, command=command)
    sent_s = OVER_BOUND * 4 * 800 / 300
    assert [one.broadcast_s for one in found.setting.candidates] == pytest.approx(
        [sent_s + 2, sent_s + 2, OVER_BOUND * 80 + 2, 5]
    )
    assert found.setting.source_s == pytest.approx(sent_s)


def test_a_time_on_the_command_line_replaces_a_size_in_the_pool_and_the_other_way_round() -> None:
    rows = {**BOX, "up_mbit": 100, "down_mbit": 100}
    sized, timed = {"weights_mb": 100.0, "learner_up_mbit": 100.0}, {"broadcast_s": 7.0}
    times = {"train_s": 60.0, "rollouts": 64}
    assert terms(rows, settings=sized, command={**times, **timed}).setting.timings.broadcast_s == 7
    computed = terms(rows, settings=timed, command={**times, **sized}).setting.timings.broadcast_s
    assert computed == pytest.approx(OVER_BOUND * 8)


@pytest.mark.parametrize(
    ("command", "rows", "words"),
    [
        ({"rollouts": 64}, BOX, ["T_train is not known", "--train-s", "--from"]),
        ({"train_s": 60.0}, BOX, ["R is not known", "--rollouts"]),
        ({"train_s": 60.0, "rollouts": 64}, BOX, ["T_bcast is not known", "--broadcast-s", "row 0 (box)"]),
        ({**TIMES, "weights_mb": 1.0}, BOX, ["only one of them"]),
        ({"train_s": 60.0, "rollouts": 64, "weights_mb": 1.0}, BOX, ["uplink", "--learner-up-mbit"]),
        (
            {"train_s": 60.0, "rollouts": 64, "weights_mb": 1.0, "learner_up_mbit": 1.0},
            {**BOX, "up_mbit": 3},
            ["row 0 (box)", "down_mbit"],
        ),
        ({**TIMES, "train_s": 0.01}, BOX, ["row 0 (box)", "3,000 training steps"]),
        (TIMES, {**BOX, "broadcast_s": 1e12}, ["row 0 (box)", "training steps", "leave the machine out"]),
    ],
)
def test_what_is_missing_is_asked_for(command: dict[str, Any], rows: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        terms(rows, command=command)
    for word in words:
        assert word in str(refused.value)
