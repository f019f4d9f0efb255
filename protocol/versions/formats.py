"""In which number format an engine holds a policy's weights: the names, and how records and greetings say them.

What always holds: a record that says nothing was made with the weights as they were published, and has the bytes that
it always had. What each format is, exactly, says docs/quantised.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protocol.core.visible import visible

QUANTIZED = "volery.quantized"
"""The extension by which a record and a rollout node's Hello name the format that its engine holds the weights in,
absent for "stored"; and TellTerms those that a learner takes, with commas between, absent for "stored" alone."""

STORED, INT8, INT4, FP8 = "stored", "int8", "int4", "fp8"

OURS = (STORED, INT8, INT4)
"""Of which it is said what each weight is, so that another engine can hold the same ones and audit."""

SHOWN_BYTES = 64
"""Of a stranger's word for a format are shown at most."""

MOST_FORMATS = 16
"""Of a learner's list are read at most: there are four."""


def format_of(ext: Mapping[str, bytes]) -> str:
    """What a record or a greeting says; a word that is no format's is shown so that it does nothing."""
    word = ext.get(QUANTIZED)
    return STORED if word is None else _shown(word)


def told_format(form: str) -> dict[str, bytes]:
    """The extension that says so."""
    return {} if form == STORED else {QUANTIZED: form.encode()}


def taken_formats(ext: Mapping[str, bytes]) -> tuple[str, ...]:
    """Those that a learner takes which says this in TellTerms."""
    words = ext.get(QUANTIZED)
    if words is None:
        return (STORED,)
    if not words:  # as learners said it that knew one other
        return (STORED, FP8)
    return tuple(_shown(word) for word in words.split(b",")[:MOST_FORMATS] if word)


def told_formats(forms: Sequence[str]) -> dict[str, bytes]:
    """The extension of TellTerms that says so."""
    return {} if set(forms) == {STORED} else {QUANTIZED: ",".join(forms).encode()}


def _shown(word: bytes) -> str:
    return visible(word[:SHOWN_BYTES].decode(errors="replace")).replace("\n", "\\n")
