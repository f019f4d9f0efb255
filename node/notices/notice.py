"""Define a notice, and make it from an event by a table of sentences.

Pure. A learner and a node have tables of their own.

Invariants:

- Title and text are visible characters on one line, whoever wrote the fields: an event may repeat what a peer said.
- Their lengths are bounded, so that every service accepts them whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from node.runtime.events import Fields
from protocol.core.visible import one_line

MAX_TITLE_CHARS = 120
"""Most characters of a title: a phone shows less on its lock screen."""

MAX_TEXT_CHARS = 1000
"""Most characters of a text. ntfy takes 4,096 bytes, which are 1,024 characters of four bytes; Discord takes 2,000
characters, and escaping may double them in the worst case."""


@dataclass(frozen=True, kw_only=True)
class Notice:
    """Something that a person should hear of.

    Args:
        kind: its kind, as `[notify] events` names it.
        event: the event behind it, as in `docs/reference/events.md`.
        source: the swarm's name, for a node with the node's.
        at_ms: when it happened, in milliseconds since 1970.
        is_urgent: whether something has to be done.
        fields: the event's fields, for programs.
    """

    kind: str
    event: str
    source: str
    title: str
    text: str
    at_ms: int
    is_urgent: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)


class Sentence(NamedTuple):
    """The notice of an event: its kind, and title and text with the event's fields in braces."""

    kind: str
    title: str
    text: str
    is_urgent: bool = False


class _Known(dict[str, Any]):
    """The fields of an event. A missing one is a question mark, since a notice must not fail."""

    def __missing__(self, key: str) -> str:
        return "?"


def make_notice(
    said: Sentence, event: str, fields: Fields, *, source: str, at_ms: int, is_urgent: bool | None = None
) -> Notice:
    """Return the notice of an event, with its sentence. `is_urgent` replaces the sentence's."""
    known = _Known(fields)
    return Notice(
        kind=said.kind,
        event=event,
        source=one_line(source, MAX_TITLE_CHARS),
        title=one_line(f"{source}: {said.title.format_map(known)}", MAX_TITLE_CHARS),
        text=one_line(said.text.format_map(known), MAX_TEXT_CHARS),
        at_ms=at_ms,
        is_urgent=said.is_urgent if is_urgent is None else is_urgent,
        fields={name: _bounded(value) for name, value in fields.items()},
    )


def _bounded(value: Any) -> Any:
    return value if isinstance(value, int | float | None) else str(value)[:MAX_TEXT_CHARS]
