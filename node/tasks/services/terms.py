"""Define the settings of a service that gives rewards, and the values that it may answer.

Invariants:

- Settings are read once from plain values, as swarm.toml or an author gives them, and are checked then.
- A key is given by the name of the environment variable that holds it. The settings never contain the key itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from node.tasks.api.interface import TaskError

MAX_WHY_CHARACTERS = 400
"""Maximum characters of a reason why there is no reward: a paragraph of a judge's prose. Each one becomes an event."""


class Unsaid(NamedTuple):
    """There is no reward, and why."""

    why: str


ServiceReward = float | Mapping[str, float | None]
"""One number, or several by name; None for a name that has no reward."""


class Speech(Protocol):
    """The protocol of a service. Questions, each a JSON value as bytes, go into one body; answers come from another."""

    def write(self, questions: list[bytes]) -> bytes:
        """Return the body of a request."""

    def read(self, body: bytes, count: int) -> list[ServiceReward | Unsaid]:
        """Return the answers to `count` questions, in order. Raises ValueError, which says what is wrong."""


@dataclass(frozen=True, kw_only=True)
class ServiceTerms:
    """The settings of a service. `name`: its name in events and messages.

    A question gets an answer, or is `Unsaid`, within `timeout_s`, which includes waiting, all `retries` and pauses. Up
    to `at_once` requests of this process are open, each with at most `batch` questions; the first question of a batch
    waits `batch_wait_s` for others. `cache_entries`: number of cached answers. `api_key_env`: the name of the
    environment variable with the key.
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
        """The address, without parts that may be secret."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"


def require_address(url: str, key: str) -> None:
    """Raise TaskError, beginning with `key`, unless `url` is an HTTP address without a user name or password."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable or any(character.isspace() for character in url):
        raise TaskError(f"{key}: must be an address that begins with http:// or https://. Give one, with its port.")
    if "@" in parts.netloc:
        raise TaskError(f"{key}: contains a name or a password, which logs would show. Use api_key_env.")


T = TypeVar("T", bound=ServiceTerms)


def terms_of(kind: type[T], name: str, given: Mapping[str, Any] | None, *, wanted_by: str) -> T:
    """Return the settings in section `name` of swarm.toml. Raises TaskError if `wanted_by` needs them and there are
    none."""
    if not given or not given.get("url"):
        raise TaskError(
            f"{wanted_by} asks a service, but nothing says where it is: set url in [{name}] of swarm.toml, and name "
            "that file if you look at a task by itself (--config)."
        )
    known = {field.name for field in fields(kind)} - {"name"}
    return kind(name=f"[{name}]", **{key: value for key, value in given.items() if key in known})


def shortened(text: str, most: int = MAX_WHY_CHARACTERS) -> str:
    """Return the text on one line, cut to `most` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]}..."
