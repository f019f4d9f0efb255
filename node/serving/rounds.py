"""Spans of many completions as rounds of one call each, for engines that take nothing in while a batch runs.

Asked for one by one, spans would never meet: the engine would begin each as it comes, and the others would wait for its
end. So what is asked for while a round runs is the next round, and a round begins once every completion under way has
asked, or GRACE_S after the first did: a client that reads slowly holds nobody up.

Invariants:
- one call of the engine at a time;
- a span is over with its last token, also where the round goes on for others;
- what the engine refuses for one span is refused for that one alone. A span that is given up runs on with its round,
  which is ended once all of its spans are given up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

from node.engine.interface import EngineError, EngineRefused, GenerationRequest, StreamingEngine

GRACE_S = 0.02
"""Completions ask for their next span within a millisecond of the last. This is what a newcomer waits at most where
the engine is idle, and little beside the tenths of a second that a round takes."""

Take = Callable[[int, Sequence[int], Sequence[float]], None]
"""Hears of tokens: where in the span they begin, the tokens, their logprobs."""


@dataclass(eq=False, kw_only=True)
class _Asked:
    """One span. `num_told`: tokens that were told of it."""

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
    """See the module's paragraph. `num_running`: how many completions are under way."""

    engine: StreamingEngine
    num_running: Callable[[], int]
    grace_s: float = GRACE_S
    _next: list[_Asked] = field(default_factory=list)
    _current: list[_Asked] = field(default_factory=list)
    _ends: trio.CancelScope = field(default_factory=trio.CancelScope)
    _asked: trio.Event = field(default_factory=trio.Event)

    async def generate(self, request: GenerationRequest, take: Take) -> None:
        """Generate one span, in the next round; all of its tokens are told. Raises EngineError."""
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
        """Make round after round, until cancelled."""
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
        """Nobody waits for it any more."""
        asked.is_given_up = True
        if asked in self._next:
            self._next.remove(asked)
        elif self._current and all(one.is_given_up for one in self._current):
            self._ends.cancel()
