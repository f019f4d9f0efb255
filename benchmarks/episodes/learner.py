"""Run `volery learn` with an account of the processor time of its event loop.

    python -m benchmarks.episodes.learner SWARM_TOML ACCOUNT TRAINER...     then the arguments of `trainer`

ACCOUNT gets a line of JSON about every `EVERY_S`. It holds `at_s` since 1970, and `turns` that verifiers were asked
about. It also holds processor time of the loop's thread so far: all of it in `loop_s`, and that for asking verifiers in
`env_s`.

Invariants:

- Everything but the account and the trainer is the program that operators run.
- `env_s` holds every step of the loop in a task of `node.verifiers` or below one: the pipes of its processes, too.
- It holds the steps of a call of `Verifiers.replies` or `Verifiers.prompts` in the task of its caller.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial, wraps
from pathlib import Path
from typing import Any, TextIO, TypeVar
from weakref import WeakKeyDictionary

import trio

from node.learner_role.command import learn
from node.runtime.startup import prepare_process
from node.verifiers.dispatch import Verifiers

EVERY_S = 0.25
ROOM = "node.verifiers."

T = TypeVar("T")


class Account(trio.abc.Instrument):
    """Measures the processor time of the loop, and writes it to a file."""

    def __init__(self, file: TextIO) -> None:
        self.env_s, self.turns = 0.0, 0
        self._file, self._due = file, 0.0
        self._ours: WeakKeyDictionary[trio.lowlevel.Task, bool] = WeakKeyDictionary()
        self._began: float | None = None

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Note the start of a step."""
        self._began = time.thread_time() if self._is_ours(task) else None

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Add the time of a step that ends."""
        if self._began is not None:
            self.env_s += time.thread_time() - self._began

    def before_io_wait(self, timeout: float) -> None:
        """Write a line if one is due, since the loop has nothing else to do."""
        if (now := time.monotonic()) >= self._due:
            self._due = now + EVERY_S
            line = {"at_s": time.time(), "loop_s": time.thread_time(), "env_s": self.env_s, "turns": self.turns}
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()

    def _is_ours(self, task: trio.lowlevel.Task) -> bool:
        if (known := self._ours.get(task)) is None:
            above = None if task.parent_nursery is None else task.parent_nursery.parent_task
            known = task.name.startswith(ROOM) or (above is not None and self._is_ours(above))
            self._ours[task] = known
        return known

    def timed(self, method: Callable[..., Coroutine[Any, Any, T]], *, counts: bool) -> Callable[..., Awaitable[T]]:
        """Return the same method with its steps counted in `env_s`. `counts`: its items are turns."""

        @wraps(method)
        async def ask(verifiers: Verifiers, items: Any) -> T:
            self.turns += len(items) if counts else 0
            return await _Timed(method(verifiers, items), self)

        return ask


class _Timed(Awaitable[T]):
    """A coroutine whose own steps are counted."""

    def __init__(self, inner: Coroutine[Any, Any, T], account: Account) -> None:
        self._inner, self._account = inner, account

    def __await__(self) -> Generator[Any, Any, T]:
        step: Callable[[], Any] = partial(self._inner.send, None)
        while True:
            began = time.thread_time()
            try:
                waits_for = step()
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self._account.env_s += time.thread_time() - began
            try:
                step = partial(self._inner.send, (yield waits_for))
            except BaseException as error:  # a cancellation among others; the coroutine must handle it
                step = partial(self._inner.throw, error)


if __name__ == "__main__":
    prepare_process()
    with Path(sys.argv[2]).open("w", encoding="ascii") as file:
        account = Account(file)
        Verifiers.replies = account.timed(Verifiers.replies, counts=True)  # type: ignore[method-assign,assignment]
        Verifiers.prompts = account.timed(Verifiers.prompts, counts=False)  # type: ignore[method-assign,assignment]
        trainer = (sys.executable, "-m", "benchmarks.episodes.trainer", *sys.argv[3:])
        run = partial(learn, Path(sys.argv[1]), plain=True, trainer=trainer, trial=False)
        code = trio.run(run, instruments=[account])
    sys.exit(code)
