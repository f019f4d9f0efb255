"""Define the interface of the engines that generate rollouts.

Invariants of every engine:

- A completion depends on the installed weights, the prompt and the seed (`protocol.sampling`) alone. A greedy
  completion depends on the weights and the prompt alone.
- Logprobs are log_softmax(logits / T) of the chosen tokens.
- Every completion says which policy version produced which of its tokens.
- Several tasks may call `generate` at once; the engine batches their requests as it likes.
- A version is installed between batches, unless the engine can do better and says so in spans.
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
    """Why a completion ended: the engine generated a stop id (it is the last token), used up the budget, or was
    interrupted before either."""

    STOP = "stop"
    LENGTH = "length"
    PART = "part"


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """One completion to generate.

    `prompt`: token ids. `seed`: names the noise, 0 <= seed < 2**64; unused when `greedy`. `temperature`: above 0;
    ignored when greedy, and the logprobs are then those at temperature 1. `start`: position of the first token to
    generate; the prompt of a resumed completion ends with that many of its tokens. `experts`: whether an engine that
    `records_experts` also returns the experts of each token.
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
    """A policy version as an engine knows it: its name, and the hash of the manifest that its weights came from.
    `weights`: the format in which it is held (`protocol.versions.formats`), where one engine is asked for several
    formats; "" for the engine's own."""

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
    tokens only if the engine was interrupted before the first one.

    `generation_s` is its share of its batch's time; the shares of all completions add up to the time in which the
    engine was busy. `experts`: (tokens, layers, top_k) unsigned, if they were requested (`protocol.experts`).
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: FinishReason
    spans: tuple[GeneratedSpan, ...]
    generation_s: float
    experts: NDArray[Any] | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim that the seeded sampler drew `tokens` after `prompt` with this seed and temperature.

    `start`: position of the first token. `experts`: the experts that are claimed for each token, encoded as in a record
    (`protocol.experts`); the engine follows a choice that is close to its own. b"": the engine routes every token
    itself."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    seed: int
    temperature: float
    start: int = 0
    experts: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Verified:
    """The result of verifying claimed tokens. Each field has one value for each token.

    `gaps`: how far, in nats, the token falls short of the one that the installed weights draw. 0: it is that token.
    inf: the weights cannot draw it. NaN: the weights draw nothing at all. `logprobs`: its logprob under the weights.
    `leads`: the distance from the drawn token to the runner-up. `sizes`: the larger absolute score
    (logits / temperature) of the drawn token and the likeliest token."""

    gaps: tuple[float, ...]
    logprobs: tuple[float, ...]
    leads: tuple[float, ...]
    sizes: tuple[float, ...]


class EngineError(Exception):
    """Base of the errors that an engine raises; the message says what to do next."""


class InstallFailed(EngineError):
    """The version could not be loaded. The engine keeps the version that was active before."""


class EngineRefused(EngineError):
    """The engine cannot generate this; it continues to serve.

    `kind`: "nothing_installed", "bad_request" (the prompt, the budget or the settings do not fit the model),
    "out_of_memory", "not_finite" (the installed weights are broken).
    """

    def __init__(self, kind: str, error: str) -> None:
        super().__init__(error)
        self.kind = kind


class EngineCrashed(EngineError):
    """The engine's process ended during this call. It is being restarted, and the call may be made again."""


class PolicyEngine(Protocol):
    """An engine that generates with a policy. An async context manager returns it and owns its child process.

    `restarted` fires after a crash and a restart of the process, before any call reaches it. `installed` is then the
    version that was loaded again, or None if that failed.
    """

    @property
    def restarted(self) -> Signal[None]: ...

    @property
    def installed(self) -> InstalledVersion | None: ...

    async def install(self, version: InstalledVersion, directory: Path) -> None:
        """Load the model directory (config.json, *.safetensors). Returns when every later token comes from it.

        Raises InstallFailed, EngineCrashed.
        """

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Generate all of `requests`; results have their order. Raises EngineCrashed, EngineRefused."""

    async def interrupt(self) -> None:
        """Make all calls of `generate` in flight return soon with the tokens that they have. Completions that are not
        finished are parts. Returns when this is under way; does nothing without such calls. Raises EngineCrashed."""

    async def rest(self) -> None:
        """End everything that holds memory, and return when the memory is free. Nothing is installed then, and calls
        in flight raise EngineCrashed. Until `wake`, the other calls may wait or be refused.
        """

    def wake(self) -> None:
        """Make `install` possible again; it may take as long as the first one. Does nothing without a `rest`."""

    async def release(self) -> None:
        """Free the memory that is kept only for later batches; the version stays installed. Raises EngineCrashed."""


OnTokens = Callable[[int, int, Sequence[int], Sequence[float]], None]
"""Receives tokens as they are drawn: the request's index, the position of the first token within its completion, the
tokens, their logprobs. The same tokens may come twice. Must not block or raise."""


@runtime_checkable
class StreamingEngine(PolicyEngine, Protocol):
    """An engine that can also hand out tokens as they are drawn."""

    async def generate_streaming(self, requests: Sequence[GenerationRequest], on_tokens: OnTokens) -> list[Generation]:
        """Like `generate`; `on_tokens` may receive tokens before the end. Raises EngineCrashed, EngineRefused."""


class VerifyingEngine(PolicyEngine, Protocol):
    """An engine that can also check whether the seeded sampler draws given tokens."""

    async def verify(self, claims: Sequence[Claim]) -> list[Verified]:
        """Compare claimed tokens with the installed weights, in order. Raises EngineCrashed, EngineRefused."""


TEACHER = InstalledVersion(name=PolicyVersion(1, 0), manifest=ManifestHash(bytes(32)))
"""The version that an engine is given when it loads a teacher; its manifest hash belongs to no real version."""


class ScoringEngine(Protocol):
    """An engine that holds a teacher."""

    async def install(self, version: InstalledVersion, directory: Path) -> None:
        """Load the teacher, as `PolicyEngine.install` does."""

    async def score(
        self, sequences: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], temperature: float
    ) -> list[tuple[float, ...]]:
        """Return the log probability of each token of each completion; `sequences` are (prompt, completion). Raises
        EngineCrashed, EngineRefused."""
