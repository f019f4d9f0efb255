"""Regenerate groups to find selective delivery, beside training, on the evaluation engine.

Invariants:

- It never blocks training. It gives way to audits that do, and pauses as `node.learner_role.trust.engine_budget` says.
  The check of a peer without evidence against it is routine.
- The engine has one user at a time.
- Groups that cannot be regenerated, or whose rewards cannot be computed, are no evidence.
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
"""Most seconds for which audits go first. A newcomer gets no more leases until its records are audited, and a check
takes as long as its completions: 20 s on an H200. Without a limit, a stream of newcomers could stop all checks."""


@dataclass(kw_only=True, eq=False)
class SelectionLoop(Service):
    """Regenerates the groups that wait. `ask` returns rewards. `agenda` has the audits that wait."""

    agenda: Agenda
    engine: VerifyingEngine
    lock: trio.Lock
    service: SelectionService
    ask: Ask
    budget: EngineBudget

    async def run(self) -> None:
        """Regenerate waiting groups until cancelled."""
        while True:
            await self._give_way()
            self.service.added = trio.Event()  # before the look, so that a group that comes meanwhile wakes us
            if (rest_s := self.budget.rest_s()) > 0:
                await trio.sleep(rest_s)
                continue
            if not (suspects := self.service.next(routine=self.budget.rest_s(routine=True) <= 0)):
                with trio.move_on_after(self.budget.rest_s(routine=True) if len(self.service) else math.inf):
                    await self.service.added.wait()
                continue
            took_s = await self._draw(suspects)
            self.budget.spend(took_s, routine=all(one.is_routine for one in suspects))
            await trio.to_thread.run_sync(self.ledger.trust.engine_used, "choices", took_s)

    async def _give_way(self) -> None:
        with trio.move_on_after(GIVES_WAY_S):
            while self.agenda.waiting:
                await self.state.wait_changed()

    async def _draw(self, suspects: Sequence[SelectionSuspect]) -> float:
        """Regenerate these groups and judge them. Return the seconds that the engine took."""
        self.service.begin(suspects)
        async with self.lock:
            began = trio.current_time()
            try:
                drawn = await self._generate(suspects)
            except (EngineError, StoreError) as error:
                reason = str(error).splitlines()[0]
                self.events.emit("choice_impossible", version=str(suspects[0].versions[0].name), reason=reason)
                drawn = []
            finally:
                for one in suspects:
                    self.service.end(one)
            took_s = trio.current_time() - began
        for one, completions in zip(suspects, drawn, strict=False):
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

    async def _generate(self, suspects: Sequence[SelectionSuspect]) -> list[list[tuple[int, ...]]]:
        """Return, for each group, the completions that the service requests, in its order. Loads each version once."""
        asked = [self.service.requests(one) for one in suspects]
        parts = [part for one in asked for part in one]  # one group may need a version twice
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
    """Return the rewards; None if one of them cannot be computed."""
    ended = [reply for reply in replies if isinstance(reply, Ended) and not reply.void]
    return [reply.reward for reply in ended] if len(ended) == len(replies) else None
