"""Define the refusal of a request, and the error that ends the process."""

from __future__ import annotations


class Refused(Exception):
    """A request cannot be done, for a reason that the node can act on; the worker goes on."""

    def __init__(self, kind: str, error: str) -> None:
        super().__init__(error)
        self.kind = kind


class Broken(Exception):
    """A swap failed halfway: the weights are neither the old ones nor the new. The process must end."""
