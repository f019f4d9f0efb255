"""The port behind which rollouts are generated.

What always holds for an engine: a completion is a function of the installed weights, the prompt and the seed
(`protocol.sampling`), or of weights and prompt alone when greedy; logprobs are log_softmax(logits / T) of the chosen
token; every completion says which policy version produced which of its tokens. `generate` may be called from several
tasks at once and the engine batches as it likes. A version is installed between batches unless the engine can do
better and says so in spans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from node.runtime.typed_signal import Signal
from protocol.core.ids import ManifestHash, PolicyVersion


class FinishReason(Enum):
    """Why a completion ended: a stop id was generated (it is the last token), the budget was used up, or the engine was
    interrupted before either."""

    STOP = "stop"
    LENGTH = "length"
    PART = "part"


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """One completion to generate.

    `prompt` token ids; `seed` 0 <= seed < 2**64 names the noise (unused when `greedy`); `temperature` > 0 (ignored when
    greedy: logprobs are then those at temperature 1). `start`: the position of the first token to generate; of a
    completion that was begun, the prompt ends with that many tokens of it. `experts`: whether those are told that made
    each token, by an engine that `records_experts`.
    """

    prompt: tuple[int, ...]
    seed: int
    temperature: float
    max_new_tokens: int
    stop_ids: frozenset[int]
    greedy: bool = False
    start: int = 0
    experts: bool = False


@dataclass(frozen=True, kw_only=True)
class InstalledVersion:
    """A policy version as an engine knows it: its name and the hash of the manifest its weights came from. `weights`:
    the format that it is held in (`protocol.versions.formats`), where one engine is asked for several; "": the
    engine's own."""

    name: PolicyVersion
    manifest: ManifestHash
    weights: str = ""


@dataclass(frozen=True, kw_only=True)
class GeneratedSpan:
    """Tokens [start, end) of a completion came from `version`."""

    start: int
    end: int
    version: InstalledVersion


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One completion: `tokens[i]` has behaviour logprob `logprobs[i]`; spans cover all tokens, in order. It has no
    tokens only where the engine was interrupted before the first.

    `generation_s` is its share of the time its batch took: over all completions they add up to the time the engine was
    busy. `experts` (tokens, layers, top_k) unsigned, where they were asked for: `protocol.experts` says which.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: FinishReason
    spans: tuple[GeneratedSpan, ...]
    generation_s: float
    experts: NDArray[Any] | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """`tokens` that somebody says the seeded sampler drew after `prompt`, with this seed and temperature, the first of
    them at the position `start`. `experts`: of a mixture of experts those that are said to have made each token, as a
    record carries them (`protocol.experts`); the engine follows a choice that it nearly made itself. b"": it routes
    every token itself."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    seed: int
    temperature: float
    start: int = 0
    experts: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Verified:
    """Of each claimed token how far, in nats, it falls short of what the installed weights draw (0: it is that token;
    inf: they cannot draw it; NaN: they draw nothing at all), its logprob under them, by how much what they draw leads
    the runner-up, and the larger absolute score (logits / temperature) of what they draw and of the likeliest token."""

    gaps: tuple[float, ...]
    logprobs: tuple[float, ...]
    leads: tuple[float, ...]
    sizes: tuple[float, ...]


class EngineError(Exception):
    """Base of what an engine raises; the message says what to do next."""


class InstallFailed(EngineError):
    """The version could not be loaded. The one in service before stays in service."""


class EngineRefused(EngineError):
    """The engine cannot generate this; it stays in service.

    `kind`: "nothing_installed", "bad_request" (the prompt, the budget or the settings do not fit the model),
    "out_of_memory", "not_finite" (the installed weights are broken).
    """

    def __init__(self, kind: str, error: str) -> None:
        super().__init__(error)
        self.kind = kind


class EngineCrashed(EngineError):
    """The engine's process ended under this call; it is being restarted and the call may be made again."""


class PolicyEngine(Protocol):
    """See the module's paragraph. Obtained from an async context manager that owns the child process.

    `restarted` tells that the process was started again after a crash, before any call reaches it: `installed` is what
    it was told to load again, None if it could not.
    """

    @property
    def restarted(self) -> Signal[None]: ...

    @property
    def installed(self) -> InstalledVersion | None: ...

    async def install(self, version: InstalledVersion, directory: Path) -> None:
        """Load the model directory (config.json, *.safetensors); returns once every later token comes from it.

        Raises InstallFailed, EngineCrashed.
        """

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Generate all of `requests`, results in their order. Raises EngineCrashed, EngineRefused."""

    async def interrupt(self) -> None:
        """Have all calls of `generate` in flight return soon, with what they have: completions that are not over are
        parts. Returns once that is under way; does nothing without such calls. Raises EngineCrashed."""

    async def rest(self) -> None:
        """End whatever holds memory; returns when it is free. Nothing is installed then, and calls in flight raise
        EngineCrashed. Until `wake` the other calls may wait, or be refused.
        """

    def wake(self) -> None:
        """Be there again for `install`, which may take as long as the first did; does nothing without a `rest`."""

    async def release(self) -> None:
        """Give back the memory that is only kept for batches to come; what is installed stays. Raises EngineCrashed."""


OnTokens = Callable[[int, int, Sequence[int], Sequence[float]], None]
"""Hears of tokens as they are drawn: the request's place, where in its completion they begin, the tokens, their
logprobs. What was told before may be told again. Must not block or raise."""


@runtime_checkable
class StreamingEngine(PolicyEngine, Protocol):
    """An engine that can also say tokens as they are drawn."""

    async def generate_streaming(self, requests: Sequence[GenerationRequest], on_tokens: OnTokens) -> list[Generation]:
        """As `generate`; `on_tokens` may hear of each token before the end. Raises EngineCrashed, EngineRefused."""


class VerifyingEngine(PolicyEngine, Protocol):
    """An engine that can also say whether tokens are those that the seeded sampler draws."""

    async def verify(self, claims: Sequence[Claim]) -> list[Verified]:
        """Hold claimed tokens against the installed weights, in their order. Raises EngineCrashed, EngineRefused."""


TEACHER = InstalledVersion(name=PolicyVersion(1, 0), manifest=ManifestHash(bytes(32)))
"""What an engine is told that it installs when it is to hold a teacher: a manifest that no version has."""


class ScoringEngine(Protocol):
    """An engine that holds a teacher."""

    async def install(self, version: InstalledVersion, directory: Path) -> None:
        """As `PolicyEngine`'s."""

    async def score(
        self, sequences: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], temperature: float
    ) -> list[tuple[float, ...]]:
        """Return the log probability of each token of each completion; `sequences` are (prompt, completion). Raises
        EngineCrashed, EngineRefused."""
