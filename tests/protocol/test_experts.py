"""The experts of a record are read as they were written; bytes that do not fit a model are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.errors import Fault, PeerError
from protocol.experts import Routing, experts_bytes, unpack_experts

SMALL = Routing(layers=2, experts=4, top_k=2)


@given(
    layers=st.integers(1, 3),
    experts=st.sampled_from([2, 256, 257, 65_535]),
    tokens=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_what_is_written_is_read(layers: int, experts: int, tokens: int, seed: int) -> None:
    routing = Routing(layers=layers, experts=experts, top_k=2)
    draw = np.random.default_rng(seed)
    chosen = np.array([[draw.choice(experts, 2, replace=False) for _ in range(layers)] for _ in range(tokens)])
    raw = experts_bytes(chosen.astype(routing.dtype))
    assert len(raw) == tokens * routing.token_bytes
    assert np.array_equal(unpack_experts(raw, tokens, routing), chosen)


def test_an_id_takes_a_byte_where_that_is_enough() -> None:
    assert Routing(layers=48, experts=128, top_k=8).token_bytes == 384
    assert Routing(layers=48, experts=257, top_k=8).token_bytes == 768
    assert experts_bytes(np.array([[[1, 256]]], np.uint16)) == bytes([1, 0, 0, 1])


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "0 bytes of experts"),
        (bytes([0, 1, 0, 1, 0]), "5 bytes of experts, expected 4 for 1 tokens, 2 layers and 2 experts each"),
        (bytes([0, 1, 0, 4]), "expert 4, but a layer has 4 experts"),
        (bytes([0, 1, 3, 3]), "names an expert twice"),
    ],
    ids=["none", "one too many", "no such expert", "one twice"],
)
def test_what_describes_no_experts_is_malformed(raw: bytes, said: str) -> None:
    with pytest.raises(PeerError, match=said) as caught:
        unpack_experts(raw, 1, SMALL)
    assert caught.value.fault is Fault.MALFORMED
