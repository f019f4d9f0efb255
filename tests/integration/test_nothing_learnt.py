"""The policy can learn nothing from a task: the operator is told within some steps, or without any step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import trio

from learner.monitoring.thresholds import ADVICE, LIMITS, Alarm
from learner.trainer_api.advantages import advantages
from node.reports.model.report import Role
from node.ui.live_view import ViewState
from node.ui.view_updates import apply
from protocol.core.pipe import Arrays, Header
from tests.support.environments import one_turn
from tests.support.learner_fixture import FakePeer, FakeTrainer, Learner, Settings, open_learner

pytestmark = pytest.mark.usefixtures("mock_clock")


class Comparing(FakeTrainer):
    """Reports what a trainer reports of a batch: the fraction of it that has an advantage."""

    def _step(self, header: Header, arrays: Arrays) -> Header:
        found = advantages(arrays["rewards"], arrays["group_sizes"], "group_mean")
        share = float(np.mean(found != 0))
        return super()._step(header, arrays) | {"with_advantage": share, "trained_tokens": int(share * 100)}


def told(learner: Learner) -> list[dict[str, object]]:
    return [fields for fields in learner.logged("alarm_raised") if fields["alarm"] == Alarm.NOTHING_LEARNT.value]


@pytest.mark.parametrize("reward", [0.0, 1.0])
async def test_rewards_that_are_all_equal_raise_an_alarm(tmp_path: Path, reward: float) -> None:
    environment = one_turn(lambda index, tokens: reward)
    async with open_learner(tmp_path, Settings(steps=20), trainer=Comparing(), environment=environment) as learner:
        await learner.train(FakePeer())
        [alarm] = told(learner)
        assert alarm["step"] == LIMITS.barren < 50
        assert f"mean reward {reward:.3f}" in str(alarm["text"])
        assert ADVICE[Alarm.NOTHING_LEARNT] in str(alarm["text"])


async def test_it_stands_after_a_restart(tmp_path: Path) -> None:
    environment = one_turn(lambda index, tokens: 0.0)
    for steps in (14, 15):
        async with open_learner(
            tmp_path, Settings(steps=steps), trainer=Comparing(), environment=environment
        ) as learner:
            learner.sessions.recover_leases()
            await learner.train(FakePeer())
            assert len(told(learner)) == 1


async def test_rewards_that_differ_raise_none(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(steps=20), trainer=Comparing()) as learner:
        await learner.train(FakePeer())
        assert told(learner) == []


async def test_where_no_batch_takes_such_groups_it_is_told_without_a_step(tmp_path: Path) -> None:
    """Dynamic sampling drops all groups, and the learner would otherwise stand at step 0 without a message."""
    settings = Settings(steps=20, informative_only=True)
    environment = one_turn(lambda index, tokens: 0.0)
    async with open_learner(tmp_path, settings, environment=environment) as learner, trio.open_nursery() as nursery:
        nursery.start_soon(learner.train, FakePeer())
        while not told(learner):
            await learner.run.wait_changed()
        dropped = [one for one in learner.logged("delivery_judged") if one["dropped"] == "uninformative"]
        assert len(dropped) * 2 <= (LIMITS.barren + 2) * learner.capacity.batch
        assert learner.logged("step") == []
        [alarm] = told(learner)
        assert alarm["step"] == 0
        assert "no batch takes them" in str(alarm["text"])
        state = ViewState(role=Role.LEARNER)
        for name, fields in learner.log:
            apply(state, name, fields)
        assert "nothing_learnt" in state.alarms
        nursery.cancel_scope.cancel()
