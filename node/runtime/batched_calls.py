"""Make calls together, by one turn of a thread, if they come while another call is under way.

Giving a call to a thread and its result back costs a fifth of a millisecond of the interpreter, which is more than many
calls themselves take, and a transaction has to wait for the disk. A call that comes alone is made at once.

Invariants:

- Each call is made once, in the order in which they came, and returns its own result.
- A call that is cancelled while it waits is not made.
- If the function raises, the caller whose turn it was gets the exception. The others of the batch are tried again.
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
    """The single result, once the call was made."""


class BatchedCalls(Generic[T, R]):
    """Make calls in batches.

    Args:
        do: called on a thread; returns the results of the first of these items, at least one, in their order.
        most: most items at a time.
    """

    def __init__(self, do: Callable[[Sequence[T]], Sequence[R]], *, most: int) -> None:
        self._do, self._most = do, most
        self._waiting: list[_Call[T, R]] = []
        self._turn = trio.Lock()

    async def __call__(self, item: T) -> R:
        """Return the result of one item. Raises what the function raises."""
        call = _Call[T, R](item)
        self._waiting.append(call)
        try:
            while not call.results:
                async with self._turn:
                    if not call.results:
                        await self._go()
        finally:
            if call in self._waiting:  # cancelled, or the function raised
                self._waiting.remove(call)
        return call.results[0]

    async def _go(self) -> None:
        together = self._waiting[: self._most]
        results = await trio.to_thread.run_sync(self._do, [call.item for call in together])
        for call, result in zip(together, results, strict=False):
            call.results = (result,)
        self._waiting = [call for call in self._waiting if not call.results]
