"""Settings that change while a run goes on: what takes them, who is told, and which values are refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from node.state.operator_orders import NoSetting
from protocol.work import WINDOW, FromLearner, Window
from tests.support.learner_fixture import Settings, hello, open_learner
from tests.support.trainer_fixture import OTHER, PEER

pytestmark = pytest.mark.usefixtures("mock_clock")


async def test_another_window_decides_what_is_trained_on_and_nodes_hear_of_it(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(staleness=3)) as learner:
        told: list[tuple[str, FromLearner]] = []
        await learner.sessions.welcome(PEER.peer_id, hello(ext={WINDOW: b""}))
        await learner.sessions.welcome(OTHER.peer_id, hello())
        learner.context.signals.peer_told.subscribe(lambda news: told.append((news.peer, news.message)))
        settings = learner.operator.settings
        settings.change("staleness", 1, "the test")
        assert learner.capacity.window == learner.capacity.buffer.window == 1
        assert settings.planner._settings.staleness == 1
        assert told == [(PEER.peer_id, Window(staleness=1))], "an older node does not know the message"
        assert dict(learner.log)["setting_changed"] == {"key": "staleness", "value": 1, "by": "the test"}
        assert (await learner.sessions.welcome(PEER.peer_id, hello())).staleness == 1


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("staleness", 0, "S = 0 is the sequential mode"),
        ("staleness", 1, "S must be from 2, the training steps between versions, to 1000"),
        ("staleness", 1001, "to 1000"),
        ("staleness", 2.5, "staleness is a whole number, not 2.5"),
        ("staleness", math.nan, "staleness is a whole number, not nan"),
        ("learning_rate", 0, "A learning rate is a number above 0"),
        ("learning_rate", math.inf, "A learning rate is a number above 0"),
        ("every_versions", -1, "every_versions is 0"),
        ("publish", 2, "publish is 1 (versions are published) or 0"),
        ("publish", math.nan, "publish is 1 (versions are published) or 0"),
        ("group_size", 4, "'group_size' cannot be changed while the run goes on. These can: staleness, learning_rate"),
    ],
)
async def test_what_a_run_cannot_take_is_refused_and_changes_nothing(
    tmp_path: Path, key: str, value: float, says: str
) -> None:
    async with open_learner(tmp_path, Settings(staleness=3, publish_every=2)) as learner:
        with pytest.raises(NoSetting) as caught:
            learner.operator.settings.change(key, value, "the test")
        assert says in str(caught.value)
        assert learner.capacity.window == 3
        assert learner.run.live.learning_rate is None
        assert learner.run.live.every_versions is None
        assert learner.run.live.publishes


async def test_a_sequential_run_stays_one(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(staleness=0)) as learner:
        with pytest.raises(NoSetting, match="sequential"):
            learner.operator.settings.change("staleness", 2, "the test")


async def test_the_trainer_takes_the_new_rate_with_the_next_step(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings()) as learner:
        learner.operator.settings.change("learning_rate", 3e-5, "the test")
        assert learner.run.live.learning_rate == 3e-5


async def test_evaluations_come_in_the_new_period_and_publication_can_rest(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings()) as learner:
        for key, value in (("every_versions", 2), ("publish", 0)):
            learner.operator.settings.change(key, value, "the test")
        assert (learner.run.live.every_versions, learner.run.live.publishes) == (2, False)
        learner.operator.settings.change("publish", 1, "the test")
        assert learner.run.live.publishes
