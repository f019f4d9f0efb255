"""What a request is answered with that cannot be done, and what ends the process instead of an answer."""

from __future__ import annotations


class Refused(Exception):
    """A request that cannot be done, for a reason that the other end can act on; the worker goes on."""

    def __init__(self, kind: str, error: str) -> None:
        super().__init__(error)
        self.kind = kind


class Broken(Exception):
    """A swap failed halfway: the weights are neither the old ones nor the new. The process must end."""
