"""What is set of a service that is asked for rewards, and what it may answer, as values.

What always holds: terms are read once from plain values, as swarm.toml or an author gives them, and checked then; a key
is named by the variable of the environment that holds it, and never held here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from node.tasks.api.interface import TaskError

MAX_WHY_CHARACTERS = 400
"""Of why nobody can say: a paragraph of a judge's prose. It is written into events, one for each such answer."""


class Unsaid(NamedTuple):
    """Nobody can say what this is worth, and why not."""

    why: str


Worth = float | Mapping[str, float | None]
"""A number, or several with names; None for a name that nobody could say anything of."""


class Speech(Protocol):
    """How a service is spoken to: questions, each a JSON value as bytes, in one body, and answers out of another."""

    def write(self, questions: list[bytes]) -> bytes:
        """The body of a request."""

    def read(self, body: bytes, count: int) -> list[Worth | Unsaid]:
        """The answers to so many questions, in order. Raises ValueError that says why it holds none."""


@dataclass(frozen=True, kw_only=True)
class ServiceTerms:
    """How a service is asked. `name` is what events and messages call it.

    A question has an answer, or is `Unsaid`, within `timeout_s`: waiting, all `retries` and pauses included. Up to
    `at_once` requests are under way from this process, each of `batch` questions at most, for which the first waits
    `batch_wait_s`. `cache_entries` answers are remembered. `api_key_env` names the variable with the key.
    """

    name: str
    url: str
    api_key_env: str = ""
    proxy: str = ""
    timeout_s: float = 25.0
    retries: int = 4
    at_once: int = 16
    batch: int = 1
    batch_wait_s: float = 0.02
    cache_entries: int = 10_000

    def __post_init__(self) -> None:
        require_address(self.url, f"{self.name} url")
        if self.proxy:
            require_address(self.proxy, f"{self.name} proxy")
        lowest = {"timeout_s": 0.1, "retries": 0, "at_once": 1, "batch": 1, "batch_wait_s": 0, "cache_entries": 0}
        for key, least in lowest.items():
            if not getattr(self, key) >= least:
                raise TaskError(f"{self.name} {key} = {getattr(self, key)} is less than {least}. Raise it.")

    @property
    def shown(self) -> str:
        """The address without what may be secret in it."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"


def require_address(url: str, key: str) -> None:
    """Raises TaskError, beginning with `key`, unless it is an address of HTTP without a name or a password in it."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable or any(character.isspace() for character in url):
        raise TaskError(f"{key}: is no address that begins with http:// or https://. Give one, with its port.")
    if "@" in parts.netloc:
        raise TaskError(f"{key}: holds a name or a password, which logs would show. Use api_key_env.")


T = TypeVar("T", bound=ServiceTerms)


def terms_of(kind: type[T], name: str, given: Mapping[str, Any] | None, *, wanted_by: str) -> T:
    """The terms in section `name` of swarm.toml. Raises TaskError where there is none, for `wanted_by`."""
    if not given or not given.get("url"):
        raise TaskError(
            f"{wanted_by} asks a service, and nothing says where that is: set url in [{name}] of swarm.toml, and name "
            "that file where you look at a task by itself (--config)."
        )
    known = {field.name for field in fields(kind)} - {"name"}
    return kind(name=f"[{name}]", **{key: value for key, value in given.items() if key in known})


def shortened(text: str, most: int = MAX_WHY_CHARACTERS) -> str:
    """In one line, as much of it as an event has room for."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]}..."
