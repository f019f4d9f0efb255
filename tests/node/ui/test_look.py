"""Keys: pages open and close, scrolling stays within the page, orders are handed on."""

from __future__ import annotations

import pytest

from node.ui.look import KEYS, ORDERS, PAGES, Look, Order, Page, press


@pytest.mark.parametrize(
    ("key", "order"), [("q", Order.STOP), ("p", Order.PAUSE), ("d", Order.DRAIN), ("i", Order.SHOW_PRINTED)]
)
def test_orders_leave_the_look_as_it_is(key: str, order: Order) -> None:
    look = Look(page=Page.PEERS, scrolled=3, most=9)
    assert press(look, key) == (look, order)


@pytest.mark.parametrize(("key", "page"), [("r", Page.PEERS), ("n", Page.NOTICES), ("h", Page.HELP), ("?", Page.HELP)])
def test_a_key_opens_its_page_and_closes_it_again(key: str, page: Page) -> None:
    opened, order = press(Look(scrolled=5, most=9), key)
    assert (opened.page, opened.scrolled, order) == (page, 0, None)
    assert press(opened, key)[0].page is Page.MAIN
    assert press(opened, "escape")[0].page is Page.MAIN


def test_scrolling_ends_where_the_page_ends() -> None:
    look = Look(most=25, lines=10)
    for key, scrolled in (
        ("up", 0), ("down", 1), ("page down", 11), ("page down", 21), ("page down", 25), ("down", 25), ("page up", 15),
        ("home", 0), ("end", 25), ("up", 24),
    ):  # fmt: skip
        look, order = press(look, key)
        assert (look.scrolled, order) == (scrolled, None), key


def test_other_keys_mean_nothing() -> None:
    look = Look(scrolled=2, most=9)
    assert [press(look, key) for key in ("x", "left", "Q")] == [(look, None)] * 3


def test_the_page_of_help_names_every_key() -> None:
    named = " ".join(keys for keys, _ in KEYS)
    assert all(key in named for key in {*ORDERS, *PAGES})
