"""Check that an engine loaded the version that it was given, by scoring the probe of the version's manifest.

Invariants:

- A difference that rounding can explain passes.
- An engine that cannot score passes, and so does a version without a probe.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from node.engine.interface import EngineCrashed, EngineRefused, InstallFailed
from protocol.core.errors import PeerError
from protocol.core.pipe import Header
from protocol.versions.manifest import SignedManifest
from protocol.versions.probe import Probed, probe_of

TOLERANCE = {"float32": 0.05, "float16": 0.2, "bfloat16": 0.5}
"""Largest mean absolute difference of logprobs (nats) that passes, by the coarser number format of the two sides. Two
engines were 5e-6 apart in float32 and 2e-2 in bfloat16, on tokens that the model had drawn itself. A probe's tokens
were not drawn by the model: they are less likely, and the engines differ more on them. GPUs may also round float32 to
ten bits. Weights of another version are several nats away."""

LEAST = -100.0
"""Smallest logprob in a probe; smaller values are replaced by it."""

QUANTIZED = 1.0
"""The same tolerance for an engine that computes with fewer bits than the version has."""


@runtime_checkable
class Scores(Protocol):
    """An engine that can say how likely given tokens are."""

    async def score(
        self, sequences: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...], temperature: float
    ) -> list[tuple[float, ...]]: ...

    async def describe(self) -> Header: ...


async def require_proven(engine: object, signed: SignedManifest) -> None:
    """Raise InstallFailed if the active weights do not give the probe of `signed` the logprobs that it states. Raises
    EngineCrashed, too."""
    try:
        probed = probe_of(signed.manifest)
    except PeerError as error:
        raise InstallFailed(f"the probe of version {signed.version} cannot be read: {error.detail}") from error
    if probed is None or not isinstance(engine, Scores):
        return
    allowed = tolerance(probed, await engine.describe())
    try:  # last, so that the scores come from the process that is running now
        scored = await engine.score(probed.sequences, 1.0)
    except EngineRefused as refusal:
        if refusal.kind == "nothing_installed":  # says nothing about the version
            raise EngineCrashed("the engine was started again, and has not loaded anything yet") from refusal
        raise InstallFailed(f"the engine cannot score the probe of version {signed.version}: {refusal}") from refusal
    found = [max(logprob, LEAST) for row in scored for logprob in row]  # in this order NaN stays NaN
    apart = sum(abs(a - b) for a, b in zip(found, probed.logprobs, strict=True)) / len(found)
    if not apart <= allowed:  # so that NaN fails
        raise InstallFailed(
            f"the engine reports that it loaded version {signed.version}, but its logprobs of the version's probe are "
            f"{apart:.3g} nats off on average, where rounding explains {allowed:g}: it has loaded something "
            "else. See the engine's log, and try another engine or another release of it"
        )


def tolerance(probed: Probed, described: Header) -> float:
    """Return the allowed difference between the probe's logprobs and those of an engine with this description."""
    unknown = max(TOLERANCE.values())
    formats = (probed.dtype, str(described.get("dtype")))
    return max(QUANTIZED if described.get("quantization") else 0.0, *(TOLERANCE.get(one, unknown) for one in formats))
