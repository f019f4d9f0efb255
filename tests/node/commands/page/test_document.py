"""The document: what a browser may do with it, which it says itself, and what it does without a script."""

from __future__ import annotations

import base64
import hashlib
import re

from node.commands.page.document import RELOAD_S, Link, document, piece, policy
from tests.support.page_stories import NAMES


def whole(title: str = "running: a swarm") -> str:
    links = [Link(key="peers", name="Peers"), Link(key="costs", name="Cost", is_empty=True)]
    return document(title, links, ['<section id="peers"></section>'], revision=7)


def test_only_its_own_style_and_script_take_effect() -> None:
    for page in (whole(), piece("Peer", "<p>x</p>")):
        for name in ("style", "script"):
            for content in re.findall(rf"<{name}>(.*?)</{name}>", page, re.S):
                digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
                assert f"{name}-src 'sha256-{digest}'" in policy()
        markup = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.S)
        assert re.findall(r'(?:src|href)="(?!#|\./)[^"]*"', markup) == []
        assert not re.search(r' (style|on\w+)="', markup)
    assert "default-src 'none'" in policy()
    assert "unsafe" not in policy()


def test_without_a_script_it_loads_itself_again_but_a_piece_does_not() -> None:
    assert f'<noscript><meta http-equiv="refresh" content="{RELOAD_S}"></noscript>' in whole()
    assert "http-equiv" not in piece("Peer", "")


def test_links_to_parts_without_content_are_hidden() -> None:
    assert '<a href="#peers">Peers</a><a href="#costs" hidden>Cost</a>' in whole()


def test_a_title_stays_text() -> None:
    for name in NAMES:
        assert whole(name).count("<") == whole("x").count("<")
        assert piece(name, "").count("<") == piece("x", "").count("<")
