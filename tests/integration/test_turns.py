"""Tasks of several turns, from lease to training step: who continues, what is trained on, what a kill costs."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from learner.rollouts.environment import Answered, Ended, Reply, Said
from protocol.core.ids import PolicyVersion
from protocol.core.pipe import Arrays, Header
from protocol.work import Lease, LeaseRequest, open_lease
from tests.node.learner_role.training.test_loop import unwrapped
from tests.support.learner_fixture import FakePeer, FakeTrainer, Killed, Learner, Settings, hello, open_learner
from tests.support.trainer_fixture import OTHER, SWARM

pytestmark = pytest.mark.usefixtures("mock_clock")

PROMPT = [5, 6, 7]
ANSWER = 61
"""The first token of every answer. Peers generate (1 to 60, 2, 0)."""
MOST_TURNS = 5


def environment(index: int, said: Said, transcript: int) -> Reply:
    """Continue after a turn that begins with 1, 4, 7 and so on, answering the transcript's length; each episode has its
    own return.
    """
    assert transcript == len(PROMPT) + sum(map(len, said)) + 3 * (len(said) - 1)
    if said[-1][0] % 3 != 1 or len(said) == MOST_TURNS:
        return Ended(reward=_return(said))
    return Answered(tokens=(ANSWER, len(said), transcript))


def _return(said: Said) -> float:
    return round(sum(turn[0] / 64**place for place, turn in enumerate(said)), 4)


@dataclass(kw_only=True)
class NotingTrainer(FakeTrainer):
    """A trainer that keeps the batches it was trained on."""

    batches: list[Arrays] = field(default_factory=list)

    def _step(self, header: Header, arrays: Arrays) -> Header:
        self.batches.append({name: array.copy() for name, array in arrays.items()})
        return super()._step(header, arrays)


def episodes_of(arrays: Arrays) -> Iterator[tuple[list[list[int]], list[list[int]], float]]:
    """Yield for each sequence the parts that the mask covers, the parts between, and the reward; the prompt is the
    first part between.
    """
    start = 0
    for length, reward in zip(arrays["lengths"], arrays["rewards"], strict=True):
        tokens, mask = (arrays[name][start : start + length] for name in ("tokens", "mask"))
        edges = [0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), int(length)]
        parts = [tokens[a:b].tolist() for a, b in pairwise(edges)]
        yield parts[1::2], parts[0::2], float(reward)
        start += length


def require_true(batches: list[Arrays]) -> Counter[int]:
    """Check that every sequence is an episode as the environment would have it; return how many there are of each
    length.
    """
    turns: Counter[int] = Counter()
    for arrays in batches:
        for said, read, reward in episodes_of(arrays):
            assert read[0] == PROMPT
            transcript, before = list(PROMPT), ()
            for place, tokens in enumerate(said):
                transcript, before = transcript + tokens, (*before, tuple(tokens))
                reply = environment(0, before, len(transcript))
                if place + 1 < len(said):
                    assert reply == Answered(tokens=tuple(read[place + 1]))
                    transcript += read[place + 1]
            assert reply == Ended(reward=pytest.approx(reward))
            assert len(said) == len(read), "a sequence must not end with an answer"
            turns[len(said)] += 1
    return turns


def turns_in(ledger: Path) -> list[tuple[bytes, int, int, int | None, str | None]]:
    """Return (root, turn, slot, step, why its group was dropped) of every admitted record."""
    with closing(sqlite3.connect(ledger)) as db:
        return db.execute(
            "SELECT coalesce(c.root, r.lease), coalesce(c.turn, 0),"
            " coalesce(json_extract(c.slots, '$[' || r.idx || ']'), r.idx), r.step, d.reason"
            " FROM records r LEFT JOIN continuations c USING (lease)"
            " LEFT JOIN dropped d ON d.lease = coalesce(c.root, r.lease) WHERE r.rule = 'admitted'"
        ).fetchall()


def require_sound(learner: Learner, batches: list[Arrays]) -> None:
    """Check that each turn of each episode was admitted once, and consumed with its whole group by one step or by none.
    The steps must have consumed what the trainer of the surviving chain was given.
    """
    rows = turns_in(learner.root / "ledger.sqlite")
    assert len({(root, turn, slot) for root, turn, slot, _, _ in rows}) == len(rows), "nothing is doubled"
    fates: dict[bytes, set[tuple[int | None, str | None]]] = {}
    for root, _, _, step, dropped in rows:
        fates.setdefault(root, set()).add((step, dropped))
    settled = {root: fate for root, fate in fates.items() if fate != {(None, None)}}
    assert all(len(fate) == 1 for fate in settled.values()), (
        "the turns of a group must all be trained on, or all be dropped"
    )
    for number, arrays in enumerate(batches, start=1):
        taken = [(root, turn, slot) for root, turn, slot, step, _ in rows if step == number]
        assert len({(root, slot) for root, _, slot in taken}) == len(arrays["lengths"])
        assert len(taken) == sum(len(said) for said, _, _ in episodes_of(arrays))


@pytest.mark.parametrize(
    "settings",
    [
        Settings(staleness=0, ahead=1.0),
        Settings(staleness=1, ahead=1.0, prompts=3),
        Settings(staleness=3, publish_every=2, steps=7, ahead=2.0),
        Settings(staleness=2, prompts=1, group_size=5, ahead=3.0),
    ],
    ids=str,
)
async def test_episodes_are_trained_on_whole_whoever_made_their_turns(tmp_path: Path, settings: Settings) -> None:
    trainer, peers = NotingTrainer(), (FakePeer(), FakePeer(key=OTHER, rollouts=1))
    async with open_learner(tmp_path, settings, trainer=trainer, environment=environment) as learner:
        await learner.train(*peers)
        assert learner.capacity.chain.head == PolicyVersion(1, settings.steps)
        turns = require_true(trainer.batches)
        assert max(turns) > 1, "some went on"
        require_sound(learner, trainer.batches)
        assert all(int(batch["lags"].max()) <= settings.staleness for batch in trainer.batches)
        assert learner.capacity.episodes.mean_turns > 1
        receipts = [verdict for peer in peers for receipt in peer.receipts.values() for verdict in receipt.verdicts]
        admitted = [verdict for verdict in receipts if verdict.admitted]
        assert len(admitted) == len(turns_in(tmp_path / "ledger.sqlite")), "every turn must be credited when it is made"
        assert sum(verdict.reward is None for verdict in admitted) > 0


KILLS = [
    ("leases_issued", "before", 3), ("leases_issued", "after", 3), ("leases_issued", "after", 6),
    ("deliveries_judged", "before", 2), ("deliveries_judged", "after", 2), ("deliveries_judged", "before", 9),
    ("deliveries_judged", "after", 9), ("step_trained", "before", 2), ("step_trained", "after", 2),
    ("step_trained", "after", 4), ("version_published", "before", 3), ("checkpointed", "after", 3),
]  # fmt: skip


@pytest.mark.parametrize(("call", "moment", "at"), KILLS)
async def test_killed_in_mid_episode_nothing_is_lost_and_nothing_doubled(
    tmp_path: Path, call: str, moment: str, at: int
) -> None:
    settings, peer = Settings(staleness=3, steps=6, prompts=3, ahead=2.0), FakePeer()
    async with open_learner(tmp_path, settings, environment=environment) as learner:
        learner.ledger.dies = (call, moment, at)
        with pytest.raises(Killed):
            await unwrapped(learner.train, peer)
        before = turns_in(tmp_path / "ledger.sqlite")
    trainer = NotingTrainer()
    async with open_learner(tmp_path, settings, trainer=trainer, environment=environment) as again:
        again.sessions.recover_leases()
        base = max((row.step for row in again.ledger.training.checkpoints()), default=0)
        await again.train(peer)
        assert again.capacity.chain.head.version == settings.steps
        require_true(trainer.batches)
        rows = turns_in(tmp_path / "ledger.sqlite")
        assert {row[:3] for row in before} <= {row[:3] for row in rows}, "an admitted turn is gone"
        kept = [step for *_, step, _ in rows if step is not None and step <= base]
        require_sound(again, [*_silent(sorted(set(kept)), rows), *trainer.batches])
        assert not peer.undelivered


@pytest.mark.parametrize(("call", "moment", "at"), KILLS)
async def test_a_start_with_fewer_turns_ends_the_episodes_that_are_longer_where_they_are(
    tmp_path: Path, call: str, moment: str, at: int
) -> None:
    settings, peer = Settings(staleness=3, steps=6, prompts=3, ahead=2.0), FakePeer()
    async with open_learner(tmp_path, settings, environment=environment) as learner:
        learner.ledger.dies = (call, moment, at)
        with pytest.raises(Killed):
            await unwrapped(learner.train, peer)

    def shorter(index: int, said: Said, transcript: int) -> Reply:
        return Ended(reward=_return(said))

    trainer = NotingTrainer()
    async with open_learner(tmp_path, settings, trainer=trainer, environment=shorter) as again:
        again.sessions.recover_leases()
        await again.train(peer)
        assert again.capacity.chain.head.version == settings.steps
        for said, read, reward in (episode for batch in trainer.batches for episode in episodes_of(batch)):
            assert len(said) == len(read)
            assert reward == pytest.approx(_return(tuple(map(tuple, said))))
        assert not peer.undelivered


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
async def test_killed_again_and_again_at_any_moment(tmp_path: Path, seed: int) -> None:
    luck = random.Random(seed)
    settings, peers = (
        Settings(staleness=3, steps=25, prompts=3, ahead=2.0),
        (FakePeer(), FakePeer(key=OTHER, rollouts=3)),
    )
    calls = ["leases_issued", "deliveries_judged", "step_trained", "version_published", "checkpointed"]
    before: set[tuple[bytes, int, int]] = set()
    for _ in range(4):
        async with open_learner(tmp_path, settings, environment=environment) as learner:
            learner.sessions.recover_leases()
            learner.ledger.dies = (luck.choice(calls), luck.choice(["before", "after"]), luck.randint(1, 4))
            with pytest.raises(Killed):
                await unwrapped(learner.train, *peers)
        rows = turns_in(tmp_path / "ledger.sqlite")
        now = {row[:3] for row in rows}
        assert len(now) == len(rows), "nothing is doubled"
        assert before <= now, "an admitted turn is gone"
        before = now
    trainer = NotingTrainer()
    async with open_learner(tmp_path, settings, trainer=trainer, environment=environment) as last:
        last.sessions.recover_leases()
        base = max((row.step for row in last.ledger.training.checkpoints()), default=0)
        await last.train(*peers)
        require_true(trainer.batches)
        rows = turns_in(tmp_path / "ledger.sqlite")
        assert before <= {row[:3] for row in rows}
        kept = sorted({step for *_, step, _ in rows if step is not None and step <= base})
        require_sound(last, [*_silent(kept, rows), *trainer.batches])


def _silent(steps: list[int], rows: list[Any]) -> list[Arrays]:
    """Return stand-ins for batches that the earlier process was trained on: as many turns of as many episodes."""
    found: list[Arrays] = []
    for number in steps:
        turns = Counter((root, slot) for root, _, slot, step, _ in rows if step == number)
        masks = [[0, *[1, 0] * (count - 1), 1] for count in turns.values()]
        found.append(
            {
                "lengths": np.array([len(mask) for mask in masks]),
                "mask": np.concatenate([np.array(mask) for mask in masks]),
                "tokens": np.zeros(sum(map(len, masks))),
                "rewards": np.zeros(len(masks)),
            }
        )
    return found


async def test_a_turn_whose_peer_is_gone_is_leased_again_under_another_name(tmp_path: Path) -> None:
    def two_turns(index: int, said: Said, transcript: int) -> Reply:
        return Answered(tokens=(ANSWER,)) if len(said) == 1 else Ended(reward=float(said[0][0]))

    async def lend(learner: Learner, peer: FakePeer) -> list[Lease]:
        grant = await learner.sessions.grant(peer.id, LeaseRequest(rollouts=2))
        return [open_lease(raw, SWARM.authority.swarm, learner=SWARM.learner.peer_id) for raw in grant.leases]

    settings, leaving, staying = Settings(staleness=0, ahead=1.0, prompts=1), FakePeer(), FakePeer(key=OTHER)
    async with open_learner(tmp_path, settings, environment=two_turns) as learner, trio.open_nursery() as nursery:
        await learner.training.begin()
        nursery.start_soon(learner.intake.run, learner.arriving)
        nursery.start_soon(learner.sessions.run)
        for peer in (leaving, staying):
            await learner.sessions.welcome(peer.id, hello())
        [first] = await lend(learner, leaving)
        await leaving.answer(learner, first)
        lost = await lend(learner, leaving)
        learner.sessions.leases.release(leaving.id)
        again = await lend(learner, staying)
        assert [lease.prompt for lease in again] == [lease.prompt for lease in lost]
        assert not {seed for lease in again for seed in lease.seeds} & {seed for lease in lost for seed in lease.seeds}
        for lease in again:
            await staying.answer(learner, lease)
        batch = learner.capacity.buffer.take(2, learner.capacity.chain)
        nursery.cancel_scope.cancel()
    assert batch is not None
    assert [one.turns for one in batch.groups[0].completions] == [2, 2]
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as db:
        rows = db.execute("SELECT peer, status FROM leases ORDER BY rowid").fetchall()
    told = [(leaving.id, "delivered"), *[(leaving.id, "lost")] * len(lost), *[(staying.id, "delivered")] * len(again)]
    assert rows == told
