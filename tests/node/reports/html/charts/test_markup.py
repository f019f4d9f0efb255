"""Markup: a stranger's text stays text, and comes out unchanged."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.reports.html.charts.markup import Fragment, inlined, num, strangers, tag
from protocol.core.visible import visible
from tests.support.page_stories import NAMES

texts = st.text() | st.sampled_from(NAMES)


class Reader(HTMLParser):
    """What a browser would find: elements with their attributes, and text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.others: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        self.others.append(data)

    def handle_decl(self, decl: str) -> None:
        self.others.append(decl)

    def handle_pi(self, data: str) -> None:
        self.others.append(data)


def read(markup: Fragment) -> Reader:
    reader = Reader()
    reader.feed(markup.text)
    reader.close()
    return reader


@given(texts)
def test_text_stays_text(text: str) -> None:
    found = read(tag("p", text))
    assert found.elements == [("p", {})]
    assert found.text == visible(text)
    assert found.others == []


@given(texts)
def test_an_attribute_stays_one(text: str) -> None:
    found = read(tag("p", title=text, lang="en"))
    assert found.elements == [("p", {"title": visible(text), "lang": "en"})]
    assert (found.text, found.others) == ("", [])


@given(texts)
def test_a_stranger_turns_no_other_text(text: str) -> None:
    found = read(strangers(text))
    assert found.elements == [("bdi", {})]
    assert not any(character in found.text for character in "\u202e\u2066\u200b\x1b\x00")


def test_how_attributes_are_written() -> None:
    made = tag("input", class_="a", aria_label="b", http_equiv="c", hidden=True, title=None, lang=False, tabindex=0)
    assert made.text == '<input class="a" aria-label="b" http-equiv="c" hidden tabindex="0">'
    assert tag("line", x1=1.25, y1=2.0).text == '<line x1="1.2" y1="2"/>'
    assert tag("p", ["a", None, [tag("b", "c")]]).text == "<p>a<b>c</b></p>"


@pytest.mark.parametrize(("value", "written"), [(0.0, "0"), (12.34, "12.3"), (100.0, "100")])
def test_coordinates_are_short(value: float, written: str) -> None:
    assert num(value) == written


@pytest.mark.parametrize("content", ["a</style>b", "<!-- b"])
def test_what_would_end_an_element_is_not_inlined(content: str) -> None:
    with pytest.raises(ValueError, match="style"):
        inlined("style", content)
