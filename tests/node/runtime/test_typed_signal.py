"""A signal: all subscribers get the news at once, in the order in which they subscribed."""

from __future__ import annotations

from node.runtime.typed_signal import Signal


def test_all_hear_it_before_emit_returns_and_in_the_order_of_subscription() -> None:
    signal, heard = Signal[int](), list[tuple[str, int]]()
    signal.emit(0)
    signal.subscribe(lambda news: heard.append(("first", news)))
    signal.subscribe(lambda news: heard.append(("second", news)))
    signal.emit(1)
    signal.emit(2)
    assert heard == [("first", 1), ("second", 1), ("first", 2), ("second", 2)]
