"""The probe of a version: a few tokens, and the logprobs that its weights give them, as an extension of its manifest.

An engine that has loaded the version scores the same tokens; when what it finds is far from what is told, it has loaded
something else, whatever it thinks. What always holds after `probe_of`: every row has a prompt, and one logprob for each
token of its completion. The learner signs the probe with the manifest; a reader that does not know it loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from protocol.core.codec import (
    Message,
    Packed,
    Row,
    decode,
    encode,
    pack_logprobs,
    pack_tokens,
    unpack_logprobs,
    unpack_tokens,
)
from protocol.core.errors import Fault, PeerError
from protocol.core.limits import MAX_EXTENSION_BYTES
from protocol.versions.manifest import Manifest

PROBE = "volery.probe"
"""The extension of Manifest."""

PackedTokens = Annotated[bytes, Meta(min_length=4, max_length=256), Packed]
PackedLogprobs = Annotated[bytes, Meta(min_length=4, max_length=256)]


class ProbeRow(Row, frozen=True, array_like=True):
    """One sequence: token ids of prompt and completion, the completion's logprobs."""

    prompt: PackedTokens
    completion: PackedTokens
    logprobs: PackedLogprobs


class Probe(Message, frozen=True, kw_only=True):
    """`dtype` names the coarsest number format between the weights and these logprobs, as torch names it."""

    dtype: Annotated[str, Meta(max_length=16, pattern=r"^[A-Za-z0-9_]*\Z")]
    rows: Annotated[list[ProbeRow], Meta(min_length=1, max_length=16)]


@dataclass(frozen=True, kw_only=True)
class Probed:
    """A probe as engines take it: (prompt, completion) pairs, and the logprobs of all completions, in order."""

    dtype: str
    sequences: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    logprobs: tuple[float, ...]


def probe_extension(probed: Probed) -> Mapping[str, bytes]:
    """The extension that tells `probed`."""
    rows: list[ProbeRow] = []
    at = 0
    for prompt, completion in probed.sequences:
        logprobs = probed.logprobs[at : at + len(completion)]
        rows.append(ProbeRow(pack_tokens(prompt), pack_tokens(completion), pack_logprobs(logprobs)))
        at += len(completion)
    return {PROBE: encode(Probe(dtype=probed.dtype, rows=rows))}


def probe_of(manifest: Manifest) -> Probed | None:
    """What the manifest tells; None when it tells nothing. Raises PeerError."""
    if (raw := manifest.ext.get(PROBE)) is None:
        return None
    probe: Probe = decode(Probe, raw, MAX_EXTENSION_BYTES)
    sequences: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    logprobs: Sequence[float] = ()
    for row in probe.rows:
        completion, told = unpack_tokens(row.completion), unpack_logprobs(row.logprobs)
        if len(completion) != len(told):
            raise PeerError(Fault.MALFORMED, f"a probe with {len(told)} logprobs for {len(completion)} tokens")
        sequences.append((unpack_tokens(row.prompt), completion))
        logprobs = (*logprobs, *told)
    return Probed(dtype=probe.dtype, sequences=tuple(sequences), logprobs=tuple(logprobs))
