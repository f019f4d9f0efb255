"""Elements of HTML and SVG, built so that no text can become markup.

Pure. What always holds: a `str`, whoever wrote it, is shown as text: what HTML would obey is escaped, and what would
turn the direction of writing or hide is written out (`node.visible`); only a Fragment is markup, and only `tag` and
`inlined` make one.
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
    """Markup that may stand in a page."""

    text: str


Child = Fragment | str | Iterable["Child"] | None
"""What may stand in an element; None is nothing."""


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Fragment:
    """The element `name`.

    Attributes are named as in HTML, with _ for - and one more _ behind words of Python's: `class_`, `aria_label`. One
    that is None or False is left out, one that is True has no value.
    """
    written = "".join(_attribute(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    if name in VOID:
        return Fragment(f"<{name}{written}>" if name in ("br", "col", "input", "meta") else f"<{name}{written}/>")
    return Fragment(f"<{name}{written}>{joined(children)}</{name}>")


def joined(children: Child) -> str:
    """`children` as markup."""
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
    """`text` as it may stand between elements and in a quoted attribute."""
    plain = text if text.isascii() and text.isprintable() else visible(text)
    return html.escape(plain, quote=True)


def strangers(text: str, **attributes: Attribute) -> Fragment:
    """What a stranger wrote, kept from turning the direction of what stands beside it."""
    return tag("bdi", text, **attributes)


def inlined(name: str, content: str) -> Fragment:
    """The element `name`, style or script, with a text of ours, to the byte. Raises ValueError if that would end it."""
    if "</" in content or "<!--" in content:
        raise ValueError(f"the {name} of the page contains what would end it")
    return Fragment(f"<{name}>{content}</{name}>")


def num(value: float) -> str:
    """A coordinate, to a tenth of a pixel."""
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
