"""Generate without a model, for tests and the simulator: hashes take the place of weights.

A token is a hash of (manifest, prompt, seed, position), or of (manifest, prompt, position) when greedy; its logprob is
another hash. The tokens of a resumed completion are not part of its prompt.

Invariants:

- The engine keeps every promise of the interface.
- Two fakes with the same version generate the same, and another version generates something else.
- Time passes only by `seconds_per_token`, in trio's clock. An interrupted call has the tokens that it had time for.
"""

from __future__ import annotations

import math
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

import trio

from node.engine.interface import (
    Claim,
    EngineCrashed,
    EngineRefused,
    FinishReason,
    GeneratedSpan,
    Generation,
    GenerationRequest,
    InstalledVersion,
    InstallFailed,
    OnTokens,
    Verified,
)
from node.runtime.typed_signal import Signal


@dataclass(frozen=True, kw_only=True)
class FakeConfig:
    """`vocab_size` ids are generated; a call takes `seconds_per_token` for each token of its longest completion."""

    vocab_size: int = 64
    seconds_per_token: float = 0.0


class FakeEngine:
    """A `PolicyEngine` without a model; obtained from `open_fake_engine`."""

    def __init__(self, config: FakeConfig) -> None:
        self._config = config
        self._installed: InstalledVersion | None = None
        self._lives: set[trio.CancelScope] = set()
        self._interrupted = trio.Event()
        self.restarted = Signal[None]()

    @property
    def installed(self) -> InstalledVersion | None:
        return self._installed

    async def install(self, version: InstalledVersion, directory: Path) -> None:
        await trio.lowlevel.checkpoint()
        if not (directory / "config.json").is_file() or not any(directory.glob("*.safetensors")):
            raise InstallFailed(f"{directory} has no config.json or no *.safetensors")
        self._installed = version

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        version = self._installed
        if version is None:
            raise EngineRefused("nothing_installed", "no policy version is installed; install one before generating")
        for request in requests:
            self._require_generable(request)
        generations = [self._complete(version, request) for request in requests]
        seconds = self._config.seconds_per_token * max((len(g.tokens) for g in generations), default=0)
        began, interrupted = trio.current_time(), self._interrupted
        with trio.CancelScope() as life:
            self._lives.add(life)
            try:
                await trio.lowlevel.checkpoint()
                with trio.move_on_after(seconds) as time_limit:
                    await interrupted.wait()
            finally:
                self._lives.discard(life)
        if life.cancelled_caught:
            raise EngineCrashed("the fake engine was told to crash; make the call again")
        if not time_limit.cancelled_caught and (each_s := self._config.seconds_per_token) > 0:
            seconds = min(seconds, trio.current_time() - began)
            generations = [_first(one, int(seconds / each_s)) for one in generations]
        num_tokens = max(1, sum(len(g.tokens) for g in generations))
        return [replace(g, generation_s=seconds * len(g.tokens) / num_tokens) for g in generations]

    async def generate_streaming(self, requests: Sequence[GenerationRequest], on_tokens: OnTokens) -> list[Generation]:
        """Generate, and hand out all tokens of a completion at once, at its end."""
        generations = await self.generate(requests)
        for place, one in enumerate(generations):
            on_tokens(place, 0, one.tokens, one.logprobs)
        return generations

    async def verify(self, claims: Sequence[Claim]) -> list[Verified]:
        await trio.lowlevel.checkpoint()
        if self._installed is None:
            raise EngineRefused("nothing_installed", "no policy version is installed; install one before verifying")
        return [self._verified(self._installed, claim) for claim in claims]

    def _verified(self, version: InstalledVersion, claim: Claim) -> Verified:
        """Treat a token that this engine does not draw as one that it cannot draw."""
        own = self._complete(
            version,
            GenerationRequest(
                prompt=claim.prompt,
                seed=claim.seed,
                temperature=claim.temperature,
                max_new_tokens=max(1, len(claim.tokens)),
                stop_ids=frozenset(),
                start=claim.start,
            ),
        )
        pairs = list(zip(claim.tokens, own.tokens, own.logprobs, strict=False))
        return Verified(
            gaps=tuple(0.0 if mine == theirs else math.inf for theirs, mine, _ in pairs),
            logprobs=tuple(logprob if mine == theirs else -math.inf for theirs, mine, logprob in pairs),
            leads=(1.0,) * len(pairs),
            sizes=(1.0,) * len(pairs),
        )

    async def interrupt(self) -> None:
        await trio.lowlevel.checkpoint()
        self._interrupted.set()
        self._interrupted = trio.Event()

    async def release(self) -> None:
        await trio.lowlevel.checkpoint()

    async def rest(self) -> None:
        await trio.lowlevel.checkpoint()
        self._end_calls()
        self._installed = None

    def wake(self) -> None:
        pass

    def crash(self) -> None:
        """Fail every call in flight as if the process had ended; the version stays installed, as after a restart."""
        self._end_calls()
        if self._installed is not None:
            self.restarted.emit(None)

    def _end_calls(self) -> None:
        for life in self._lives:
            life.cancel()

    def _require_generable(self, request: GenerationRequest) -> None:
        if not request.prompt or not all(0 <= token < self._config.vocab_size for token in request.prompt):
            raise EngineRefused(
                "bad_request", f"a prompt is empty or leaves the vocabulary of {self._config.vocab_size}"
            )
        if request.max_new_tokens < 1 or not (request.greedy or request.temperature > 0):
            raise EngineRefused("bad_request", "max_new_tokens and temperature must be positive")

    def _complete(self, version: InstalledVersion, request: GenerationRequest) -> Generation:
        tokens: list[int] = []
        logprobs: list[float] = []
        noise = b"" if request.greedy else struct.pack("<Qd", request.seed, request.temperature)
        prompt = request.prompt[: len(request.prompt) - request.start]
        context = blake2b(version.manifest + struct.pack(f"<{len(prompt)}I", *prompt) + noise)
        finish = FinishReason.LENGTH
        while finish is FinishReason.LENGTH and len(tokens) < request.max_new_tokens:
            position = context.copy()
            position.update(struct.pack("<I", request.start + len(tokens)))
            word, fraction = struct.unpack("<QI", position.digest()[:12])
            tokens.append(word % self._config.vocab_size)
            logprobs.append(-4.0 * fraction / 2**32)
            if tokens[-1] in request.stop_ids:
                finish = FinishReason.STOP
        return Generation(
            tokens=tuple(tokens),
            logprobs=tuple(logprobs),
            finish=finish,
            spans=(GeneratedSpan(start=0, end=len(tokens), version=version),),
            generation_s=0.0,
        )


def _first(whole: Generation, tokens: int) -> Generation:
    """Return the first `tokens` tokens of a completion, or all of it if it has no more."""
    if tokens >= len(whole.tokens):
        return whole
    spans = tuple(replace(span, end=tokens) for span in whole.spans if tokens > 0)
    return replace(
        whole, tokens=whole.tokens[:tokens], logprobs=whole.logprobs[:tokens], finish=FinishReason.PART, spans=spans
    )


@asynccontextmanager
async def open_fake_engine(config: FakeConfig | None = None) -> AsyncIterator[FakeEngine]:
    """Yield a fake engine. Calls in flight when the scope ends are cancelled with their tasks; nothing else needs to be
    ended."""
    yield FakeEngine(config or FakeConfig())
