"""Build elements of HTML and SVG, so that no text can become markup. Pure.

Invariants:

- A `str` is shown as text, whoever wrote it: characters that HTML would interpret are escaped, and invisible or
  direction-changing characters are written out (`node.visible`).
- Only a Fragment is markup, and only `tag` and `inlined` make one.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass

from protocol.core.visible import visible

VOID = frozenset({"br", "circle", "col", "input", "line", "meta", "path", "polygon", "rect"})
"""Elements that are not closed."""

Attribute = str | int | float | bool | None


@dataclass(frozen=True)
class Fragment:
    """Markup that may be put into a page."""

    text: str


Child = Fragment | str | Iterable["Child"] | None
"""The possible content of an element; None is nothing."""


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Fragment:
    """Return the element `name`.

    Attributes are named as in HTML, with _ for - and one more _ after words of Python: `class_`, `aria_label`. An
    attribute that is None or False is left out; one that is True has no value.
    """
    written = "".join(_attribute(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    if name in VOID:
        return Fragment(f"<{name}{written}>" if name in ("br", "col", "input", "meta") else f"<{name}{written}/>")
    return Fragment(f"<{name}{written}>{joined(children)}</{name}>")


def joined(children: Child) -> str:
    """Return `children` as markup."""
    match children:
        case None:
            return ""
        case Fragment():
            return children.text
        case str():
            return escaped(children)
        case _:
            return "".join(joined(child) for child in children)


def escaped(text: str) -> str:
    """Return `text` in the form for use between elements and in a quoted attribute."""
    plain = text if text.isascii() and text.isprintable() else visible(text)
    return html.escape(plain, quote=True)


def strangers(text: str, **attributes: Attribute) -> Fragment:
    """Return a stranger's text so that it cannot change the direction of the text beside it."""
    return tag("bdi", text, **attributes)


def inlined(name: str, content: str) -> Fragment:
    """Return the element `name`, style or script, with our text unchanged. Raises ValueError if that would end it."""
    if "</" in content or "<!--" in content:
        raise ValueError(f"the {name} of the page contains text that would end it")
    return Fragment(f"<{name}>{content}</{name}>")


def num(value: float) -> str:
    """Return a coordinate, to a tenth of a pixel."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


def _attribute(name: str, value: Attribute) -> str:
    match value:
        case None | False:
            return ""
        case True:
            return f" {name}"
        case float():
            return f' {name}="{num(value)}"'
        case _:
            return f' {name}="{escaped(str(value))}"'
