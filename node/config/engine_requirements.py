"""State which engines a swarm accepts rollouts from, and judge what a node says about its own engine.

Pure.

Invariants:

- A node is believed: if it hides what its engine computes with, audits of its tokens find out.
- A refusal names the line of the node's configuration to change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from protocol.core.visible import visible
from protocol.versions.exchange import COMPUTE_DTYPE
from protocol.versions.formats import STORED, format_of, formats_extension
from protocol.work import EXPERTS

AUTO = "auto"
"""What a node says if its engine computes in the number format of the weights."""

SAID_BYTES = 64
"""Most bytes of a node's statement that are shown."""

TELL_EXPERTS = ("transformers", "vllm")
"""The kinds of engines that report which experts they used."""

NO_EXPERTS = (
    "This swarm trains with the experts that engines chose (router replay), and yours does not report them: set "
    "[engine] "
    'kind = "transformers" or "vllm" in node.toml, and use a volery as new as the learner\'s.'
)


@dataclass(frozen=True, kw_only=True)
class EngineTerms:
    """Requirements of a swarm on engines.

    Args:
        formats: the formats in which engines may hold the weights.
        compute_dtype: the number format in which all must compute; None for any.
        auto_is_it: whether the weights have that format, so that an engine that computes in theirs complies.
        experts: whether engines must report which experts of a mixture they used.
    """

    formats: tuple[str, ...] = (STORED,)
    compute_dtype: str | None = None
    auto_is_it: bool = False
    experts: bool = False

    @property
    def ext(self) -> dict[str, bytes]:
        """Return the requirements as extensions of the message TellTerms."""
        told = formats_extension(self.formats)
        if self.compute_dtype is not None:
            accepted = [self.compute_dtype, *([AUTO] if self.auto_is_it else [])]
            told[COMPUTE_DTYPE] = ",".join(accepted).encode()
        if self.experts:
            told[EXPERTS] = b""
        return told

    def objection(self, ext: Mapping[str, bytes]) -> str | None:
        """Return why a node that says `ext` of its engine is refused, for its owner; None if it is accepted."""
        if (form := format_of(ext)) not in self.formats:
            return f"{self._takes()}, and yours has {in_words(form)}: {self._advice()}."
        if self.experts and EXPERTS not in ext:
            return NO_EXPERTS
        if self.compute_dtype is None:
            return None
        if (dtype := ext.get(COMPUTE_DTYPE)) is None:
            return (
                f"This swarm accepts rollouts of engines that compute in {self.compute_dtype}, and your node does not "
                "say what yours does: use a newer volery."
            )
        if dtype == self.compute_dtype.encode() or (self.auto_is_it and dtype == AUTO.encode()):
            return None
        return (
            f"This swarm accepts rollouts of engines that compute in {self.compute_dtype}, and yours has compute_dtype "
            "= "
            f'"{_said(dtype)}": set [engine] compute_dtype = "{self.compute_dtype}" in node.toml.'
        )

    def _takes(self) -> str:
        if self.formats == (STORED,):
            return "This swarm accepts no rollouts of engines with quantised weights"
        return f"This swarm accepts rollouts of engines with {' or '.join(map(in_words, self.formats))}"

    def _advice(self) -> str:
        return quantization_advice(self.formats)


def in_words(form: str) -> str:
    """Return a format in words, to stand after "an engine with"."""
    return "the weights as they are" if form == STORED else f"{form} weights"


def quantization_advice(formats: Sequence[str]) -> str:
    """Return what to do in node.toml if a swarm accepts these formats."""
    if STORED in formats:
        return "leave [engine] quantization out"
    return f'set [engine] quantization = "{formats[0]}" in node.toml' if formats else "ask the operator"


def accepted_dtypes(ext: Mapping[str, bytes]) -> tuple[str, ...]:
    """Return the values of compute_dtype that a learner with these TellTerms accepts; none if it accepts all."""
    told = ext.get(COMPUTE_DTYPE)
    return () if told is None else tuple(_said(one) for one in told.split(b",") if one)


def _said(word: bytes) -> str:
    return visible(word[:SAID_BYTES].decode(errors="replace"))
