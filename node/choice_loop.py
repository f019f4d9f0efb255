"""Drawing what peers may have chosen among, beside training, on the engine that audits.

What always holds: it takes at most `compute_share` of the time, nobody waits for it, and the engine is used by one at a
time; what cannot be drawn, or whose worth nobody can say, counts for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import trio

from learner.environment import Ended, Question, Reply
from learner.verification.choosing import Worth
from node.choice_desk import ChoiceDesk, Doubt
from node.engine.port import EngineError, VerifyingEngine
from node.events import EventLog
from node.intake_loop import Ask
from swarm.store import ChunkStore, StoreError


@dataclass(kw_only=True)
class ChoiceLoop:
    """See the module's paragraph. `ask`: what completions are worth."""

    engine: VerifyingEngine
    lock: trio.Lock
    store: ChunkStore
    desk: ChoiceDesk
    ask: Ask
    compute_share: float
    events: EventLog

    async def work(self) -> None:
        """Draw what waits, until cancelled."""
        while True:
            self.desk.added = trio.Event()  # before we look, or what comes meanwhile would wake nobody
            if (one := self.desk.next()) is None:
                await self.desk.added.wait()
                continue
            took_s = await self._draw(one)
            await trio.sleep(took_s * (1 / self.compute_share - 1))

    async def _draw(self, one: Doubt) -> float:
        """Draw it; returns how long the engine took."""
        async with self.lock:
            began = trio.current_time()
            try:
                completions = [*(made.tokens for made in one.made), *await self._generate(one)]
            except (EngineError, StoreError) as error:
                reason = str(error).splitlines()[0]
                self.events.emit("choice_impossible", version=str(one.other.name), reason=reason)
                completions = []
            finally:
                self.desk.over(one)
            took_s = trio.current_time() - began
        if completions:
            prompt = len(one.granted.lease.prompt) // 4
            replies = await self.ask(
                [
                    Question(index=one.granted.prompt_index, said=(tokens,), transcript=prompt + len(tokens))
                    for tokens in completions
                ]
            )
            if (rewards := _rewards(replies)) is not None:
                each = zip(completions, rewards, strict=True)
                await self.desk.conclude(one, [Worth(tokens=len(tokens), reward=reward) for tokens, reward in each])
        return took_s

    async def _generate(self, one: Doubt) -> list[tuple[int, ...]]:
        completions: list[tuple[int, ...]] = []
        for version, requests in self.desk.requests(one):
            if self.engine.installed != version:
                await self.engine.install(version, self.store.directory(version.manifest))
            completions += [made.tokens for made in await self.engine.generate(requests)]
        return completions


def _rewards(replies: Sequence[Reply]) -> list[float] | None:
    """What each is worth; None if nobody can say it of one."""
    ended = [reply for reply in replies if isinstance(reply, Ended) and not reply.void]
    return [reply.reward for reply in ended] if len(ended) == len(replies) else None
