"""Attach a probe to a version's manifest: a few tokens, and the logprobs that its weights give them.

An engine that has loaded the version scores the same tokens. If its logprobs are far from the probe, it has loaded
other weights. The learner signs the probe with the manifest, as an extension; readers that do not know it ignore it.

Invariants, after `probe_of`:

- Every row has a prompt, and one logprob for each token of its completion.
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
"""The extension of Manifest that contains a Probe."""

PackedTokens = Annotated[bytes, Meta(min_length=4, max_length=256), Packed]
PackedLogprobs = Annotated[bytes, Meta(min_length=4, max_length=256)]


class ProbeRow(Row, frozen=True, array_like=True):
    """One sequence: token ids of prompt and completion, and the completion's logprobs."""

    prompt: PackedTokens
    completion: PackedTokens
    logprobs: PackedLogprobs


class Probe(Message, frozen=True, kw_only=True):
    """The probe. `dtype` is the coarsest number format between the weights and these logprobs, as torch names it."""

    dtype: Annotated[str, Meta(max_length=16, pattern=r"^[A-Za-z0-9_]*\Z")]
    rows: Annotated[list[ProbeRow], Meta(min_length=1, max_length=16)]


@dataclass(frozen=True, kw_only=True)
class Probed:
    """A probe in the form for engines: (prompt, completion) pairs, and the logprobs of all completions, in order."""

    dtype: str
    sequences: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    logprobs: tuple[float, ...]


def probe_extension(probed: Probed) -> Mapping[str, bytes]:
    """Return the extension that contains `probed`."""
    rows: list[ProbeRow] = []
    at = 0
    for prompt, completion in probed.sequences:
        logprobs = probed.logprobs[at : at + len(completion)]
        rows.append(ProbeRow(pack_tokens(prompt), pack_tokens(completion), pack_logprobs(logprobs)))
        at += len(completion)
    return {PROBE: encode(Probe(dtype=probed.dtype, rows=rows))}


def probe_of(manifest: Manifest) -> Probed | None:
    """Return the manifest's probe, or None if it has none. Raises PeerError."""
    if (raw := manifest.ext.get(PROBE)) is None:
        return None
    probe: Probe = decode(Probe, raw, MAX_EXTENSION_BYTES)
    sequences: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    logprobs: Sequence[float] = ()
    for row in probe.rows:
        completion, told = unpack_tokens(row.completion), unpack_logprobs(row.logprobs)
        if len(completion) != len(told):
            raise PeerError(Fault.MALFORMED, f"the probe has {len(told)} logprobs for {len(completion)} tokens")
        sequences.append((unpack_tokens(row.prompt), completion))
        logprobs = (*logprobs, *told)
    return Probed(dtype=probe.dtype, sequences=tuple(sequences), logprobs=tuple(logprobs))
