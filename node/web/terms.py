"""Define what a page server is told on its standard input at its start: one line of JSON, `PageTerms`.

Nothing follows it. The end of the input says that the run's program has ended.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Kind = Literal["learner", "rollout"]

MODULE = "node.commands.page.program"
"""The module of the page server, which `python -m` runs."""

MAX_TERMS_BYTES = 64 * 1024

LEAST_TOKEN_CHARS = 16
"""Characters of the shortest token: 96 bits, which nobody guesses."""


class PageTerms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The run that a page is about.

    Args:
        socket: file descriptor of the listening socket.
        kind: which role the program has.
        title: name of the swarm.
        state: the state directory, as an absolute path.
        config: the swarm.toml, as an absolute path; "" for a node.
        token: what a browser must know to change anything, at least LEAST_TOKEN_CHARS characters.
        public: whether people without the token see a page without machines and addresses.
        is_local: whether only this machine can reach the page, so that reading needs no token.
        hosts: names under which a proxy shows the page.
        pid: the process id of the run's program.
        began: when that process began, in seconds since 1970; what the log says of before is of earlier starts.
    """

    socket: int
    kind: Kind
    title: str
    state: str
    config: str = ""
    token: Annotated[str, Meta(min_length=LEAST_TOKEN_CHARS)]
    public: bool = False
    is_local: bool = True
    hosts: list[str] = []
    pid: int = 0
    began: float = 0.0
