"""The learner's row in its ledger: bytes carried by circuits are written once, however the learner ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import trio
from trio.testing import MockClock

from learner.ledger.rows import CarriedRow
from node.config.swarm_config import LearnSection, ModelSection, SwarmConfig, SwarmSection, TaskSection
from node.energy.meter_selection import Meters
from node.energy.monitor import EnergyWatch
from node.learner_role.announce import PRESENCE_S, LearnerAnnouncer
from node.network.budget_reports import FaultLog
from node.network.swarm_peer import SwarmPeer
from node.runtime.events import EventLog
from node.state.learner_state import LearnerStateDir, open_learner_home
from protocol.core.ids import PeerId
from swarm.transfer.serving import Knowledge
from tests.support.learner_fixture import Learner, Settings, open_learner, until
from tests.support.ledgers import ALPHA, BETA, GAMMA
from tests.support.trainer_fixture import NOW_MS


class Circuits:
    """Circuits that carry what a test says."""

    def __init__(self) -> None:
        self.waiting = Counter[tuple[PeerId, PeerId]]()

    def take(self) -> Mapping[tuple[PeerId, PeerId], int]:
        taken, self.waiting = self.waiting, Counter()
        return taken


def announcer(learner: Learner, home: LearnerStateDir, circuits: Circuits) -> LearnerAnnouncer:
    config = SwarmConfig(
        swarm=SwarmSection(name="a run", state=str(home.root)),
        model=ModelSection(directory="model"),
        task=TaskSection(spec="reverse"),
        learn=LearnSection(steps=9),
    )
    knowledge = Knowledge(genesis=home.genesis, newest=bytes, peers=list)
    meters = Meters(told="none")
    return LearnerAnnouncer(
        context=learner.context,
        config=config,
        home=home,
        serving=SwarmPeer.build(learner.transport, learner.store, knowledge, FaultLog(events=EventLog())).serving,
        take_carried=circuits.take,
        total_traffic=learner.transport.total_traffic,
        energy=EnergyWatch(lambda: meters, is_lent=lambda: True, engine_s=float, events=EventLog()),
    )


def told(learner: Learner) -> list[object]:
    return [fields["bytes_carried"] for fields in learner.logged("traffic")]


async def test_what_circuits_carried_is_told_and_written_once(tmp_path: Path, mock_clock: MockClock) -> None:
    circuits = Circuits()
    home = open_learner_home(tmp_path / "home", name="a run", certificate_days=1, now_ms=NOW_MS)
    async with open_learner(tmp_path, Settings()) as learner:
        row = announcer(learner, home, circuits)
        presence = await row.note()
        async with trio.open_nursery() as nursery:
            circuits.waiting[ALPHA, BETA] = 100
            nursery.start_soon(row.run, presence)
            await until(lambda: [one.num_bytes for one in learner.ledger.peers.carried()] == [100])
            circuits.waiting.update({(ALPHA, BETA): 20, (ALPHA, GAMMA): 3})

            def is_written() -> bool:
                mock_clock.jump(PRESENCE_S)  # again and again: it may not have fallen asleep yet
                return [one.num_bytes for one in learner.ledger.peers.carried()] == [120, 3]

            await until(is_written)
            circuits.waiting[ALPHA, GAMMA] += 4
            nursery.cancel_scope.cancel()
        assert learner.ledger.peers.carried() == [
            CarriedRow(one=ALPHA, other=BETA, num_bytes=120),
            CarriedRow(one=ALPHA, other=GAMMA, num_bytes=7),
        ]
        assert told(learner) == [100, 123, 127]
    home.close()
