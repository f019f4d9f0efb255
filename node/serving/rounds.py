"""Generate spans of many completions in rounds of one call each, for engines that accept nothing during a batch.

Spans that are requested one by one would never meet: the engine would start each one as it comes, and the others would
wait for its end. So spans that are requested during a round make up the next one. It begins when every running
completion has asked for a span, or GRACE_S after the first did, so that a client that reads slowly delays nobody.

Invariants:

- The engine has one call at a time.
- A span is over with its last token, even if the round continues for others.
- If the engine refuses one span, only that span fails. A span that is given up runs on with its round; the round is
  ended when all of its spans are given up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

from node.engine.interface import EngineError, EngineRefused, GenerationRequest, StreamingEngine

GRACE_S = 0.02
"""Seconds. Completions ask for their next span within a millisecond of the last. A new completion waits at most this
long if the engine is idle, which is little beside the tenths of a second that a round takes."""

Take = Callable[[int, Sequence[int], Sequence[float]], None]
"""Receives tokens: the position of the first one within the span, the tokens, their logprobs."""


@dataclass(eq=False, kw_only=True)
class _Asked:
    """One requested span. `num_told`: the number of its tokens that were handed out."""

    request: GenerationRequest
    take: Take
    num_told: int = 0
    failure: EngineError | None = None
    over: trio.Event = field(default_factory=trio.Event)
    is_given_up: bool = False

    def hear(self, start: int, tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        if self.over.is_set() or self.is_given_up:
            return
        self.take(start, tokens, logprobs)
        self.num_told = max(self.num_told, start + len(tokens))
        if self.num_told >= self.request.max_new_tokens or (tokens and tokens[-1] in self.request.stop_ids):
            self.over.set()

    def fail(self, error: EngineError) -> None:
        if not self.over.is_set():
            self.failure = error
            self.over.set()


@dataclass(kw_only=True)
class Rounds:
    """Collects the spans of running completions and generates them together. `num_running`: counts the completions."""

    engine: StreamingEngine
    num_running: Callable[[], int]
    grace_s: float = GRACE_S
    _next: list[_Asked] = field(default_factory=list)
    _current: list[_Asked] = field(default_factory=list)
    _ends: trio.CancelScope = field(default_factory=trio.CancelScope)
    _asked: trio.Event = field(default_factory=trio.Event)

    async def generate(self, request: GenerationRequest, take: Take) -> None:
        """Generate one span, in the next round, and hand out all of its tokens. Raises EngineError."""
        asked = _Asked(request=request, take=take)
        self._next.append(asked)
        self._asked.set()
        try:
            await asked.over.wait()
        finally:
            self._give_up(asked)
        if asked.failure is not None:
            raise asked.failure

    async def run(self) -> None:
        """Generate round after round, until cancelled."""
        while True:
            await self._gather()
            self._current, self._next = self._next, []
            await self._make(self._current)
            self._current = []

    async def _gather(self) -> None:
        """Wait until a round can begin."""
        deadline = math.inf
        while True:
            if self._next:
                deadline = min(deadline, trio.current_time() + self.grace_s)
                if len(self._next) >= self.num_running():
                    return
            else:
                deadline = math.inf
            self._asked = trio.Event()
            with trio.move_on_at(deadline) as scope:
                await self._asked.wait()
            if scope.cancelled_caught and self._next:
                return

    async def _make(self, spans: Sequence[_Asked]) -> None:
        def take(place: int, start: int, tokens: Sequence[int], logprobs: Sequence[float]) -> None:
            spans[place].hear(start, tokens, logprobs)

        with trio.CancelScope() as self._ends:
            try:
                made = await self.engine.generate_streaming([one.request for one in spans], take)
            except EngineRefused as error:
                if len(spans) > 1:
                    await self._make_each(spans)
                    return
                spans[0].fail(error)
            except EngineError as error:
                for one in spans:
                    one.fail(error)
            else:
                for one, generation in zip(spans, made, strict=True):
                    one.hear(0, generation.tokens, generation.logprobs)
                    one.over.set()

    async def _make_each(self, spans: Sequence[_Asked]) -> None:
        for one in spans:
            if not one.over.is_set() and not one.is_given_up:
                await self._make([one])

    def _give_up(self, asked: _Asked) -> None:
        """Note that nobody waits for the span any more; end the round if this is true of all its spans."""
        asked.is_given_up = True
        if asked in self._next:
            self._next.remove(asked)
        elif self._current and all(one.is_given_up for one in self._current):
            self._ends.cancel()
