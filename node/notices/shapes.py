"""Write a notice as the request that a service expects.

Pure. ntfy, Slack and Discord have a form each; "json" is for a program of your own.

Invariants:

- Text is shown as it is, since a peer may have written it: it pings nobody, and hides no address behind other words.
- A body has at most MAX_BODY_BYTES, which all services accept.

References: https://docs.ntfy.sh/publish/#publish-as-json, https://api.slack.com/messaging/webhooks,
https://discord.com/developers/docs/resources/webhook#execute-webhook
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from node.notices.destination import Destination, topic_of
from node.notices.notice import Notice
from protocol.core.visible import one_line

MAX_BODY_BYTES = 64 * 1024
"""Most bytes of a request. Only the fields of an event could exceed it, and are then left out."""

SUPPRESS_EMBEDS = 1 << 2
"""Flag of a message at Discord: no previews of links."""

URGENT, USUAL = 4, 3
"""Priorities of ntfy: "high" makes a phone sound in most of its modes, "default" is a usual message."""

MARKDOWN = re.compile(r"([\\*_~`|<>\[\]@]|^[#-])")
"""Characters with which Discord's Markdown and mentions begin."""

MAX_ESCAPED_CHARS = 1600
"""Most characters of an escaped text at Discord, which accepts 2,000 with the title."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A POST of JSON to a URL."""

    url: str
    body: bytes


def request_of(notice: Notice, to: Destination) -> Request:
    """Return the request that posts a notice there."""
    match to.shape:
        case "ntfy":
            server, topic = topic_of(to.url)
            return Request(url=server, body=_body(_as_ntfy(notice, topic)))
        case "slack":
            return Request(url=to.url, body=_body(_as_slack(notice)))
        case "discord":
            return Request(url=to.url, body=_body(_as_discord(notice)))
        case "json":
            body = _body(_as_json(notice))
            small = body if len(body) <= MAX_BODY_BYTES else _body({**_as_json(notice), "fields": {}})
            return Request(url=to.url, body=small)


def _body(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "replace")


def _as_json(notice: Notice) -> dict[str, Any]:
    return {
        "source": notice.source,
        "kind": notice.kind,
        "event": notice.event,
        "title": notice.title,
        "text": notice.text,
        "urgent": notice.is_urgent,
        "at": datetime.fromtimestamp(notice.at_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "fields": dict(notice.fields),
    }


def _as_ntfy(notice: Notice, topic: str) -> dict[str, Any]:
    return {
        "topic": topic,
        "title": notice.title,
        "message": notice.text or notice.title,
        "priority": URGENT if notice.is_urgent else USUAL,
        "tags": ["warning"] if notice.is_urgent else [],
    }


def _as_slack(notice: Notice) -> dict[str, Any]:
    text = "\n".join(filter(None, (notice.title, notice.text)))
    for character, escaped in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(character, escaped)
    return {"text": text, "mrkdwn": False, "unfurl_links": False, "unfurl_media": False}


def _as_discord(notice: Notice) -> dict[str, Any]:
    text = _escaped(notice.text)
    if len(text) > MAX_ESCAPED_CHARS:
        text = _escaped(one_line(notice.text, MAX_ESCAPED_CHARS // 2))
    content = "\n".join(filter(None, (f"**{_escaped(notice.title)}**", text)))
    return {"content": content, "flags": SUPPRESS_EMBEDS, "allowed_mentions": {"parse": []}}


def _escaped(text: str) -> str:
    return MARKDOWN.sub(r"\\\1", text)
