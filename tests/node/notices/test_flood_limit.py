"""Strangers cannot make a phone ring without end."""

from __future__ import annotations

from dataclasses import replace

from node.notices.flood_limit import BURST, REFILL_MS, FloodLimit
from node.notices.notice import MAX_TEXT_CHARS, Notice

BAN = Notice(kind="ban", event="peer_banned", source="s", title="s: a peer is banned", text="p: it lied.", at_ms=0)


def test_a_thousand_bans_are_a_few_notices() -> None:
    limit = FloodLimit()
    admitted = [limit.admit(replace(BAN, at_ms=step * 1000)) for step in range(3600)]
    assert sum(notice is not None for notice in admitted) == BURST + 3600 * 1000 // REFILL_MS - 1
    assert all(notice is not None for notice in admitted[:BURST])


def test_the_next_notice_says_how_many_were_left_out() -> None:
    limit = FloodLimit()
    for _ in range(BURST + 7):
        limit.admit(BAN)
    later = limit.admit(replace(BAN, at_ms=REFILL_MS, text="p" * MAX_TEXT_CHARS))
    assert later is not None
    assert later.text.endswith("(7 more of this kind since the last notice: see volery status.)")
    assert len(later.text) == MAX_TEXT_CHARS
    again = limit.admit(replace(BAN, at_ms=2 * REFILL_MS))
    assert again is not None
    assert again.text == BAN.text


def test_kinds_do_not_hide_each_other_and_the_end_is_always_told() -> None:
    limit = FloodLimit()
    for _ in range(BURST + 1):
        limit.admit(BAN)
    assert limit.admit(replace(BAN, kind="alarm")) is not None
    assert all(limit.admit(replace(BAN, kind="end")) is not None for _ in range(2 * BURST))


def test_a_clock_that_goes_back_refills_nothing() -> None:
    limit = FloodLimit()
    for _ in range(BURST):
        limit.admit(replace(BAN, at_ms=10 * REFILL_MS))
    assert limit.admit(replace(BAN, at_ms=0)) is None
