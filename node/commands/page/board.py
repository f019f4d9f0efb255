"""Hold the parts of a page as they are now, and wake watchers when one changes.

Invariants:

- A watcher gets the newest state of each part. States in between may be left out, so a slow watcher needs no queue.
- A part whose markup is the same as before is not sent again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import trio


@dataclass(frozen=True, kw_only=True)
class Part:
    """Markup of the element with the id `key`, and when it changed: a number that only grows."""

    key: str
    html: str
    revision: int


@dataclass(eq=False)
class Board:
    """The parts of one page by key, in the order of their first appearance."""

    revision: int = 0
    _parts: dict[str, Part] = field(default_factory=dict)
    _changed: trio.Event = field(default_factory=trio.Event)

    def put(self, key: str, html: str) -> None:
        """Set a part. Watchers wake if it differs from before."""
        before = self._parts.get(key)
        if before is not None and before.html == html:
            return
        self.revision += 1
        self._parts[key] = Part(key=key, html=html, revision=self.revision)
        self._changed.set()
        self._changed = trio.Event()

    def html(self, key: str) -> str:
        """Return the markup of a part; "" if there is none."""
        part = self._parts.get(key)
        return "" if part is None else part.html

    @property
    def keys(self) -> list[str]:
        return list(self._parts)

    def since(self, revision: int) -> list[Part]:
        """Return the parts that changed after `revision`."""
        return [part for part in self._parts.values() if part.revision > revision]

    async def wait_changed(self, revision: int) -> None:
        """Return when a part has changed after `revision`."""
        while self.revision <= revision:
            await self._changed.wait()
