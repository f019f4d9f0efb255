"""An engine that cheats, for drills: a node of one's own that must be found.

What always holds: it cheats in one way and is honest in every other, so that what is found is found by that; what it
says of versions is true, and prompts, budgets and ends are those that were asked for. It is no more than anybody could
do who changes the program.
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
"""Of the temperature that was asked for."""

CERTAIN = -1e-3
"""What is claimed of every token, in nats."""


class Cheat(Enum):
    """How it cheats. The value is its name in `[testing] cheat`."""

    GREEDY = "greedy"
    """Takes the likeliest token each time: better answers than the policy samples."""
    COLD = "cold"
    """Draws at half of the temperature."""
    CLAIMS = "claims"
    """Draws honestly, and claims that it was certain of every token."""
    PARROT = "parrot"
    """Says the first token of its prompt again and again, which needs no model."""


class CheatingEngine:
    """See the module's paragraph."""

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
        """As a teacher, which draws nothing, it can cheat by what it claims alone."""
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
        """What else the engine can do, such as scoring a probe."""
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
                # The last token ends the completion as it did, or the learner would see at once that nothing does.
                return replace(made, tokens=(*(request.prompt[0] for _ in made.tokens[:-1]), *made.tokens[-1:]))
