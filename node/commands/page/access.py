"""Decide which requests a page answers. Pure.

A page on this machine is read by whoever has an account here. What another site's script in the same browser could do
is prevented: it may ask, but the answer is not for it, and it does not know the token (OWASP, "Cross-Site Request
Forgery" and "DNS Rebinding").

Invariants:

- Nothing is changed without the token, which never stands in an address that a server sees, nor in a cookie.
- A name that is not ours is refused, because a foreign name that leads here is a trick.
- An answer with data goes to our own page, or to a person who opened it.
- With a proxy's name, everybody may stand before this machine's door: reading needs the token then.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum


class Right(IntEnum):
    """What a request may do. A greater right includes the smaller ones."""

    NOTHING = 0
    READ_PUBLIC = 1
    """Read what everybody may read."""
    READ = 2
    """Read everything."""
    CHANGE = 3
    """Read everything, and give orders."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a request is refused: an HTTP status, and a sentence for people."""

    status: int
    text: str


FOREIGN_HOST = Refusal(
    status=421, text="This page is not served under that name. Operators allow a proxy's name with [web] hosts."
)
FOREIGN_ORIGIN = Refusal(status=403, text="Another site's page may not read or change this one.")
NO_TOKEN = Refusal(
    status=401, text="Open the page with the address that the program printed at its start; it ends with a token."
)


@dataclass(frozen=True, kw_only=True)
class Access:
    """The rules of one page. See `node.web.terms.PageTerms`."""

    token: str
    public: bool = False
    is_local: bool = True
    hosts: frozenset[str] = frozenset()

    def right_of(self, headers: Mapping[str, str]) -> Right:
        """Return what the bearer of a request's headers may do, whatever it asks for."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self.token.encode()):
            return Right.CHANGE
        if self.public:
            return Right.READ_PUBLIC
        return Right.READ if self.is_local and not self.hosts else Right.NOTHING

    def refusal(self, method: str, headers: Mapping[str, str]) -> Refusal | None:
        """Return why a request is refused before it is looked at; None if it is not."""
        host = headers.get("host", "")
        if not self._is_ours(_name_in(host)):
            return FOREIGN_HOST
        if not self._is_from_us(headers.get("origin", ""), host):
            return FOREIGN_ORIGIN
        site = headers.get("sec-fetch-site", "none")
        is_opened = headers.get("sec-fetch-mode") == "navigate" and method == "GET"
        return FOREIGN_ORIGIN if site not in ("same-origin", "none") and not is_opened else None

    def _is_from_us(self, origin: str, host: str) -> bool:
        """Whether our own page asks. A proxy may put another Host before the program than browsers see."""
        said = origin.partition("://")[2].lower()
        return not origin or said == host.lower() or _name_in(said) in self.hosts

    def _is_ours(self, name: str) -> bool:
        """Whether a page is served under `name`. An address cannot be made to lead elsewhere, unlike a name."""
        if name == "localhost" or name in self.hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _name_in(host: str) -> str:
    """Return the name or address in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
