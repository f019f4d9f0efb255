"""Cheat on purpose, for drills: an engine for one's own node, which the learner must detect.

It does no more than anybody could do who changes the program.

Invariants:

- It cheats in one way and is honest in every other, so that only this cheat can be what the learner detects.
- Its statements about versions are true. Prompts, budgets and ends are those of the requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path

from node.engine.interface import Generation, GenerationRequest, InstalledVersion, PolicyEngine
from node.engine.worker_engine import WorkerEngine
from node.runtime.typed_signal import Signal

COLD = 0.5
"""Fraction of the requested temperature."""

CERTAIN = -1e-3
"""The log probability that is claimed for every token, in nats."""


class Cheat(Enum):
    """The kind of cheat. The value is its name in `[testing] cheat`."""

    GREEDY = "greedy"
    """Take the likeliest token each time, which gives better completions than the policy samples."""
    COLD = "cold"
    """Sample at half of the temperature."""
    CLAIMS = "claims"
    """Sample honestly, and claim that every token was certain."""
    PARROT = "parrot"
    """Repeat the first token of the prompt, which needs no model."""


class CheatingEngine:
    """An engine that passes calls on to another one, and cheats as `cheat` says."""

    def __init__(self, engine: PolicyEngine, cheat: Cheat) -> None:
        self._engine, self._cheat = engine, cheat

    @property
    def restarted(self) -> Signal[None]:
        return self._engine.restarted

    @property
    def installed(self) -> InstalledVersion | None:
        return self._engine.installed

    async def install(self, version: InstalledVersion, directory: Path) -> None:
        await self._engine.install(version, directory)

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        made = await self._engine.generate([self._asked(request) for request in requests])
        return [self._told(request, one) for request, one in zip(requests, made, strict=True)]

    async def score(
        self, sequences: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], temperature: float
    ) -> list[tuple[float, ...]]:
        """Score as a teacher. A teacher draws nothing, so it can only cheat by its claims."""
        assert isinstance(self._engine, WorkerEngine)
        found = await self._engine.score(sequences, temperature)
        return [(CERTAIN,) * len(one) for one in found] if self._cheat is Cheat.CLAIMS else found

    async def interrupt(self) -> None:
        await self._engine.interrupt()

    async def rest(self) -> None:
        await self._engine.rest()

    def wake(self) -> None:
        self._engine.wake()

    async def release(self) -> None:
        await self._engine.release()

    def __getattr__(self, name: str) -> object:
        """Return what else the engine can do, such as scoring a probe."""
        return getattr(self._engine, name)

    def _asked(self, request: GenerationRequest) -> GenerationRequest:
        match self._cheat:
            case Cheat.GREEDY:
                return replace(request, greedy=True)
            case Cheat.COLD:
                return replace(request, temperature=COLD * request.temperature)
            case Cheat.CLAIMS | Cheat.PARROT:
                return request

    def _told(self, request: GenerationRequest, made: Generation) -> Generation:
        match self._cheat:
            case Cheat.GREEDY | Cheat.COLD:
                return made
            case Cheat.CLAIMS:
                return replace(made, logprobs=(CERTAIN,) * len(made.tokens))
            case Cheat.PARROT:
                # The last token still ends the completion; otherwise the learner would notice at once that none does.
                return replace(made, tokens=(*(request.prompt[0] for _ in made.tokens[:-1]), *made.tokens[-1:]))
