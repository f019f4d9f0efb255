"""The port behind which rollouts are generated.

What always holds for an engine: a completion is a function of the installed weights, the prompt and the seed
(`protocol.sampling`), or of weights and prompt alone when greedy; logprobs are log_softmax(logits / T) of the chosen
token; every completion says which policy version produced which of its tokens. `generate` may be called from several
tasks at once and the engine batches as it likes. A version is installed between batches unless the engine can do
better and says so in spans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from node.runtime.typed_signal import Signal
from protocol.core.ids import ManifestHash, PolicyVersion


class FinishReason(Enum):
    """Why a completion ended: a stop id was generated (it is the last token), or the budget was used up."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """One completion to generate.

    `prompt` token ids; `seed` 0 <= seed < 2**64 names the noise (unused when `greedy`); `temperature` > 0 (ignored when
    greedy: logprobs are then those at temperature 1).
    """

    prompt: tuple[int, ...]
    seed: int
    temperature: float
    max_new_tokens: int
    stop_ids: frozenset[int]
    greedy: bool = False


@dataclass(frozen=True, kw_only=True)
class InstalledVersion:
    """A policy version as an engine knows it: its name and the hash of the manifest its weights came from."""

    name: PolicyVersion
    manifest: ManifestHash


@dataclass(frozen=True, kw_only=True)
class GeneratedSpan:
    """Tokens [start, end) of a completion came from `version`."""

    start: int
    end: int
    version: InstalledVersion


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One finished completion: `tokens[i]` has behaviour logprob `logprobs[i]`; spans cover all tokens, in order.

    `generation_s` is its share of the time its batch took: over all completions they add up to the time the engine was
    busy.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: FinishReason
    spans: tuple[GeneratedSpan, ...]
    generation_s: float


@dataclass(frozen=True, kw_only=True)
class Claim:
    """`tokens` that somebody says the seeded sampler drew after `prompt`, with this seed and temperature."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    seed: int
    temperature: float


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

    async def rest(self) -> None:
        """End whatever holds memory; returns when it is free. Nothing is installed then, and calls in flight raise
        EngineCrashed. Until `wake` the other calls may wait, or be refused.
        """

    def wake(self) -> None:
        """Be there again for `install`, which may take as long as the first did; does nothing without a `rest`."""

    async def release(self) -> None:
        """Give back the memory that is only kept for batches to come; what is installed stays. Raises EngineCrashed."""


class VerifyingEngine(PolicyEngine, Protocol):
    """An engine that can also say whether tokens are those that the seeded sampler draws."""

    async def verify(self, claims: Sequence[Claim]) -> list[Verified]:
        """Hold claimed tokens against the installed weights, in their order. Raises EngineCrashed, EngineRefused."""
