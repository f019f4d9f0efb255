"""Which engines a swarm takes rollouts of: how its learner says so, and how it judges what a node says of its own.

Pure. What always holds: a node is taken at its word, since who hides what it computes with is found by its tokens; who
is refused is told which line of its configuration to change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.core.visible import visible
from protocol.versions.exchange import COMPUTE_DTYPE, QUANTIZED

AUTO = "auto"
"""A node's word for the number format that the weights have."""

SAID_BYTES = 64
"""Of a node's word are shown at most."""


@dataclass(frozen=True, kw_only=True)
class EngineTerms:
    """`quantized`: whether engines are welcome that quantise the weights. `compute_dtype`: the number format that all
    must compute in, None for any; `auto_is_it`: the weights have it, so that who computes in theirs does."""

    quantized: bool = False
    compute_dtype: str | None = None
    auto_is_it: bool = False

    @property
    def ext(self) -> dict[str, bytes]:
        """As TellTerms says it."""
        told: dict[str, bytes] = {QUANTIZED: b""} if self.quantized else {}
        if self.compute_dtype is not None:
            accepted = [self.compute_dtype, *([AUTO] if self.auto_is_it else [])]
            told[COMPUTE_DTYPE] = ",".join(accepted).encode()
        return told

    def objection(self, ext: Mapping[str, bytes]) -> str | None:
        """Why a node is refused that says this of its engine, for its owner; None if it is welcome."""
        if (scheme := ext.get(QUANTIZED)) is not None and not self.quantized:
            return (
                f"This swarm takes no rollouts of engines with quantised weights, and yours has {_said(scheme)}: leave "
                "[engine] quantization out."
            )
        if self.compute_dtype is None:
            return None
        if (dtype := ext.get(COMPUTE_DTYPE)) is None:
            return (
                f"This swarm takes rollouts of engines that compute in {self.compute_dtype}, and your node does not "
                "say what yours does: use a newer volery."
            )
        if dtype == self.compute_dtype.encode() or (self.auto_is_it and dtype == AUTO.encode()):
            return None
        return (
            f"This swarm takes rollouts of engines that compute in {self.compute_dtype}, and yours has compute_dtype = "
            f'"{_said(dtype)}": set [engine] compute_dtype = "{self.compute_dtype}" in node.toml.'
        )


def accepted_dtypes(ext: Mapping[str, bytes]) -> tuple[str, ...]:
    """The values of compute_dtype that a learner takes, which says this in TellTerms; none if it takes all."""
    told = ext.get(COMPUTE_DTYPE)
    return () if told is None else tuple(_said(one) for one in told.split(b",") if one)


def _said(word: bytes) -> str:
    return visible(word[:SAID_BYTES].decode(errors="replace"))
