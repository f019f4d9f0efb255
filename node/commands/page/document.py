"""Make the whole document of a live page: head, style, script and the parts as they are now. Pure but for two files.

Invariants:

- The page loads nothing from other hosts, and its Content-Security-Policy forbids it.
- It can be read without a script: then it loads itself again every RELOAD_S seconds.
- A piece of it that is opened alone, as in another tab, stays as it is.
- Addresses in it are relative, so that a proxy may show it below a path of its own.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from node.reports.html.charts.markup import Fragment, inlined, tag

RELOAD_S = 10


@dataclass(frozen=True, kw_only=True)
class Link:
    """A link to a part of the page. `is_empty`: whether the part has no content yet; then the link is hidden."""

    key: str
    name: str
    is_empty: bool = False


@cache
def style() -> str:
    """Return the style: the report's, and what a live page has beside it."""
    report = files("node.reports.html").joinpath("page.css").read_text("utf-8")
    return report + files("node.commands.page").joinpath("live.css").read_text("utf-8")


@cache
def script() -> str:
    return files("node.commands.page").joinpath("live.js").read_text("utf-8")


@cache
def policy() -> str:
    """Return what a browser lets take effect."""
    return "; ".join(
        [
            "default-src 'none'",
            f"style-src '{_hash(style())}'",
            f"script-src '{_hash(script())}'",
            "connect-src 'self'",
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        ]
    )


def _hash(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def document(title: str, links: Sequence[Link], parts: Iterable[str], *, revision: int) -> str:
    """Return the document. `parts`: markup of the parts, in order. `revision`: the board's, when they were taken."""
    names = [tag("a", link.name, href=f"#{link.key}", hidden=link.is_empty) for link in links]
    body = tag(
        "body",
        tag("a", "Skip to the content", href="#main", class_="skip"),
        tag("nav", names, aria_label="Parts of this page"),
        tag("p", id="connection", role="status", class_="connection", hidden=True),
        tag("main", Fragment("\n".join(parts)), id="main", tabindex=-1, data_revision=revision),
        tag("div", id="said", role="status", class_="unseen"),
        inlined("script", script()),
    )
    reload = tag("noscript", tag("meta", http_equiv="refresh", content=str(RELOAD_S)))
    return _whole(title, body, reload)


def piece(title: str, text: str) -> str:
    """Return a document with one piece of the page, for a browser that opens it alone. `text`: its markup."""
    back = tag("nav", tag("a", "The whole page", href="./"), aria_label="Back")
    return _whole(title, tag("body", back, tag("main", tag("h1", title, class_="unseen"), Fragment(text), id="main")))


def _whole(title: str, body: Fragment, *more: Fragment) -> str:
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name_="color-scheme", content="light dark"),
        tag("meta", name_="referrer", content="no-referrer"),
        tag("title", title),
        more,
        inlined("style", style()),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en').text}\n"
