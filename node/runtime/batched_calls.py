"""Calls that come while one is under way are made together, by one turn of a thread.

To hand a call to a thread and its result back costs a fifth of a millisecond of the interpreter, more than many a call
itself, and a transaction costs a disk its wait. Who comes alone is served at once, as without this.

What always holds: each call is made once, in the order they came, and returns its own result. One that is cancelled
while it waits is not made. Where the function raises, everyone whose call it was making asks again, and hears of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import trio

T = TypeVar("T")
R = TypeVar("R")


@dataclass(eq=False)
class _Call(Generic[T, R]):
    item: T
    results: Sequence[R] = ()
    """Its one result, once it was made."""


class BatchedCalls(Generic[T, R]):
    """See the module's paragraph.

    Args:
        do: on a thread, the results of the first of these items, at least of one, in their order.
        most: items at a time.
    """

    def __init__(self, do: Callable[[Sequence[T]], Sequence[R]], *, most: int) -> None:
        self._do, self._most = do, most
        self._waiting: list[_Call[T, R]] = []
        self._turn = trio.Lock()

    async def __call__(self, item: T) -> R:
        """The result of one item. Raises what the function does."""
        call = _Call[T, R](item)
        self._waiting.append(call)
        try:
            while not call.results:
                async with self._turn:
                    if not call.results:
                        await self._go()
        finally:
            if call in self._waiting:  # we are cancelled, or it was not to be made
                self._waiting.remove(call)
        return call.results[0]

    async def _go(self) -> None:
        together = self._waiting[: self._most]
        results = await trio.to_thread.run_sync(self._do, [call.item for call in together])
        for call, result in zip(together, results, strict=False):
            call.results = (result,)
        self._waiting = [call for call in self._waiting if not call.results]
