"""A verifier's side of environments and of rewards that are `async`: a thread with the loop on which they live, beside
the tasks that are pure.

Environments live on asyncio, on a thread of their own: what a task of one turn computes holds the main thread for as
long as it takes, as ever, and no tool that an environment waits for is held up by it. What always holds: a question has
one reply; where a plain method of an environment hangs, or memory is used up, the reply is written first, and then the
process ends, since neither can be undone in it.
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

from node.tasks.environments.environment_host import EnvironmentHost, HostLimits, StepTimedOut
from node.tasks.environments.live_environments import Otherwise, Reply
from node.tasks.environments.question import EpisodeQuestion
from node.tasks.gate import Gate, NobodyCanSay, Place
from node.tasks.services.remarks import take_remarks
from node.tasks.worth import write_worth
from node.verifiers.conversation import write_conversation
from node.verifiers.remarks import write_remarks
from protocol.core.pipe import Header

LEAVE_S = 1.0
"""All environments together have so long to close when the verifier is told to end: the node waits 2 s."""

Write = Callable[[Mapping[str, Any]], None]


class Watchdog:
    """Ends the process when something takes too long, without Python: whoever holds the interpreter's lock cannot
    prevent it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._ends: dict[int, float] = {}
        self._numbers = count()

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """What is done inside takes no longer, or is the end of the process."""
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
        # What is told shows microseconds: whole milliseconds are the limit as it was set.
        faulthandler.dump_traceback_later(math.ceil(1000 * left_s) / 1000, exit=True, file=sys.stderr)


def _say(text: str) -> None:
    """Where the node reads it."""
    print(text, file=sys.stderr, flush=True)


class EpisodeDesk:
    """See the module's paragraph. `write` takes a reply, from any thread."""

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
        """Answer beside whatever else goes on."""
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
                told = _told(found, wants_reward=question.wants_reward)
            except NobodyCanSay as error:
                told = {"unsaid": str(error)}
            reply = {"ok": True, "of": question.key, **told}
        except StepTimedOut as error:
            reply = {"ok": False, "kind": "time", "error": str(error)}
            last_words = str(error) if error.is_stuck else ""
        except NodeError as error:
            reply = {"ok": False, "kind": "task", "error": str(error)}
            last_words = str(error) if isinstance(error.__cause__, MemoryError) else ""
        except BaseException as error:  # a mistake of ours: whoever asks must not wait for ever
            self._end(f"{type(error).__name__}: {error}")
            raise
        self._write({**reply, "remarks": write_remarks(take_remarks()), "id": header["id"]})
        if last_words:
            self._end(last_words)

    def _end(self, why: str) -> None:
        """The end of the process, at once, with where each thread is."""
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


def _told(found: Reply | Otherwise, *, wants_reward: bool) -> dict[str, Any]:
    if isinstance(found, Otherwise):
        return {"otherwise": found.turn}
    if wants_reward:
        assert isinstance(found.answer, float), "a reward was asked"
        return write_worth(found.answer)
    assert not isinstance(found.answer, float), "an answer was asked"
    return {"answer": None if found.answer is None else write_conversation(found.answer)}
