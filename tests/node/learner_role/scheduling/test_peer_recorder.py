"""Record a run and its peers: read back, the recording gives what happened."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from learner.provisioning.estimation.estimator import fit
from learner.provisioning.estimation.recording import (
    Began,
    Delivered,
    Installed,
    Joined,
    Left,
    Passed,
    Published,
    Recorded,
    Stepped,
    Withdrawn,
)
from learner.rollouts.episodes import RECENT
from node.learner_role.scheduling.peer_recorder import FASTEST, HOURS_AGAIN_S
from protocol.accounting.claims import Price
from protocol.core.ids import LeaseId
from protocol.versions.staleness import Chain
from protocol.work import IN_GOOD_ORDER, Heartbeat, LeaseRequest, LeaseReturn, Started, Welcome, open_lease
from tests.support.learner_fixture import FakePeer, FakeTrainer, Learner, Settings, crash_once, hello, open_learner
from tests.support.trainer_fixture import NOW_MS, PEER, SWARM, version

HERE = PEER.peer_id
NOW_S = NOW_MS / 1000
ROOMY = Settings(prompts=8, group_size=2, steps=99)

pytestmark = pytest.mark.usefixtures("mock_clock")


def of(learner: Learner, kind: type) -> list[Recorded]:
    return [event for event in learner.recorded() if isinstance(event, kind)]


async def leased(learner: Learner, rollouts: int = 4) -> list[LeaseId]:
    grant = await learner.sessions.grant(HERE, LeaseRequest(rollouts=rollouts))
    leases = [open_lease(raw, SWARM.authority.swarm, learner=SWARM.learner.peer_id) for raw in grant.leases]
    return [LeaseId(lease.id) for lease in leases]


async def test_a_whole_run_reads_back(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(steps=4, publish_every=2)) as learner:
        await learner.train(FakePeer())
    events = learner.recorded()
    assert isinstance(events[0], Began)
    assert (events[0].rollouts, events[0].group_size, events[0].staleness, events[0].kappa) == (4, 2, 1, 2)
    steps = [event for event in events if isinstance(event, Stepped)]
    assert [(event.step, event.rollouts, sum(event.lags.values())) for event in steps] == [
        (step, 4, 4) for step in range(1, 5)
    ]
    assert [event.version for event in events if isinstance(event, Published)] == [0, 2, 4]
    delivered = [event for event in events if isinstance(event, Delivered)]
    assert sum(event.admitted for event in delivered) >= 16
    assert all(event.peer == HERE and event.admitted + event.refused == 2 for event in delivered)
    assert fit(events).tokens_per_rollout == learner.recorder.observatory.tokens_per_rollout == 3


async def test_what_a_step_took_is_told_with_its_publication(tmp_path: Path, mock_clock: MockClock) -> None:
    def script(op: str, moment: str) -> None:
        mock_clock.jump({"step": 0.05, "export": 0.02}.get(op, 0.0))  # before, and after

    async with open_learner(
        tmp_path, Settings(steps=4, publish_every=2), trainer=FakeTrainer(script=script)
    ) as learner:
        learner.context.signals.version_published.subscribe(lambda _: mock_clock.jump(0.03))
        await learner.train(FakePeer())
    steps = [event for event in learner.recorded() if isinstance(event, Stepped)]
    took_ms = [(round(1000 * event.busy_s), round(1000 * event.publish_s)) for event in steps]
    assert took_ms == [(100, 0), (100, 0), (170, 70), (100, 0)], "each step must have the time since the step before"
    (rest,) = [event for event in learner.recorded() if isinstance(event, Passed)]
    assert rest.time["publication"] == pytest.approx(0.07), "the last version's"
    train = learner.recorder.observatory.train_s
    assert train is not None
    assert train.value == pytest.approx(0.135), "half a publication is in each"


async def test_a_trainer_that_crashed_begins_anew_with_those_who_are_here(tmp_path: Path) -> None:
    trainer = FakeTrainer(script=crash_once("step", "before", 3))
    async with open_learner(tmp_path, Settings(steps=4), trainer=trainer) as learner:
        await learner.train(FakePeer())
    events = learner.recorded()
    began = [index for index, event in enumerate(events) if isinstance(event, Began)]
    assert [events[index].step for index in began] == [0, 2]  # type: ignore[union-attr]
    assert isinstance(events[began[1] + 1], Joined)


async def test_peers_come_install_and_go(tmp_path: Path) -> None:
    async with open_learner(tmp_path, ROOMY) as learner:
        await learner.training.begin()
        asked = hello(name="attic", machine="box", price=Price(micros_per_hour=350_000))
        assert isinstance(await learner.sessions.welcome(HERE, asked), Welcome)
        for installed in (None, version("1.0"), version("1.0"), version("4.9")):
            learner.sessions.take_heartbeat(HERE, Heartbeat(installed=installed))
        learner.sessions.note_departure(HERE, IN_GOOD_ORDER)
        learner.sessions.take_heartbeat(HERE, Heartbeat(installed=version("1.0")))
        learner.sessions.note_departure(HERE, IN_GOOD_ORDER)
    assert of(learner, Joined) == [Joined(at_s=NOW_S, peer=HERE, name="attic", machine="box", price=0.35)]
    assert of(learner, Installed) == [Installed(at_s=NOW_S, peer=HERE, version=0)]
    assert of(learner, Left) == [Left(at_s=NOW_S, peer=HERE, reason=IN_GOOD_ORDER)]
    assert learner.logged("trouble") == []


async def test_who_goes_back_and_forth_between_two_versions_fills_no_recording(tmp_path: Path) -> None:
    async with open_learner(tmp_path, ROOMY) as learner:
        await learner.training.begin()
        learner.capacity.chain = Chain(bases=(0,), head=version("1.3"))
        assert isinstance(await learner.sessions.welcome(HERE, hello()), Welcome)
        for installed in ["1.0", "1.1"] * 50 + ["1.3"]:
            learner.sessions.take_heartbeat(HERE, Heartbeat(installed=version(installed)))
    assert [event.version for event in of(learner, Installed)] == [0, 1, 3]  # type: ignore[attr-defined]


async def test_another_currency_is_told(tmp_path: Path) -> None:
    async with open_learner(tmp_path, ROOMY) as learner:
        await learner.training.begin()
        await learner.sessions.welcome(HERE, hello(price=Price(micros_per_hour=0, currency="EUR")))
        assert learner.logged("trouble") == []
        await learner.sessions.welcome(HERE, hello(price=Price(micros_per_hour=1, currency="EUR")))
        [trouble] = learner.logged("trouble")
        assert "EUR" in str(trouble["text"])
        assert "USD" in str(trouble["text"])


async def test_a_delivery_is_dated_by_the_learners_clock(tmp_path: Path) -> None:
    async with open_learner(tmp_path, ROOMY) as learner, trio.open_nursery() as nursery:
        await learner.training.begin()
        nursery.start_soon(learner.intake.run, learner.arriving)
        await learner.sessions.welcome(HERE, hello())
        peer = FakePeer()
        grant = await learner.sessions.grant(HERE, LeaseRequest(rollouts=4))
        first, second = (open_lease(raw, SWARM.authority.swarm, learner=SWARM.learner.peer_id) for raw in grant.leases)
        learner.wall.ms += 5_000
        learner.sessions.take_start(HERE, Started(lease=first.id, version=version("1.0")))
        learner.wall.ms += 7_000
        await peer.answer(learner, first)  # says again that it began; the first word counts
        await peer.answer(learner, second)
        nursery.cancel_scope.cancel()
    one, other = of(learner, Delivered)
    assert isinstance(one, Delivered)
    assert isinstance(other, Delivered)
    assert (one.leased_s, one.started_s, one.at_s) == (NOW_S, NOW_S + 5, NOW_S + 12)
    assert (other.leased_s, other.started_s, other.at_s) == (NOW_S, NOW_S + 12, NOW_S + 12)
    assert (one.admitted, one.refused, one.tokens, one.version) == (2, 0, 6, 0)


async def test_every_turn_of_an_episode_is_an_even_share_of_a_rollout(tmp_path: Path) -> None:
    """Or a plan would take a swarm for three times as fast as it is."""
    async with open_learner(tmp_path, ROOMY) as learner, trio.open_nursery() as nursery:
        peer = FakePeer()
        await learner.training.begin()
        await learner.sessions.welcome(HERE, hello())
        nursery.start_soon(learner.intake.run, learner.arriving)
        learner.capacity.episodes._turns.extend([3] * RECENT)  # recent episodes; those here end at once
        for _ in range(3):
            grant = await learner.sessions.grant(HERE, LeaseRequest(rollouts=2))
            for raw in grant.leases:
                await peer.answer(learner, open_lease(raw, SWARM.authority.swarm, learner=SWARM.learner.peer_id))
        nursery.cancel_scope.cancel()
        told = [event for event in of(learner, Delivered) if isinstance(event, Delivered)]
    assert [(event.admitted, event.refused) for event in told] == [(0, 0), (1, 0), (1, 0)]
    assert [event.tokens for event in told] == [0, 12, 6]


async def test_who_never_said_that_it_began_began_when_it_was_leased(tmp_path: Path) -> None:
    async with open_learner(tmp_path, ROOMY) as learner, trio.open_nursery() as nursery:
        await learner.training.begin()
        nursery.start_soon(learner.intake.run, learner.arriving)
        await learner.sessions.welcome(HERE, hello())
        peer, (lease,) = FakePeer(), await leased(learner, 2)
        learner.wall.ms += 30_000
        peer.undelivered[lease] = []
        await peer.deliver(learner, lease)
        nursery.cancel_scope.cancel()
    assert of(learner, Delivered) == [
        Delivered(at_s=NOW_S + 30, peer=HERE, admitted=0, refused=2, version=0, leased_s=NOW_S, started_s=NOW_S)
    ]


async def test_leases_that_end_without_a_delivery_are_told_once(tmp_path: Path) -> None:
    async with open_learner(tmp_path, ROOMY) as learner:
        await learner.training.begin()
        await learner.sessions.welcome(HERE, hello())
        back, kept, forgotten = await leased(learner, 6)
        learner.sessions.take_return(HERE, LeaseReturn(leases=[back, back], reason=""))
        await learner.sessions.welcome(HERE, hello(leases=[kept]))
        learner.sessions.note_departure(HERE, IN_GOOD_ORDER)
    assert forgotten != kept
    assert [(event.status, event.rollouts) for event in of(learner, Withdrawn) if isinstance(event, Withdrawn)] == [
        ("returned", 2),
        ("lost", 2),
        ("lost", 2),
    ]


async def test_a_trial_speed_is_taken_once_a_stay_and_in_reason(tmp_path: Path) -> None:
    async with open_learner(tmp_path, ROOMY) as learner:
        await learner.training.begin()
        await learner.sessions.welcome(HERE, hello())
        for speed in (0.0, 80.0, 8000.0):
            learner.sessions.take_heartbeat(HERE, Heartbeat(tokens_per_s=speed))
        await learner.sessions.welcome(HERE, hello())
        learner.sessions.take_heartbeat(HERE, Heartbeat(tokens_per_s=1e15))
        learner.sessions.note_departure(HERE, IN_GOOD_ORDER)
        learner.sessions.take_heartbeat(HERE, Heartbeat(tokens_per_s=80.0))
    # Completions may have four tokens, and are taken to have them until one was seen.
    assert [event.rate for event in of(learner, Joined) if isinstance(event, Joined)] == [0, 20, 0, FASTEST]


def ends(learner: Learner) -> list[float | None]:
    """What was written of when hours end, in seconds from NOW_S."""
    said = [event.until_s for event in of(learner, Joined) if isinstance(event, Joined)]
    return [None if until_s is None else until_s - NOW_S for until_s in said]


async def test_owners_hours_are_written_when_they_change_and_not_at_each_heartbeat(tmp_path: Path) -> None:
    async with open_learner(tmp_path, ROOMY) as learner:
        await learner.training.begin()
        called: list[int] = []
        learner.context.signals.peers_changed.subscribe(lambda _: called.append(learner.wall.ms - NOW_MS))

        def hear(left_s: float | None, after_s: float) -> None:
            learner.wall.ms += round(1000 * after_s)
            learner.sessions.take_heartbeat(HERE, Heartbeat(hours_left_s=left_s))

        await learner.sessions.welcome(HERE, hello())
        called.clear()
        hear(None, 0)
        hear(3600.0, 5)
        for _ in range(100):
            hear(3600.0 - (learner.wall.ms - NOW_MS) / 1000, 35)  # the same end, as far as words and clocks tell
        hear(0.0, 105)
        hear(0.0, 5)
        assert called == [5000]
        assert learner.recorder.observatory.resting(learner.recorder.now_s()) == {HERE}
        hear(43_200.0, 40_000)
        assert learner.recorder.observatory.resting(learner.recorder.now_s()) == frozenset()
        hear(None, 60)
    assert ends(learner) == [None, 3605.0, 43_615.0 + 43_200.0, None]


async def test_who_comes_back_outside_its_hours_is_still_outside_them(tmp_path: Path) -> None:
    async with open_learner(tmp_path, ROOMY) as learner:
        await learner.training.begin()
        for left_s in (0.0, None):
            await learner.sessions.welcome(HERE, hello())
            learner.sessions.take_heartbeat(HERE, Heartbeat(hours_left_s=left_s))
            learner.sessions.note_departure(HERE, IN_GOOD_ORDER)
        await learner.sessions.welcome(HERE, hello())
    assert ends(learner) == [None, 0.0, 0.0, None, None]


async def test_a_peer_that_says_something_else_each_time_is_not_listened_to_each_time(tmp_path: Path) -> None:
    async with open_learner(tmp_path, ROOMY) as learner:
        await learner.training.begin()
        await learner.sessions.welcome(HERE, hello())
        for number in range(300):
            learner.wall.ms += 1000
            learner.sessions.take_heartbeat(HERE, Heartbeat(hours_left_s=(0.0, 1e5)[number % 2]))
        assert learner.scheduler.worker(HERE).until_ms == learner.wall.ms + 1e8, "leases go by its last word"
    assert 300 / HOURS_AGAIN_S <= len(ends(learner)) - 1 <= 300 / HOURS_AGAIN_S + 1


async def test_hours_stand_where_a_recording_goes_on_in_another_file(tmp_path: Path) -> None:
    async with open_learner(tmp_path, ROOMY) as learner:
        await learner.training.begin()
        await learner.sessions.welcome(HERE, hello())
        learner.sessions.take_heartbeat(HERE, Heartbeat(hours_left_s=600.0))
        learner.recorder.begin(0)
        again = [event for event in of(learner, Joined) if isinstance(event, Joined)][-1]
        assert again.until_s == NOW_S + 600
        assert fit(learner.recorded()).candidates(NOW_S + 100)[0].remaining_s == 500
