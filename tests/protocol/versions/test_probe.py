"""The probe of a version: written in a manifest, read from it, refused when it contradicts itself."""

from __future__ import annotations

import pytest
from msgspec.msgpack import encode as packed

from protocol.core.codec import encode, pack_logprobs, pack_tokens
from protocol.core.errors import Fault, PeerError
from protocol.core.limits import MAX_EXTENSION_BYTES
from protocol.versions.manifest import Manifest
from protocol.versions.probe import PROBE, Probe, Probed, ProbeRow, probe_extension, probe_of
from tests.protocol.versions.test_manifest import but

PROBED = Probed(dtype="float32", sequences=(((1, 2), (3, 4)), ((5,), (6,))), logprobs=(-0.5, -1.5, -2.25))

GOLDEN = bytes.fromhex(
    "82"  # a map of two
    "a5 6474797065 a7 666c6f61743332"  # dtype: float32
    "a4 726f7773 92"  # rows: two
    "93 c408 0100000002000000 c408 0300000004000000 c408 000000bf0000c0bf"  # 1 2, 3 4, -0.5 -1.5
    "93 c404 05000000 c404 06000000 c404 000010c0"  # 5, 6, -2.25
)


def with_probe(raw: bytes) -> Manifest:
    return but(ext={PROBE: raw})


def test_what_is_told_is_read() -> None:
    assert probe_extension(PROBED) == {PROBE: GOLDEN}
    assert probe_of(with_probe(GOLDEN)) == PROBED
    assert probe_of(but()) is None
    long = tuple(range(64))
    largest = Probed(dtype="bfloat16", sequences=((long[:8], long[:8]),) * 16, logprobs=(-1.0,) * 128)
    assert len(probe_extension(largest)[PROBE]) <= MAX_EXTENSION_BYTES


def row(completion: tuple[int, ...], logprobs: tuple[float, ...]) -> ProbeRow:
    return ProbeRow(pack_tokens((1,)), pack_tokens(completion), pack_logprobs(logprobs))


@pytest.mark.parametrize(
    "raw",
    [
        b"\xc1",
        encode(Probe(dtype="float32", rows=[])),
        encode(Probe(dtype="float32", rows=[row((2, 3), (-1.0,))])),
        encode(Probe(dtype="float32", rows=[row((2,), (float("nan"),))])),
        encode(Probe(dtype="float32", rows=[row((2,), (0.5,))])),
        packed({"dtype": "float32", "rows": [[b"12345", pack_tokens((1,)), pack_logprobs((-1.0,))]]}),
        packed({"dtype": "float32", "rows": [[pack_tokens((2**31,)), pack_tokens((1,)), pack_logprobs((-1.0,))]]}),
    ],
)
def test_a_probe_that_contradicts_itself_is_refused(raw: bytes) -> None:
    with pytest.raises(PeerError) as refused:
        probe_of(with_probe(raw))
    assert refused.value.fault is Fault.MALFORMED
