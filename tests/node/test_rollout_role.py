"""What a rollout node does about an engine that is lost for good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import trio

from node.engine.port import EngineError, Generation, GenerationRequest
from node.events import EventLog
from node.rollout_role import RolloutRole
from swarm.causes import first_cause
from swarm.testing.memory import MemoryNetwork
from tests.learner.working import SWARM
from tests.node.learning import Learner, Settings, open_learner
from tests.node.rolling import serve, work_with
from tests.swarm.swarming import SwarmNode, open_node

LOST = "the engine process was ended: it held 9.00 GB of memory; restarted 5 times in 600 s and given up"


async def test_an_engine_that_was_given_up_ends_the_node_after_its_leases_went_back(tmp_path: Path) -> None:
    network, given_back, pending = MemoryNetwork(), list[object](), list[object]()

    def lose(role: RolloutRole, events: EventLog) -> None:
        async def generate(requests: Sequence[GenerationRequest]) -> list[Generation]:
            await trio.lowlevel.checkpoint()
            raise EngineError(LOST)

        def note(name: str, fields: Mapping[str, object]) -> None:
            if name == "leases_given_back":
                given_back.append(fields["reason"])
            if name == "work_pending":
                pending.append(fields["rollouts"])

        role.counts.tokens_per_s = 1.0  # no trial
        role.engine.generate = generate  # type: ignore[method-assign]
        events.listen(note)

    async def lost(learner: Learner, node: SwarmNode) -> None:
        with pytest.raises(EngineError, match="given up"), first_cause():
            await work_with(node, learner, tmp_path, 0.0, lose)

    async with (
        open_learner(tmp_path, Settings(steps=100_000, staleness=2, ahead=5.0), network=network) as learner,
        open_node(network, SWARM, tmp_path, "node", follows=True) as node,
        trio.open_nursery() as nursery,
    ):
        serve(learner)
        nursery.start_soon(learner.train)
        await lost(learner, node)
        nursery.cancel_scope.cancel()
    assert given_back == [LOST]
    assert len(pending) == 2, "said when it changes"
    assert pending[0] != 0 == pending[1]
