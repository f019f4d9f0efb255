"""Whether an engine has loaded what it was told to: the probe of a version's manifest, scored and compared.

What always holds: a difference that rounding can explain is none; an engine that cannot score is believed, and so is a
version without a probe.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from node.engine.interface import EngineCrashed, EngineRefused, InstallFailed
from protocol.core.errors import PeerError
from protocol.core.pipe import Header
from protocol.versions.manifest import SignedManifest
from protocol.versions.probe import Probed, probe_of

TOLERANCE = {"float32": 0.05, "float16": 0.2, "bfloat16": 0.5}
"""Mean absolute difference that is let pass, by the coarsest number format on either side. In float32 two engines were
5e-6 apart, in bfloat16 2e-2, on tokens that the model had drawn itself; those of a probe come from nowhere, so they are
less likely, and further apart; GPUs may round float32 to ten bits on the way. Weights that are not the version's at all
are several nats away."""

LEAST = -100.0
"""Of a logprob in a probe; one that is less likely is told as that."""

QUANTIZED = 1.0
"""The same for an engine that computes with fewer bits than the version has."""


@runtime_checkable
class Scores(Protocol):
    """An engine that can say how likely given tokens are."""

    async def score(
        self, sequences: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...], temperature: float
    ) -> list[tuple[float, ...]]: ...

    async def describe(self) -> Header: ...


async def require_proven(engine: object, signed: SignedManifest) -> None:
    """Raises InstallFailed unless the weights in service give the probe of `signed` the logprobs that it tells;
    EngineCrashed."""
    try:
        probed = probe_of(signed.manifest)
    except PeerError as error:
        raise InstallFailed(f"the probe of version {signed.version} cannot be read: {error.detail}") from error
    if probed is None or not isinstance(engine, Scores):
        return
    allowed = tolerance(probed, await engine.describe())
    try:  # last, so that what is compared is of the process that is there now
        scored = await engine.score(probed.sequences, 1.0)
    except EngineRefused as refusal:
        if refusal.kind == "nothing_installed":  # nothing is known of the version
            raise EngineCrashed("the engine was started again, and has not loaded anything yet") from refusal
        raise InstallFailed(f"the engine cannot score the probe of version {signed.version}: {refusal}") from refusal
    found = [max(logprob, LEAST) for row in scored for logprob in row]  # in this order NaN stays NaN
    apart = sum(abs(a - b) for a, b in zip(found, probed.logprobs, strict=True)) / len(found)
    if not apart <= allowed:  # so that NaN fails
        raise InstallFailed(
            f"the engine says that it loaded version {signed.version}, and gives its probe logprobs that are "
            f"{apart:.3g} from the version's on average, where rounding explains {allowed:g}: it has loaded something "
            "else. See its log; another engine, or another version of it, may do better"
        )


def tolerance(probed: Probed, described: Header) -> float:
    """What may lie between the probe's logprobs and those of an engine that describes itself so."""
    unknown = max(TOLERANCE.values())
    formats = (probed.dtype, str(described.get("dtype")))
    return max(QUANTIZED if described.get("quantization") else 0.0, *(TOLERANCE.get(one, unknown) for one in formats))
