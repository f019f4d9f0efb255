"""Generate one completion as spans of tokens, and hand out its text at once.

Pieces are handed to a sink that may wait, as a connection does when the other end does not read. The engine continues
meanwhile, but only to the end of its span, so at most one span waits here.

Invariants:

- The pieces joined are the whole text. No character is split, and no part of a stop string is handed out.
- If a completion's sink raises, or is cancelled, the engine also ends the completion, with its span at the latest.
- If the engine ends during a completion, it is restarted and continues after the last token that was handed out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import trio

from node.engine.interface import EngineCrashed, EngineError, EngineRefused, GenerationRequest
from node.serving.incremental_text import IncrementalText
from node.serving.served_model import Served, ServedModel
from node.serving.spans import choice_seed, span_tokens
from node.serving.stop_texts import StopTexts
from swarm.transport.error_groups import first_cause

DEFAULT_NEW_TOKENS = 2_048
"""Tokens of a completion if the request sets no limit, as far as the model's context has room."""

MAX_CRASHES = 2
"""Ends of the engine that one completion survives. A third suggests that the completion is the cause."""


class End(Enum):
    """Why a completion ended."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A requested completion.

    `prompt`: token ids. `temperature`: 0 takes the likeliest token each time. `seed`: 0 <= seed < 2**64. `choice`:
    index among the completions of one request. `stops`: strings that end it. `label`: the version that must generate
    it, or "" for any.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float
    seed: int
    choice: int = 0
    stops: tuple[str, ...] = ()
    label: str = ""


@dataclass(frozen=True, kw_only=True)
class Token:
    """One generated token, its text on its own, and its log probability."""

    id: int
    text: str
    logprob: float


@dataclass(frozen=True, kw_only=True)
class Piece:
    """The next part of a completion. `served`: the version that generated it. `made`: tokens of the completion so far,
    including one that ended it. `end`: set only in the last piece."""

    text: str
    tokens: tuple[Token, ...]
    served: Served
    made: int
    end: End | None = None


Sink = Callable[[Piece], Awaitable[None]]


async def complete(model: ServedModel, wish: Wish, sink: Sink) -> None:
    """Generate a completion and hand its pieces to `sink`. Raises EngineRefused, EngineError, VersionLeft."""
    async with model.completion() as served:
        await _Completion(model=model, wish=wish, sink=sink, begun=served).run()


@dataclass(kw_only=True)
class _Arrivals:
    """Tokens of one span as they come: (token, logprob)."""

    tokens: list[tuple[int, float]] = field(default_factory=list)
    taken: int = 0
    is_over: bool = False
    failure: EngineError | None = None
    _news: trio.Event = field(default_factory=trio.Event)

    def take(self, start: int, tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        """Add those of `tokens`, which begin at `start`, that are new."""
        new = len(self.tokens) - start
        self.tokens += list(zip(tokens, logprobs, strict=True))[max(new, 0) :] if new >= 0 else []
        self._news.set()

    def end(self, failure: EngineError | None = None) -> None:
        self.is_over, self.failure = True, failure
        self._news.set()

    async def next(self) -> list[tuple[int, float]]:
        """Return the tokens since the last call, at least one; an empty list when the span is over."""
        while len(self.tokens) == self.taken and not self.is_over:
            await self._news.wait()
            self._news = trio.Event()
        batch = self.tokens[self.taken :]
        self.taken = len(self.tokens)
        return batch


@dataclass(kw_only=True)
class _Completion:
    model: ServedModel
    wish: Wish
    sink: Sink
    begun: Served
    made: list[int] = field(default_factory=list)
    crashes: int = 0

    async def run(self) -> None:
        text, stops = IncrementalText(self.begun.codec.decode), StopTexts(self.wish.stops)
        end: End | None = None
        while end is None:
            async with self.model.span(self.wish.label) as served:
                end = await self._span(served, text, stops)
            if end is None and len(self.made) >= self.wish.max_tokens:
                end = End.LENGTH
        rest = "" if stops.found else stops.push(text.finish())
        rest += "" if stops.found else stops.finish()
        last = End.STOP if stops.found else end
        await self.sink(Piece(text=rest, tokens=(), served=served, made=len(self.made), end=last))

    async def _span(self, served: Served, text: IncrementalText, stops: StopTexts) -> End | None:
        """Generate one span; return the completion's end if the span reached it."""
        arrivals = _Arrivals()
        end: End | None = None
        with first_cause():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._generate, self._request(), arrivals)
                while end is None and (batch := await arrivals.next()):
                    end = await self._take(batch, served, text, stops)
                nursery.cancel_scope.cancel()
        if end is None and arrivals.failure is not None:
            self._bear(arrivals.failure)
        return end

    async def _take(
        self, batch: Sequence[tuple[int, float]], served: Served, text: IncrementalText, stops: StopTexts
    ) -> End | None:
        """Hand out tokens, up to one that ends the completion."""
        codec, told, shown = self.begun.codec, list[Token](), ""
        end: End | None = None
        for id, logprob in batch:
            self.made.append(id)
            if id in codec.stop_ids:
                end = End.STOP
                break
            shown += stops.push(text.push(id))
            told.append(Token(id=id, text=codec.decode([id]), logprob=logprob))
            if stops.found:
                end = End.STOP
                break
        if shown or told:
            await self.sink(Piece(text=shown, tokens=tuple(told), served=served, made=len(self.made)))
        return end

    async def _generate(self, request: GenerationRequest, arrivals: _Arrivals) -> None:
        try:
            await self.model.generate(request, arrivals.take)
        except EngineError as error:
            arrivals.end(error)
        else:
            arrivals.end()

    def _request(self) -> GenerationRequest:
        start, wish = len(self.made), self.wish
        left = wish.max_tokens - start
        span = span_tokens(len(wish.prompt) + start, joins=self.model.joins)
        return GenerationRequest(
            prompt=(*wish.prompt, *self.made),
            seed=choice_seed(wish.seed, wish.choice),
            temperature=wish.temperature or 1.0,
            max_new_tokens=left if span is None else min(left, span),
            stop_ids=self.begun.codec.stop_ids,
            greedy=wish.temperature == 0,
            start=start,
        )

    def _bear(self, failure: EngineError) -> None:
        """Raise `failure`, unless it makes sense to continue."""
        if isinstance(failure, EngineCrashed):
            self.crashes += 1
            if self.crashes <= MAX_CRASHES:
                return
        elif not isinstance(failure, EngineRefused):
            self.model.give_up(failure)
        raise failure
