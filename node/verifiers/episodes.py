"""Run environments and `async` rewards in a verifier, on an asyncio loop in a thread of its own.

A task of one turn computes on the main thread, for as long as it needs. With their own thread, environments and the
tools that they wait for are not delayed by it.

Invariants:

- Each question gets one reply.
- If a plain method of an environment hangs, or memory is used up, the reply is written first. Then the process ends,
  because neither can be undone within it.
"""

from __future__ import annotations

import asyncio
import faulthandler
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from threading import Lock, Thread
from time import monotonic
from typing import Any

from node.tasks.composed_reward import write_reward
from node.tasks.environments.environment_host import EnvironmentHost, HostLimits, StepTimedOut
from node.tasks.environments.live_environments import Otherwise, Reply
from node.tasks.environments.question import EpisodeQuestion
from node.tasks.gate import Gate, NobodyCanSay, Place
from node.tasks.services.remarks import take_remarks
from node.verifiers.conversation import write_conversation
from node.verifiers.remarks import write_remarks
from protocol.core.pipe import Header

LEAVE_S = 1.0
"""Seconds that all environments together have to close when the verifier must end. The node waits 2 s."""

Write = Callable[[Mapping[str, Any]], None]


class Watchdog:
    """Ends the process when something takes too long. It runs no Python, so code that holds the interpreter's lock
    cannot prevent it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._ends: dict[int, float] = {}
        self._numbers = count()

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """End the process if the code inside takes longer than `seconds`."""
        number = next(self._numbers)
        with self._lock:
            self._ends[number] = monotonic() + seconds
            self._arm()
        try:
            yield
        finally:
            with self._lock:
                del self._ends[number]
                self._arm()

    def _arm(self) -> None:
        if not self._ends:
            faulthandler.cancel_dump_traceback_later()
            return
        left_s = max(0.01, min(self._ends.values()) - monotonic())
        # The message shows microseconds. With whole milliseconds it shows the limit as it was set.
        faulthandler.dump_traceback_later(math.ceil(1000 * left_s) / 1000, exit=True, file=sys.stderr)


def _say(text: str) -> None:
    """Print to stderr, which the node reads."""
    print(text, file=sys.stderr, flush=True)


class EpisodeDesk:
    """Answers questions about episodes on its own loop. `write` accepts a reply from any thread."""

    def __init__(
        self,
        gates: Mapping[str, Gate],
        limits: HostLimits,
        write: Write,
        watch: Callable[[float], AbstractContextManager[None]],
    ) -> None:
        self._gates, self._write = gates, write
        self._loop = asyncio.new_event_loop()
        self._host = EnvironmentHost(gates=gates, limits=limits, on_hang=self._end, on_bad_end=_say, watch=watch)
        Thread(target=self._loop.run_forever, name="environments", daemon=True).start()

    def ask(self, header: Header) -> None:
        """Start to answer, beside the questions that are under way."""
        asyncio.run_coroutine_threadsafe(self._answer(header), self._loop)

    def close(self) -> None:
        """Close the environments, within LEAVE_S."""
        closing = asyncio.run_coroutine_threadsafe(self._host.close(LEAVE_S), self._loop)
        closing.exception()

    async def _answer(self, header: Header) -> None:
        from node.runtime.errors import NodeError

        reply: dict[str, Any]
        last_words = ""
        try:
            question = _read_question(header)
            is_played = self._gates[question.task].has_environments
            try:
                found = await (self._host.answer(question) if is_played else self._host.judge(question))
                told = _reply_fields(found, wants_reward=question.wants_reward)
            except NobodyCanSay as error:
                told = {"unsaid": str(error)}
            reply = {"ok": True, "of": question.key, **told}
        except StepTimedOut as error:
            reply = {"ok": False, "kind": "time", "error": str(error)}
            last_words = str(error) if error.is_stuck else ""
        except NodeError as error:
            reply = {"ok": False, "kind": "task", "error": str(error)}
            last_words = str(error) if isinstance(error.__cause__, MemoryError) else ""
        except BaseException as error:  # an error of ours: the node must not wait for ever
            self._end(f"{type(error).__name__}: {error}")
            raise
        self._write({**reply, "remarks": write_remarks(take_remarks()), "id": header["id"]})
        if last_words:
            self._end(last_words)

    def _end(self, why: str) -> None:
        """End the process at once, and print where each thread is."""
        faulthandler.dump_traceback(sys.stderr)
        _say(f"verifier: {why}")
        os._exit(1)


def _read_question(header: Header) -> EpisodeQuestion:
    return EpisodeQuestion(
        task=header["task"],
        place=Place(index=header["index"], held_out=header["held_out"]),
        said=tuple(header["said"]),
        digests=tuple(header["digests"]),
        finished=header["finished"],
        wants_reward=header["wants_reward"],
        tool_format=header["tool_format"],
        in_thinking=header["in_thinking"],
    )


def _reply_fields(found: Reply | Otherwise, *, wants_reward: bool) -> dict[str, Any]:
    if isinstance(found, Otherwise):
        return {"otherwise": found.turn}
    if wants_reward:
        assert isinstance(found.answer, float), "a reward was asked"
        return write_reward(found.answer)
    assert not isinstance(found.answer, float), "an answer was asked"
    return {"answer": None if found.answer is None else write_conversation(found.answer)}
