"""Pass news from one part of the program to others.

A signal has no answer. A part that needs an answer asks the object that has it, which it gets when it is built.

Invariants:

- `emit` calls all subscribers before it returns, in the order in which they subscribed. Nothing else happens meanwhile.
- Without subscribers nothing happens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

News = TypeVar("News")


class Signal(Generic[News]):
    """News of one type, and its subscribers."""

    def __init__(self) -> None:
        self._subscribers: list[Callable[[News], None]] = []

    def subscribe(self, subscriber: Callable[[News], None]) -> None:
        """Call `subscriber` with all news from now on, after those who subscribed before."""
        self._subscribers.append(subscriber)

    def emit(self, news: News) -> None:
        """Call all subscribers."""
        for subscriber in self._subscribers:
            subscriber(news)
