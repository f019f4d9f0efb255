"""Run the learner and the peers of a drill in one process, over a network in memory.

Invariants:

- The learner is the one that operators run, with its ledger, its trainer and its audits. Only two things are not real:
  the network, and that all peers share one engine.
- When `perform` returns or raises, its processes have ended.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from learner.rollouts.environment import Ended as EpisodeEnded
from node.commands.drill.attacks import Attack, Harm
from node.commands.drill.behaviours import Common
from node.commands.drill.relays import Relayed, Relays
from node.commands.drill.roster import Played, Roster
from node.commands.drill.shared_engine import SharedEngine
from node.config.invite_text import open_invite
from node.config.node_config import EngineSection
from node.config.swarm_config import NetworkSection, SwarmConfig
from node.engine.factory import open_verifying_engine
from node.learner_role.app import LearnerOutcome, run_learner
from node.learner_role.shared.run_state import RunState
from node.runtime.events import EventLog
from node.tasks.task_suite import TaskSuite
from protocol.core.identity import Keypair
from protocol.core.ids import LeaseId
from protocol.core.invite import Invite
from swarm.store.version_directory import Stage, directory_of
from swarm.testing.memory_transport import MemoryNetwork
from swarm.transport.interface import Transport

NICE = 5


@dataclass(frozen=True, kw_only=True)
class DrillSetup:
    """How many peers play, and what the cheats do.

    Args:
        poison: tokens of the text that the poisoning cheat writes.
        returns: whether a banned cheat comes back with the next attack and a new key.
    """

    honest: int
    cheats: int
    attacks: Sequence[Attack] = tuple(Attack)
    poison: tuple[int, ...] = ()
    seed: int = 0
    returns: bool = True


@dataclass(frozen=True, kw_only=True)
class DrillRun:
    """The result, and who played. `poisoned`: fraction of the newest honest completions that contain the poison."""

    outcome: LearnerOutcome
    played: tuple[Played, ...]
    poisoned: float
    relayed: Relayed


async def perform(config: SwarmConfig, suite: TaskSuite, cast: DrillSetup, events: EventLog) -> DrillRun:
    """Run the swarm of `config` with these peers to its last step.

    Raises UsageError, RunError and EngineError.
    """
    state = Path(config.swarm.state)
    section = EngineSection(kind="transformers", threads=1, nice=NICE)
    async with open_verifying_engine(section, events, name="engine of the players", state=state) as engine:
        scratch = state / "players"
        scratch.mkdir(parents=True, exist_ok=True)
        drill = _Drill(config, suite, cast, events, SharedEngine(engine=engine, scratch=scratch))
        await drill.run()
    return drill.collect()


@dataclass
class _Drill:
    """A learner and its peers while they run, and the results afterwards."""

    config: SwarmConfig
    suite: TaskSuite
    cast: DrillSetup
    events: EventLog
    foundry: SharedEngine
    network: MemoryNetwork = field(default_factory=MemoryNetwork)
    _outcome: LearnerOutcome | None = None
    _home: Transport | None = None
    _troupe: Roster | None = None
    _relays: Relays | None = None

    async def run(self) -> None:
        """Start the learner, let the peers join once it is ready, and end all when it has taken its last step."""
        ready, opened = trio.open_memory_channel[tuple[str, RunState]](1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.foundry.run)
            nursery.start_soon(self._learn, ready, nursery.cancel_scope)
            text, run = await opened.receive()
            nursery.start_soon(_follow, run, self.foundry, Path(self.config.swarm.state) / "store" / "versions")
            await run.opened.wait()
            invite = open_invite(text, now_ms=0)
            self._troupe, self._relays = self._players(invite, run), self._relaying(invite)
            nursery.start_soon(self._troupe.play)
            nursery.start_soon(self._relays.play)

    def collect(self) -> DrillRun:
        """Return the results. `played` is empty if the run ended before a peer could join."""
        assert self._outcome is not None, "a run ends with an outcome, or raises"
        return DrillRun(
            outcome=self._outcome,
            played=() if self._troupe is None else tuple(self._troupe.played),
            poisoned=0.0 if self._troupe is None else self._troupe.common.poisoned,
            relayed=Relayed() if self._relays is None else self._relays.outcome(),
        )

    async def _learn(self, ready: trio.MemorySendChannel[tuple[str, RunState]], scope: trio.CancelScope) -> None:
        self._outcome = await run_learner(
            self.config,
            self.suite,
            self.events,
            lambda invite, services: ready.send_nowait((invite, services.state)),
            transport=self._move_in,
        )
        scope.cancel()

    @asynccontextmanager
    async def _move_in(self, seed: bytes, _: NetworkSection, __: EventLog) -> AsyncIterator[Transport]:
        async with self.network.node("learner", peer_id=Keypair(seed).peer_id) as self._home:
            yield self._home

    def _players(self, invite: Invite, run: RunState) -> Roster:
        cast = self.cast
        return Roster(
            network=self.network,
            common=Common(
                foundry=self.foundry,
                swarm=invite.authority.swarm,
                reward=partial(_reward, run, self.suite),
                answer=partial(_answer, run, self.suite),
                poison=cast.poison,
                vocabulary=run.vocab_size,
            ),
            authority=invite.authority,
            learner=list(invite.addresses),
            token=invite.token,
            group=self.config.learn.group_size,
            honest=cast.honest,
            cheats=cast.cheats,
            attacks=[attack for attack in cast.attacks if attack.harm is not Harm.VERSIONS],
            seed=cast.seed,
            returns=cast.returns,
        )

    def _relaying(self, invite: Invite) -> Relays:
        assert self._home is not None, "a learner is ready once it has a transport"
        return Relays(
            network=self.network,
            authority=invite.authority,
            learner=self._home,
            scratch=self.foundry.scratch,
            lies=[attack for attack in self.cast.attacks if self.cast.cheats and attack.harm is Harm.VERSIONS],
        )


async def _follow(run: RunState, foundry: SharedEngine, versions: Path) -> None:
    """Copy every published version before the learner's store may evict it."""
    while True:
        if (signed := run.published) is not None and signed.version != foundry.newest:
            await foundry.publish(signed, directory_of(versions, signed, Stage.COMPLETE))
            continue
        await run.wait_changed()


def _reward(run: RunState, suite: TaskSuite, lease: LeaseId, tokens: Sequence[int]) -> float:
    """Return the reward of these tokens as the answer to an open lease; 0 if the lease is no longer open."""
    if (granted := run.capacity.leasing.open.get(lease)) is None:
        return 0.0
    reply = suite.environment(granted.prompt_index, (tuple(tokens),), len(tokens))
    return reply.reward if isinstance(reply, EpisodeEnded) else 0.0


def _answer(run: RunState, suite: TaskSuite, lease: LeaseId) -> tuple[int, ...]:
    """Return the right answer to an open lease without its stop id; () if the lease is no longer open."""
    if (granted := run.capacity.leasing.open.get(lease)) is None:
        return ()
    inner, name = suite.place(granted.prompt_index)
    return suite.tasks[name].answer(inner)[:-1]
