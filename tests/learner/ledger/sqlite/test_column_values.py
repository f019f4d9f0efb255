"""Columns of a ledger whose contents SQLite does not check are read as they were written, or named as damaged."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.ledger.sqlite.column_values import (
    SHOWN_CHARS,
    counts_from,
    from_json,
    margins_from,
    packed_in,
    signed_in,
    version_from,
    wealth_from,
)
from learner.ledger.sqlite.database import DamagedValue
from protocol.core.errors import Fault, PeerError
from protocol.core.ids import PolicyVersion

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(st.dictionaries(st.text(max_size=5), PLAIN, max_size=4))
def test_what_was_written_is_read_as_it_was(value: dict[str, Any]) -> None:
    assert from_json("steps.metrics", json.dumps(value), dict[str, Any]) == value


def test_figures_that_are_no_numbers_are_read_as_well() -> None:
    """A loss may be infinite, and is written as Python writes it."""
    assert from_json("steps.metrics", json.dumps({"loss": float("inf")}), dict[str, Any]) == {"loss": float("inf")}


def objection(read: Callable[[], object]) -> str:
    """Return the error about a value; nothing, if it can be read."""
    try:
        read()
    except DamagedValue as error:
        return str(error)
    return ""


@given(st.text(max_size=60) | PLAIN.map(json.dumps) | st.just("[" * 100_000))
def test_any_text_is_a_value_or_named(text: str) -> None:
    said = objection(lambda: wealth_from("confidence.log_wealth", text))
    if not said:
        assert all(isinstance(one, int | float) for one in json.loads(text))
        return
    assert said.startswith("confidence.log_wealth has a value that no learner writes (")
    assert len(said) < SHOWN_CHARS * 10 + 400


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_named(raw: bytes) -> None:
    said = objection(lambda: packed_in("evidence.records", raw, list[bytes]))
    assert not said or said.startswith("evidence.records has a value that no learner writes (")
    assert said or all(isinstance(one, bytes) for one in msgspec.msgpack.decode(raw))


@given(st.lists(st.lists(st.integers(), max_size=3), max_size=3).map(json.dumps) | st.text(max_size=20))
def test_counts_of_an_audit_are_so_many_of_so_many_or_named(text: str) -> None:
    said = objection(lambda: counts_from("audits.above", text))
    if said:
        assert said.startswith("audits.above has a value that no learner writes (")
    else:
        assert all(0 <= one.above <= one.trials <= 2**53 for one in counts_from("audits.above", text))
    assert [counted.trials for counted in counts_from("audits.above", "[[0, 0], [3, 7]]")] == [0, 7]


@pytest.mark.parametrize(
    "text", ['[["gap", 0.03, 8e-4]]', '[["gap", 0.1, 0.2, 0.3, 0.2]]', '[["nap", 1, 0.5, null, null]]']
)
def test_margins_that_are_none(text: str) -> None:
    [margin] = margins_from("margins.margins", '[["gap", 0.4, 5e-05, 0.4, null]]')
    assert (margin.over, margin.upto) == (0.4, math.inf)
    with pytest.raises(DamagedValue, match=r"margins\.margins"):
        margins_from("margins.margins", text)


@pytest.mark.parametrize("name", ["", "1", "1.2.3", "a.b", "1.", "."])
def test_a_version_that_is_none(name: str) -> None:
    assert version_from("leases.started_version", "1.2") == PolicyVersion(1, 2)
    with pytest.raises(DamagedValue, match=r"leases\.started_version"):
        version_from("leases.started_version", name)


def test_an_envelope_that_is_missing_or_none() -> None:
    def read(raw: bytes) -> bytes:
        if raw != b"good":
            raise PeerError(Fault.MALFORMED, "it is torn")
        return raw

    assert signed_in("leases.envelope", b"good", read) == b"good"
    with pytest.raises(DamagedValue, match=r"leases\.envelope .*it is torn"):
        signed_in("leases.envelope", b"bad", read)
    with pytest.raises(DamagedValue, match=r"leases\.envelope .*the signed bytes were deleted"):
        signed_in("leases.envelope", None, read)
