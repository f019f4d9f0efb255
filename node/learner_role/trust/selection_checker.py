"""Drawing what peers may have chosen among, beside training, on the engine that audits.

What always holds: nobody waits for it, so it gives way to audits that training waits for, rests as
`node.learner_role.trust.engine_budget` says, and is routine where nothing speaks against a peer; the engine is used by
one at a time; what cannot be drawn, or whose worth nobody can say, counts for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, islice

import trio

from learner.rollouts.environment import Ask, Ended, Question, Reply
from learner.trust.audit_queue import Agenda
from learner.trust.selection_test import CompletionValue
from node.engine.interface import EngineError, VerifyingEngine
from node.learner_role.shared.context import Service
from node.learner_role.trust.engine_budget import EngineBudget
from node.learner_role.trust.selection_service import SelectionService, SelectionSuspect
from swarm.store import StoreError

GIVES_WAY_S = 60.0
"""Whoever is new is leased no more until its work was audited, and a draw takes as long as its completions: 20 s on an
H200. So audits go first, but for no longer than this: else whoever keeps sending newcomers would end all draws."""


@dataclass(kw_only=True, eq=False)
class SelectionLoop(Service):
    """See the module's paragraph. `ask`: what completions are worth; `agenda`: the audits that wait."""

    agenda: Agenda
    engine: VerifyingEngine
    lock: trio.Lock
    service: SelectionService
    ask: Ask
    budget: EngineBudget

    async def run(self) -> None:
        """Draw what waits, until cancelled."""
        while True:
            await self._give_way()
            self.service.added = trio.Event()  # before we look, or what comes meanwhile would wake nobody
            if (rest_s := self.budget.rest_s()) > 0:
                await trio.sleep(rest_s)
                continue
            if not (doubts := self.service.next(routine=self.budget.rest_s(routine=True) <= 0)):
                with trio.move_on_after(self.budget.rest_s(routine=True) if len(self.service) else math.inf):
                    await self.service.added.wait()
                continue
            took_s = await self._draw(doubts)
            self.budget.spend(took_s, routine=all(one.is_routine for one in doubts))
            await trio.to_thread.run_sync(self.ledger.trust.engine_used, "choices", took_s)

    async def _give_way(self) -> None:
        with trio.move_on_after(GIVES_WAY_S):
            while self.agenda.waiting:
                await self.state.wait_changed()

    async def _draw(self, doubts: Sequence[SelectionSuspect]) -> float:
        """Draw them; returns how long the engine took."""
        self.service.begin(doubts)
        async with self.lock:
            began = trio.current_time()
            try:
                drawn = await self._generate(doubts)
            except (EngineError, StoreError) as error:
                reason = str(error).splitlines()[0]
                self.events.emit("choice_impossible", version=str(doubts[0].versions[0].name), reason=reason)
                drawn = []
            finally:
                for one in doubts:
                    self.service.end(one)
            took_s = trio.current_time() - began
        for one, completions in zip(doubts, drawn, strict=False):
            await self._conclude(one, completions)
        return took_s

    async def _conclude(self, one: SelectionSuspect, completions: Sequence[tuple[int, ...]]) -> None:
        said = [*(made.tokens for made in one.made), *completions]
        prompt = len(one.granted.lease.prompt) // 4
        index = one.granted.prompt_index
        replies = await self.ask(
            [Question(index=index, said=(tokens,), transcript=prompt + len(tokens)) for tokens in said]
        )
        if (rewards := _rewards(replies)) is not None:
            each = zip(said, rewards, strict=True)
            await self.service.conclude(
                one, [CompletionValue(tokens=len(tokens), reward=reward) for tokens, reward in each]
            )

    async def _generate(self, doubts: Sequence[SelectionSuspect]) -> list[list[tuple[int, ...]]]:
        """Of each the completions that the service asks for, in its order; a version is loaded once for all of them."""
        asked = [self.service.requests(one) for one in doubts]
        parts = [part for one in asked for part in one]  # a version may be asked twice for one of them
        made: dict[int, list[tuple[int, ...]]] = {}
        for version in dict.fromkeys(version for version, _ in parts):
            if self.engine.installed != version:
                await self.engine.install(version, self.context.store.directory(version.manifest))
            wanted = [(place, requests) for place, (of, requests) in enumerate(parts) if of == version]
            generations = iter(await self.engine.generate([request for _, requests in wanted for request in requests]))
            for place, requests in wanted:
                made[place] = [one.tokens for one in islice(generations, len(requests))]
        places = count()
        return [[tokens for _ in one for tokens in made[next(places)]] for one in asked]


def _rewards(replies: Sequence[Reply]) -> list[float] | None:
    """What each is worth; None if nobody can say it of one."""
    ended = [reply for reply in replies if isinstance(reply, Ended) and not reply.void]
    return [reply.reward for reply in ended] if len(ended) == len(replies) else None
