"""Find out where notices go: the URL, its form, and how both are shown.

The URL of a webhook is a password: whoever has it can write to the chat.

Invariants:

- `shown` and `without_secret` have the URL's host, and nothing of its path, query, user or password.
- No error of this module repeats the URL.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from node.config.common import NotifySection
from node.runtime.errors import UsageError

Shape = Literal["json", "ntfy", "slack", "discord"]

HIDDEN = "***"
"""In place of what is secret. A URL that holds it was copied from our output, and could not work."""

MIN_SECRET_CHARS = 6
"""Shorter parts of a path, such as "api", are words, and no secrets."""

NAMES: Mapping[Shape, str] = {
    "json": "as JSON",
    "ntfy": "in the form of ntfy",
    "slack": "in the form of Slack",
    "discord": "in the form of Discord",
}


@dataclass(frozen=True, kw_only=True)
class Destination:
    """A URL to post to, and the form that is expected there."""

    url: str
    shape: Shape

    @property
    def shown(self) -> str:
        """Return the URL without its secret: "https://discord.com/***"."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{_host(parts)}/{HIDDEN}"

    @property
    def form(self) -> str:
        """Return in which form notices go there."""
        return NAMES[self.shape]

    @property
    def description(self) -> str:
        """Return where notices go, and in which form."""
        return f"{self.shown} {self.form}"

    def without_secret(self, text: str) -> str:
        """Return `text`, such as an error of a library or a server, with every part of the URL's secret hidden."""
        parts = urlsplit(self.url)
        pieces = re.split(r"[/?&=]", f"{parts.path}?{parts.query}")
        secrets = [self.url, *pieces, parts.username or "", parts.password or ""]
        for secret in sorted({*secrets, *map(unquote, secrets)}, key=len, reverse=True):
            if len(secret) >= MIN_SECRET_CHARS:
                text = text.replace(secret, HIDDEN)
        return text


def destination_of(section: NotifySection, environment: Mapping[str, str] = os.environ) -> Destination | None:
    """Return where `[notify]` posts to; None if it names no URL. Raises UsageError."""
    if section.url and section.url_env:
        raise UsageError("[notify] url and url_env both name the URL. Remove one of them.")
    key, url = ("url_env", environment.get(section.url_env, "")) if section.url_env else ("url", section.url)
    url = url.strip()
    if section.url_env and not url:
        raise UsageError(
            f"[notify] url_env: {section.url_env} is not set in the environment here. Set it to the URL for notices, "
            "and start again."
        )
    if not url:
        return None
    if why := _flaw(url):
        raise UsageError(f'[notify] {key} {why}. Copy it whole, for example "https://ntfy.sh/my-topic".')
    shape = _guess(url) if section.shape == "auto" else section.shape
    if shape == "ntfy" and len(topic_of(url)) != 2:
        raise UsageError(f'[notify] {key} has no topic. For ntfy it is SERVER/TOPIC: "https://ntfy.sh/my-topic".')
    return Destination(url=url, shape=shape)


def _flaw(url: str) -> str:
    """Return what is wrong with a URL, as the rest of a sentence; "" if nothing is."""
    if HIDDEN in url:
        return f'has "{HIDDEN}" in place of its secret, as volery shows it'
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "is not a URL"
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        return "is not the URL of a web server"
    return "" if url.isascii() and url.isprintable() and " " not in url else "has characters that no URL has"


def _guess(url: str) -> Shape:
    """Return the form that the host of a URL expects."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host.startswith("ntfy."):
        return "ntfy"
    if host in ("hooks.slack.com", "hooks.slack-gov.com"):
        return "slack"
    if host in ("discord.com", "discordapp.com") or host.endswith((".discord.com", ".discordapp.com")):
        return "slack" if parts.path.endswith("/slack") else "discord"
    return "json"


def topic_of(url: str) -> tuple[str, ...]:
    """Return the server's own URL and the topic of a URL of ntfy; nothing if it has no such form."""
    parts = urlsplit(url)
    topic = parts.path.strip("/")
    if not topic or "/" in topic:
        return ()
    return urlunsplit(parts._replace(path="/")), topic


def _host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{parts.port}" if parts.port else host
