"""The board: watchers get the newest state of each part, however slow they are."""

from __future__ import annotations

import trio
from hypothesis import given
from hypothesis import strategies as st

from node.commands.page.board import Board

puts = st.lists(st.tuples(st.sampled_from("abc"), st.text(max_size=2)), max_size=40)


@given(puts, st.data())
def test_a_slow_watcher_gets_the_newest_state_of_each_part(changes: list[tuple[str, str]], data: st.DataObject) -> None:
    """A watcher that looks at any moments ends with what the board holds, and never gets more than the parts."""
    board, seen, revision = Board(), dict[str, str](), 0
    for key, html in changes:
        board.put(key, html)
        if data.draw(st.booleans()):
            found = board.since(revision)
            revision = board.revision
            seen.update({part.key: part.html for part in found})
            assert len(found) <= 3
    seen.update({part.key: part.html for part in board.since(revision)})
    assert seen == dict(changes)
    assert {key: board.html(key) for key in board.keys} == seen


def test_the_same_again_is_no_change() -> None:
    board = Board()
    board.put("a", "1")
    revision = board.revision
    board.put("a", "1")
    assert board.revision == revision
    assert board.since(revision) == []
    assert board.html("nothing") == ""


async def test_all_watchers_wake_with_a_change_and_none_without(autojump_clock: object) -> None:
    board = Board()
    board.put("a", "1")
    woken: list[int] = []

    async def watch(number: int, revision: int) -> None:
        await board.wait_changed(revision)
        woken.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(watch, number, board.revision)
        await trio.testing.wait_all_tasks_blocked()
        board.put("a", "1")
        await trio.testing.wait_all_tasks_blocked()
        assert woken == []
        board.put("a", "2")
    assert sorted(woken) == [0, 1, 2]
    await board.wait_changed(0)  # what has changed already needs no waiting
