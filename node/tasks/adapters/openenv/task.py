"""Use environments behind an OpenEnv server, `openenv:URL` or `openenv:MODULE:APP`, with one session for each episode.

A server that the spec names by its address is run by somebody else. A server named by its module is started here: one
for each process that needs it, and for that process alone (`node.tasks.adapters.openenv.server`).

Invariants:

- A session is reset with a seed that follows from the problem's index, and must then say what the prompt said.
- A reward is the sum of the steps' rewards, or the last of them. Steps without a reward are left out.
- The policy is told about its own mistakes. A mistake of the server ends the episode with a TaskError.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from node.runtime.user_paths import as_path
from node.tasks.adapters.openenv.actions import Move, Ways, Words, choose_ways, read_answer, read_result
from node.tasks.adapters.openenv.messages import Observed, Refused, ServerFault, ServerFull
from node.tasks.adapters.openenv.server import LocalServer
from node.tasks.adapters.openenv.session import (
    Address,
    Session,
    action_schema,
    begin_episode,
    read_address,
    require_websockets,
)
from node.tasks.adapters.seeded_problems import (
    INSTRUCTIONS,
    MAX_IDLE_TURNS,
    Begin,
    SeededProblem,
    SeededTask,
    label_without_address,
    read_instructions,
)
from node.tasks.api.environment import EnvironmentTask, Observation
from node.tasks.api.interface import (
    Answer,
    Chat,
    ChatMessage,
    Option,
    Problem,
    Spoken,
    TaskArguments,
    TaskError,
    TaskKind,
    Tool,
)
from node.tasks.api.options import CHAT

T = TypeVar("T")

SKIPPED = "This call was not made: the episode is over, or the turn has too many calls."


@dataclass(kw_only=True)
class ServedEpisode:
    """One episode on a server, whose session has been reset."""

    session: Session
    ways: Ways
    observe: str
    last_only: bool
    _rewards: list[float] = field(default_factory=list)
    _is_done: bool = False
    _idle_turns: int = 0

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that may be called."""
        return self.ways.tools

    async def step(self, spoken: Spoken) -> Observation:
        """Act, once for each call, and return what the server said."""
        moves = self.ways.moves(spoken)
        if not moves and not spoken.malformed:
            return Observation(over=True)  # a turn without a call ends the episode
        self._idle_turns += 1
        with about_openenv():
            answers = [await self._made(move) for move in moves]
        if self._is_done or self._idle_turns >= MAX_IDLE_TURNS:
            return Observation(over=True)
        if isinstance(self.ways, Words):
            return Observation(answer=answers[0])
        told = [self._message(move, answer) for move, answer in zip(moves, answers, strict=True)]
        told += [
            ChatMessage(role="tool", content=SKIPPED, name=call.name, tool_call_id=call.id)
            for call in spoken.calls[len(moves) :]
        ]
        return Observation(answer=(*told, *_as_messages(spoken.malformed)))

    async def reward(self) -> float:
        """Return the sum of the steps' rewards, or the last one."""
        if not self._is_done:
            with about_openenv():
                await self.session.require_same_episode()
        return math.fsum(self._rewards[-1:] if self.last_only else self._rewards)

    async def close(self) -> None:
        """Close the session."""
        await self.session.close()

    async def _made(self, move: Move) -> Answer:
        if self._is_done:
            return SKIPPED
        reply = await self.session.step(move.action)
        if isinstance(reply, Refused):
            return f"error: {reply.why}"
        self._idle_turns = 0
        if reply.reward is not None:
            self._rewards.append(reply.reward)
        self._is_done = reply.done
        return "" if reply.done else self._read(move, reply)

    def _read(self, move: Move, reply: Observed) -> Answer:
        if move.call is not None and ("tool_name" in reply.fields or not self.observe):
            return read_result(reply.fields, move.call.name)
        return read_answer(reply.fields, self.observe)

    @staticmethod
    def _message(move: Move, answer: Answer) -> ChatMessage:
        assert move.call is not None, "only a call has an answer of its own"
        text = answer if isinstance(answer, str) else "\n".join(message.content for message in answer)
        return ChatMessage(role="tool", content=text, name=move.call.name, tool_call_id=move.call.id)


def _as_messages(sentences: tuple[str, ...]) -> tuple[ChatMessage, ...]:
    return (ChatMessage(role="user", content=" ".join(sentences)),) if sentences else ()


@dataclass(frozen=True, kw_only=True)
class OpenEnvTask(SeededTask):
    """An OpenEnv server as a task. `locate` returns the server's address; it starts a server of ours, and waits."""

    locate: Callable[[], Address]
    ways: Ways
    observe: str
    last_only: bool
    wait_s: float

    @property
    def tools(self) -> tuple[Tool, ...]:
        """See `SeededTask`."""
        return self.ways.tools

    @contextmanager
    def beginnings(self) -> Iterator[Begin]:
        """See `SeededTask`. Waits on a thread of its own, because the caller's may run a loop already."""
        with ThreadPoolExecutor(1, thread_name_prefix="openenv beginnings") as thread:
            runner = thread.submit(asyncio.Runner).result()
            session: list[Session] = []

            def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
                return thread.submit(lambda: runner.run(work())).result()

            async def begin(seed: int) -> Answer:
                if session:
                    return self._opening(await session[0].reset(seed))
                connection, observed = await begin_episode(self.locate(), self.wait_s, seed)
                session.append(connection)
                return self._opening(observed)

            try:
                with self._about():
                    yield lambda seed: run(lambda: begin(seed))
            finally:
                for connection in session:
                    run(connection.close)
                thread.submit(runner.close).result()

    async def environment(self, problem: Problem, seed: int) -> ServedEpisode:
        """Return a session that has begun as the problem's prompt says."""
        assert isinstance(problem, SeededProblem), "a problem of this task"
        with self._about():
            address = await asyncio.to_thread(self.locate)
            session, observed = await begin_episode(address, self.wait_s, problem.seed)
        try:
            self.require_same(problem, self._opening(observed))
        except BaseException:
            await session.close()
            raise
        return ServedEpisode(session=session, ways=self.ways, observe=self.observe, last_only=self.last_only)

    def _opening(self, observed: Observed) -> Answer:
        if observed.done:
            raise TaskError(f"task {self.name!r}: the server ends the episode at its reset. Correct the environment.")
        return read_answer(observed.fields, self.observe)

    @contextmanager
    def _about(self) -> Iterator[None]:
        with about_openenv():
            yield


@contextmanager
def about_openenv() -> Iterator[None]:
    """Begin the message of a TaskError with the task."""
    try:
        yield
    except TaskError as error:
        if str(error).startswith("task "):
            raise
        raise type(error)(f"task 'openenv': {error}") from error


def _build(arguments: TaskArguments) -> EnvironmentTask:
    require_websockets()
    wait_s, observe = arguments.number("wait_s"), arguments.text("observe")
    locate, argument = _locator(arguments)
    with about_openenv():
        ways = asyncio_apart(lambda: _ask_ways(locate, wait_s, arguments.text("field")))
        task = OpenEnvTask(
            name="openenv",
            label=label_without_address("openenv", arguments, argument, "wait_s", "python"),
            seed=arguments.seed,
            chat=Chat(arguments.text("chat")),
            instructions=read_instructions(arguments),
            locate=locate,
            version=repr(ways),
            ways=ways,
            observe=observe,
            last_only=arguments.text("reward") == "last",
            wait_s=wait_s,
        )
        task.problem(0)  # so that errors appear now
    return task


def _locator(arguments: TaskArguments) -> tuple[Callable[[], Address], str]:
    """Return a function that returns the server's address, and the server's part of the label. An address is left out
    of the label, because it may change."""
    if "://" in arguments.argument:
        if arguments.text("python"):
            raise TaskError("task 'openenv': python= is for a server that is started here; this one has an address.")
        address = read_address(arguments.argument)
        return lambda: address, ""
    module, colon, app = arguments.argument.partition(":")
    if not (module and colon and app and all(part.isidentifier() for part in (*module.split("."), *app.split(".")))):
        raise TaskError(
            f"task 'openenv': {arguments.argument!r} is neither a URL such as http://127.0.0.1:8000 nor MODULE:APP, as "
            "in openenv:my_env.server:app."
        )
    directory = arguments.directory.resolve()
    python = arguments.text("python")
    program = str(directory / as_path(python)) if python else sys.executable
    return LocalServer(module=module, app=app, directory=directory, python=program).address, arguments.argument


async def _ask_ways(locate: Callable[[], Address], wait_s: float, named: str) -> Ways:
    """Return how a policy acts there, after checking that two sessions can be open at once. Raises TaskError."""
    address = locate()
    session, _ = await begin_episode(address, wait_s, 0)
    try:
        await _require_two(address, wait_s)
        tools = None if named else await session.tools()
    finally:
        await session.close()
    return choose_ways(tools, action_schema(address, wait_s), named)


async def _require_two(address: Address, wait_s: float) -> None:
    """Raise ServerFault if the server allows only one session at a time: groups have several episodes."""
    other = await Session.connect(address, wait_s)
    try:
        await other.reset(0)
    except ServerFull as error:
        raise ServerFault(
            "the server allows one session at a time, but each episode needs its own. Give its create_app for example "
            "max_concurrent_envs=256, and its environment SUPPORTS_CONCURRENT_SESSIONS = True. If others use the "
            "server as well, end their sessions."
        ) from error
    finally:
        await other.close()


def asyncio_apart(work: Callable[[], Awaitable[T]]) -> T:
    """Run `work` on its own loop and thread, because the caller's thread may run a loop already. Waits for it."""

    async def run() -> T:
        return await work()

    with ThreadPoolExecutor(1, thread_name_prefix="openenv") as thread:
        return thread.submit(lambda: asyncio.run(run())).result()


OPENENV = TaskKind(
    name="openenv",
    summary="turns: an environment behind an OpenEnv server: openenv:http://HOST:PORT, or openenv:MODULE:APP",
    build=_build,
    argument="URL or MODULE:APP",
    options=(
        Option(key="field", default="", help="the field of an action that takes the text; default: by the schema"),
        Option(key="observe", default="", help="the field of an observation to read; default: all, as JSON"),
        Option(key="reward", default="sum", help="sum or last of the steps' rewards", choices=("sum", "last")),
        Option(key="wait_s", default=20.0, help="seconds that a reply may take", minimum=0.1, maximum=86_400),
        Option(key="python", default="", help="the interpreter that runs MODULE:APP; default: the one of Volery"),
        INSTRUCTIONS,
        CHAT,
    ),
)
