"""Which engines a swarm takes rollouts of: how its learner says so, and how it judges what a node says of its own.

Pure. What always holds: a node is taken at its word, since who hides what it computes with is found by its tokens; who
is refused is told which line of its configuration to change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from protocol.core.visible import visible
from protocol.versions.exchange import COMPUTE_DTYPE
from protocol.versions.formats import STORED, format_of, told_formats
from protocol.work import EXPERTS

AUTO = "auto"
"""A node's word for the number format that the weights have."""

SAID_BYTES = 64
"""Of a node's word are shown at most."""

TELL_EXPERTS = ("transformers", "vllm")
"""The kinds of engines that tell which experts they used."""

NO_EXPERTS = (
    "This swarm trains with the experts that engines chose (router replay), and yours does not tell them: set [engine] "
    'kind = "transformers" or "vllm" in node.toml, and use a volery that is as new as that of the learner.'
)


@dataclass(frozen=True, kw_only=True)
class EngineTerms:
    """`formats` of the weights in which engines may hold them. `compute_dtype`: the number format that all
    must compute in, None for any; `auto_is_it`: the weights have it, so that who computes in theirs does. `experts`:
    they must tell which experts of a mixture they used."""

    formats: tuple[str, ...] = (STORED,)
    compute_dtype: str | None = None
    auto_is_it: bool = False
    experts: bool = False

    @property
    def ext(self) -> dict[str, bytes]:
        """As TellTerms says it."""
        told = told_formats(self.formats)
        if self.compute_dtype is not None:
            accepted = [self.compute_dtype, *([AUTO] if self.auto_is_it else [])]
            told[COMPUTE_DTYPE] = ",".join(accepted).encode()
        if self.experts:
            told[EXPERTS] = b""
        return told

    def objection(self, ext: Mapping[str, bytes]) -> str | None:
        """Why a node is refused that says this of its engine, for its owner; None if it is welcome."""
        if (form := format_of(ext)) not in self.formats:
            return f"{self._takes()}, and yours has {in_words(form)}: {self._advice()}."
        if self.experts and EXPERTS not in ext:
            return NO_EXPERTS
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

    def _takes(self) -> str:
        if self.formats == (STORED,):
            return "This swarm takes no rollouts of engines with quantised weights"
        return f"This swarm takes rollouts of engines with {' or '.join(map(in_words, self.formats))}"

    def _advice(self) -> str:
        return quantization_advice(self.formats)


def in_words(form: str) -> str:
    """A format, to go on with after "an engine with"."""
    return "the weights as they are" if form == STORED else f"{form} weights"


def quantization_advice(formats: Sequence[str]) -> str:
    """What to do in node.toml where these formats are taken."""
    if STORED in formats:
        return "leave [engine] quantization out"
    return f'set [engine] quantization = "{formats[0]}" in node.toml' if formats else "ask its operator"


def accepted_dtypes(ext: Mapping[str, bytes]) -> tuple[str, ...]:
    """The values of compute_dtype that a learner takes, which says this in TellTerms; none if it takes all."""
    told = ext.get(COMPUTE_DTYPE)
    return () if told is None else tuple(_said(one) for one in told.split(b",") if one)


def _said(word: bytes) -> str:
    return visible(word[:SAID_BYTES].decode(errors="replace"))
