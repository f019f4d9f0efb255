"""A drill's learner and its players in one process, over a network in memory.

What always holds: the learner is the one that operators run, with its ledger, its trainer and its audits; all that is
not real is the network and that players share one engine. When `perform` returns or raises, its processes are gone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from learner.rollouts.environment import Ended as EpisodeEnded
from node.commands.drill.attacks import ABOUT, Attack, Harm
from node.commands.drill.behaviours import Common
from node.commands.drill.relays import Relayed, Relays
from node.commands.drill.roster import Played, Roster
from node.commands.drill.shared_engine import SharedEngine
from node.config.invite_text import open_invite
from node.config.node_config import EngineSection
from node.config.swarm_config import NetworkSection, SwarmConfig
from node.engine.factory import open_verifying_engine
from node.learner_role.app import LearnerOutcome, run_learner
from node.learner_role.scheduling.run_state import RunState
from node.runtime.events import EventLog
from node.tasks.task_suite import TaskSuite
from protocol.core.identity import Keypair
from protocol.core.ids import LeaseId
from swarm.store.version_directory import Stage, directory_of
from swarm.testing.memory_transport import MemoryNetwork
from swarm.transport.interface import Transport

NICE = 5


@dataclass(frozen=True, kw_only=True)
class DrillSetup:
    """How many play, and what the cheats do. `poison`: what they write who write a text of their own, in tokens.
    `returns`: a cheat that is banned comes back with the next attack and a new key."""

    honest: int
    cheats: int
    attacks: Sequence[Attack] = tuple(Attack)
    poison: tuple[int, ...] = ()
    seed: int = 0
    returns: bool = True


@dataclass(frozen=True, kw_only=True)
class DrillRun:
    """How it went, and who played. `poisoned`: of the newest honest completions, the share with the poison in them."""

    outcome: LearnerOutcome
    played: tuple[Played, ...]
    poisoned: float
    relayed: Relayed


async def perform(config: SwarmConfig, schooling: TaskSuite, cast: DrillSetup, events: EventLog) -> DrillRun:
    """Run the swarm of `config` with this cast to its last step.

    Raises UsageError, RunError and EngineError.
    """
    network = MemoryNetwork()
    state = Path(config.swarm.state)
    ready, opened = trio.open_memory_channel[tuple[str, RunState]](1)
    outcome: LearnerOutcome | None = None
    home: Transport | None = None
    troupe: Roster | None = None
    relays: Relays | None = None
    async with AsyncExitStack() as stack:
        section = EngineSection(kind="transformers", threads=1, nice=NICE)
        engine = await stack.enter_async_context(
            open_verifying_engine(section, events, name="engine of the players", state=state)
        )
        scratch = state / "players"
        scratch.mkdir(parents=True, exist_ok=True)
        foundry = SharedEngine(engine=engine, scratch=scratch)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(foundry.work)

            @asynccontextmanager
            async def moved_in(seed: bytes, section: NetworkSection) -> AsyncIterator[Transport]:
                nonlocal home
                async with network.node("learner", peer_id=Keypair(seed).peer_id) as home:
                    yield home

            async def learn() -> None:
                nonlocal outcome
                outcome = await run_learner(
                    config,
                    schooling,
                    events,
                    lambda invite, run: ready.send_nowait((invite, run)),
                    transport=moved_in,
                )
                nursery.cancel_scope.cancel()

            nursery.start_soon(learn)
            text, run = await opened.receive()
            nursery.start_soon(partial(_follow, run, foundry, state / "store" / "versions"))
            invite = open_invite(text, now_ms=0)
            await run.opened.wait()
            assert home is not None, "a learner is ready once it has a transport"
            troupe = Roster(
                network=network,
                common=Common(
                    foundry=foundry,
                    swarm=invite.authority.swarm,
                    worth=partial(_worth, run, schooling),
                    answer=partial(_answer, run, schooling),
                    poison=cast.poison,
                    vocabulary=run.vocab_size,
                ),
                authority=invite.authority,
                learner=list(invite.addresses),
                token=invite.token,
                group=config.learn.group_size,
                honest=cast.honest,
                cheats=cast.cheats,
                attacks=[attack for attack in cast.attacks if ABOUT[attack].harm is not Harm.VERSIONS],
                seed=cast.seed,
                returns=cast.returns,
            )
            relays = Relays(
                network=network,
                authority=invite.authority,
                learner=home,
                scratch=scratch,
                lies=[attack for attack in cast.attacks if cast.cheats and ABOUT[attack].harm is Harm.VERSIONS],
            )
            nursery.start_soon(troupe.play)
            nursery.start_soon(relays.play)
    assert outcome is not None, "a run ends with an outcome, or raises"
    relayed = Relayed() if relays is None else relays.outcome()
    if troupe is None:  # over before anybody could join
        return DrillRun(outcome=outcome, played=(), poisoned=0.0, relayed=relayed)
    poisoned = troupe.common.poisoned
    return DrillRun(outcome=outcome, played=tuple(troupe.played), poisoned=poisoned, relayed=relayed)


async def _follow(run: RunState, foundry: SharedEngine, versions: Path) -> None:
    """Have every version that is published at hand, before the learner's store may forget it."""
    while True:
        if (signed := run.published) is not None and signed.version != foundry.newest:
            await foundry.publish(signed, directory_of(versions, signed, Stage.COMPLETE))
            continue
        await run.wait_changed()


def _worth(run: RunState, schooling: TaskSuite, lease: LeaseId, tokens: Sequence[int]) -> float:
    """What these tokens are worth as the answer to an open lease; 0 if it is open no more."""
    if (granted := run.leasing.open.get(lease)) is None:
        return 0.0
    reply = schooling.environment(granted.prompt_index, (tuple(tokens),), len(tokens))
    return reply.reward if isinstance(reply, EpisodeEnded) else 0.0


def _answer(run: RunState, schooling: TaskSuite, lease: LeaseId) -> tuple[int, ...]:
    """The right answer to an open lease, without its end."""
    if (granted := run.leasing.open.get(lease)) is None:
        return ()
    inner, name = schooling.place(granted.prompt_index)
    return schooling.tasks[name].answer(inner)[:-1]
