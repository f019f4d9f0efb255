"""Name the number format in which an engine holds a policy's weights, in records, greetings and terms.

docs/explain/quantised.md defines each format exactly.

Invariants:

- A record without the extension was generated with the weights as published. Its encoding is the one from before the
  extension existed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protocol.core.visible import visible

QUANTIZED = "volery.quantized"
"""The extension for the format of an engine's weights. A record and a rollout node's Hello name one format; absent
means "stored". TellTerms lists those that the learner accepts, separated by commas; absent means "stored" alone."""

STORED, INT8, INT4, FP8 = "stored", "int8", "int4", "fp8"

OURS = (STORED, INT8, INT4)
"""The formats that Volery defines weight by weight, so that another engine can hold the same weights and audit."""

SHOWN_BYTES = 64
"""Largest part of an unknown format's name that is shown."""

MOST_FORMATS = 16
"""Largest part of a learner's list of formats that is read. There are four formats."""


def format_of(ext: Mapping[str, bytes]) -> str:
    """Return the format that a record or a greeting names. An unknown name is made harmless for terminals."""
    word = ext.get(QUANTIZED)
    return STORED if word is None else _shown(word)


def format_extension(form: str) -> dict[str, bytes]:
    """Return the extension that names `form`."""
    return {} if form == STORED else {QUANTIZED: form.encode()}


def taken_formats(ext: Mapping[str, bytes]) -> tuple[str, ...]:
    """Return the formats that a learner accepts, from the extensions of its TellTerms."""
    words = ext.get(QUANTIZED)
    if words is None:
        return (STORED,)
    if not words:  # older learners, which knew FP8 as the only other format, sent an empty value
        return (STORED, FP8)
    return tuple(_shown(word) for word in words.split(b",")[:MOST_FORMATS] if word)


def formats_extension(forms: Sequence[str]) -> dict[str, bytes]:
    """Return the extension of TellTerms that lists `forms`."""
    return {} if set(forms) == {STORED} else {QUANTIZED: ",".join(forms).encode()}


def _shown(word: bytes) -> str:
    return visible(word[:SHOWN_BYTES].decode(errors="replace")).replace("\n", "\\n")
