"""News that one part of the program has for others.

A signal has no answer: who needs one asks the object that has it, which it is given when it is built.

Invariants:
- `emit` calls all subscribers before it returns, in the order in which they subscribed; nothing else happens meanwhile.
- Without subscribers nothing happens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

News = TypeVar("News")


class Signal(Generic[News]):
    """See the module's paragraph."""

    def __init__(self) -> None:
        self._subscribers: list[Callable[[News], None]] = []

    def subscribe(self, subscriber: Callable[[News], None]) -> None:
        """Have `subscriber` called with all news from now on, after those who subscribed before."""
        self._subscribers.append(subscriber)

    def emit(self, news: News) -> None:
        """Tell all subscribers."""
        for subscriber in self._subscribers:
            subscriber(news)
