"""Build the whole page: its head, its style and script, and its content.

Pure except reading the two files beside it, and writing the page.

Invariants:

- The page refers to nothing outside itself.
- Its Content-Security-Policy lets only our style and script take effect, which it names by their hashes.
- The same report gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path

from node.reports.html import own_page
from node.reports.html import run_page as overview
from node.reports.html.charts.markup import Fragment, inlined, tag
from node.reports.html.peer_page import peer_pages
from node.reports.model.history import History
from node.reports.model.report import OwnReport, SwarmReport
from node.runtime import formatting as words
from node.runtime.atomic_files import write_whole

STYLE, SCRIPT = "page.css", "page.js"

NAVIGATION = (("learned", "Learning"), ("plots", "Plots"), ("story", "Summary"), ("peers", "Peers"))
OWN_NAVIGATION = (("plots", "Timeline"), ("story", "Summary"), ("verdicts", "Verdicts"), ("earnings", "Earnings"))


def as_html(report: SwarmReport | OwnReport, *, again_s: float | None = None) -> str:
    """Return the page of `report`, which must have been read with its history.

    again_s: seconds after which a browser loads the page again; None: it does not.
    """
    match report:
        case SwarmReport():
            history = report.history or History()
            links = [
                *NAVIGATION,
                *([("bans", "Bans")] if report.banned else []),
                ("rejected", "Rejected"),
                *([("costs", "Cost")] if report.peers else []),
                *([("plans", "Plans")] if report.plans else []),
            ]
            main, pages = overview.overview(report, history.peers), peer_pages(report)
            return _document(*overview.heading(report), links, main, pages, again_s)
        case OwnReport():
            links = [one for one in OWN_NAVIGATION if own_page.has_verdicts(report) or one[0] != "verdicts"]
            return _document(*own_page.heading(report), links, own_page.own_page(report), [], again_s)


def write_html(report: SwarmReport | OwnReport, path: Path) -> None:
    """Write the page of `report` to `path`, whole or not at all. Raises OSError."""
    write_page(as_html(report), path)


def write_page(text: str, path: Path) -> None:
    """Write a page's text to `path`, whole or not at all. Raises OSError."""
    write_whole(path, lambda partial: partial.write_text(text, encoding="utf-8", newline="\n"))


def _document(
    title: str,
    said: str,
    links: list[tuple[str, str]],
    main: Fragment,
    pages: list[Fragment],
    again_s: float | None,
) -> str:
    name = f"{title}, Volery report"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy(is_again=again_s is not None)),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name_="color-scheme", content="light dark"),
        tag("meta", name_="referrer", content="no-referrer"),
        None if again_s is None else tag("noscript", tag("meta", http_equiv="refresh", content=f"{again_s:g}")),
        tag("title", name),
        inlined("style", _file(STYLE)),
    )
    body = tag(
        "body",
        tag("a", "Skip to the content", href="#main", class_="skip"),
        tag(
            "header",
            tag("h1", tag("bdi", title)),
            tag("p", said),
            None if again_s is None else _again(again_s),
            tag("nav", [tag("a", text, href=f"#{key}") for key, text in links], aria_label="Parts of this page"),
        ),
        tag("main", main, tag("div", pages, id="pages") if pages else None, id="main", tabindex=-1),
        tag("footer", tag("p", "Made by volery report --html. This file is complete and loads nothing else.")),
        tag("div", id="said", role="status", class_="unseen"),
        inlined("script", _file(SCRIPT)),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en').text}\n"


def _again(again_s: float) -> Fragment:
    """Return the line about loading again, where the script adds a button that stops it."""
    said = f"Every {words.seconds(again_s)}, this page looks for news and shows them."
    return tag("p", tag("span", said), id="again", data_s=f"{again_s:g}")


def policy(*, is_again: bool = False) -> str:
    """Return what a browser lets take effect: our style and script, and nothing else.

    is_again: whether the script may ask where the page came from whether there is a newer one.
    """
    style, script = _hash(_file(STYLE)), _hash(_file(SCRIPT))
    asked = " connect-src 'self';" if is_again else ""
    return f"default-src 'none';{asked} style-src '{style}'; script-src '{script}'; base-uri 'none'; form-action 'none'"


def _hash(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


@cache
def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
