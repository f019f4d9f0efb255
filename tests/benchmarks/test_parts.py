"""Figures of `benchmarks/parts.py`: what a node had generated, and how much of it was lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.parts import Left, begun, lines_of, lost_pct, made_last


def test_what_was_lost_is_a_share_of_all_that_was_made() -> None:
    found = [
        Left(way="parts", made=100, trained=100),
        Left(way="parts", made=300, trained=296),
        Left(way="returns", made=50, trained=0),
    ]
    assert [one.lost_pct for one in found] == [0.0, pytest.approx(4 / 3), 100.0]
    assert lost_pct(found, "parts") == 1.0
    assert lost_pct(found, "returns") == 100.0
    assert lost_pct(found, "others") is None


def test_an_account_tells_what_was_made_in_the_last_call(tmp_path: Path) -> None:
    account = tmp_path / "n1.jsonl"
    assert (lines_of(account), begun(account), made_last(account)) == ([], 0, 0)
    account.write_text('{"began": 0}\n{"ended": 0, "made": 7}\n{"began": 1}\n{"ended": 1, "ma', encoding="ascii")
    assert (begun(account), made_last(account)) == (2, 0), "it has not ended"
    account.write_text('{"began": 0}\n{"ended": 0, "made": 7}\n', encoding="ascii")
    assert (begun(account), made_last(account)) == (1, 7)
