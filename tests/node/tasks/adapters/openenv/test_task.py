"""Servers that OpenEnv's own `create_app` makes, in a process of their own, and sessions with them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from node.tasks.adapters.openenv.messages import ServerFault
from node.tasks.adapters.openenv.server import LocalServer
from node.tasks.adapters.openenv.session import Address
from node.tasks.adapters.openenv.task import OpenEnvTask, ServedEpisode
from node.tasks.api.environment import Observation
from node.tasks.api.interface import ChatMessage, Spoken, TaskError, ToolCall
from node.tasks.registry import open_task

for library in ("openenv", "uvicorn", "websockets"):
    pytest.importorskip(library, reason="make test-adapters has it")

T = TypeVar("T")

MODULE = '''
import asyncio
import os
import random
import time
import uuid

from fastapi import FastAPI
from fastmcp import FastMCP
from openenv.core.env_server import Action, Environment, Observation, State, create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation


class Say(Action):
    message: str


class Move(Action):
    row: int
    column: int


class Told(Observation):
    text: str = ""


class Board(Observation):
    board: str = ""
    turn: int = 0


class Letters(Environment):
    """Says a letter; the next one in the alphabet is right."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State()

    def reset(self, seed=None, episode_id=None, **options):
        self.letter = random.Random(seed).choice("abcdefghijklmnopqrstuvwxy")
        self._state = State(episode_id=episode_id or str(uuid.uuid4()))
        return Told(text=self.letter * 3 + str(seed))

    def step(self, action, timeout_s=None, **options):
        self._state.step_count += 1
        right = action.message == chr(ord(self.letter) + 1)
        return Told(text="no", reward=1.0 if right else -0.25, done=right)

    @property
    def state(self):
        return self._state


class Hostile(Letters):
    """Does at a step what it is told."""

    def step(self, action, timeout_s=None, **options):
        what = action.message
        if what == "hang":
            time.sleep(3600)
        if what == "die":
            os._exit(1)
        if what == "raise":
            raise ValueError("lost the board")
        if what == "large":
            return Told(text="x" * (50 << 20))
        if what == "long":
            return Told(text="x" * 2_000_000)
        if what == "nan":
            return Told(reward=float("nan"))
        if what == "inf":
            return Told(reward=float("inf"))
        return Told(text="fine", reward=None)


class Forgetful(Letters):
    """Has no seed."""

    def reset(self):
        return super().reset(seed=random.SystemRandom().randrange(1 << 30))


class Over(Letters):
    def reset(self, **options):
        return Told(text="over", done=True)


class Grid(Letters):
    def reset(self, seed=None, episode_id=None, **options):
        super().reset(seed=seed)
        return Board(board=f"{seed % 7}", turn=0)

    def step(self, action, timeout_s=None, **options):
        self._state.step_count += 1
        done = self._state.step_count == 2
        return Board(board=f"{action.row}/{action.column}", turn=self._state.step_count, reward=0.5, done=done)


class Tools(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        mcp = FastMCP("tools")

        @mcp.tool()
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        super().__init__(mcp)
        self._state = State()

    def reset(self, seed=None, episode_id=None, **options):
        self._state = State(episode_id=str(uuid.uuid4()))
        return Told(text=f"What is {seed} + {seed}?")

    async def step_async(self, action, timeout_s=None, **options):
        seen = await super().step_async(action, timeout_s=timeout_s, **options)
        if isinstance(action, CallToolAction):
            self._state.step_count += 1
            seen.reward, seen.done = 1.0, self._state.step_count == 2
        return seen

    def _step_impl(self, action, timeout_s=None, **options):
        return Told(text="?")

    @property
    def state(self):
        return self._state


shared = Letters()


def the_shared_one():
    return shared


app = FastAPI()
app.mount("/letters", create_app(Letters, Say, Told, max_concurrent_envs=8))
app.mount("/hostile", create_app(Hostile, Say, Told, max_concurrent_envs=8))
app.mount("/forgetful", create_app(Forgetful, Say, Told, max_concurrent_envs=8))
app.mount("/over", create_app(Over, Say, Told, max_concurrent_envs=8))
app.mount("/grid", create_app(Grid, Move, Board, max_concurrent_envs=8))
app.mount("/tools", create_app(Tools, CallToolAction, CallToolObservation, max_concurrent_envs=8))
app.mount("/shared", create_app(the_shared_one, Say, Told, max_concurrent_envs=8))
app.mount("/single", create_app(Letters, Say, Told))
app.mount("/few", create_app(Letters, Say, Told, max_concurrent_envs=2))

letters = create_app(Letters, Say, Told, max_concurrent_envs=8)
'''


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    directory = tmp_path_factory.mktemp("servers")
    (directory / "served.py").write_text(MODULE)
    server = LocalServer(module="served", app="app", directory=directory, python=sys.executable)
    yield server
    server.close()


def opened(server: LocalServer, path: str, options: str = "") -> OpenEnvTask:
    task: Any = open_task(f"openenv:{server.address().web}/{path}{options and f':{options}'}")
    assert isinstance(task, OpenEnvTask)
    return task


def played(task: OpenEnvTask, play: Callable[[ServedEpisode], Coroutine[Any, Any, T]], index: int = 0) -> T:
    async def run() -> T:
        episode = await task.environment(task.problem(index), 0)
        try:
            return await play(episode)
        finally:
            await episode.close()

    return asyncio.run(run())


def saying(*said: str) -> Callable[[ServedEpisode], Coroutine[Any, Any, tuple[list[Observation], float]]]:
    async def play(episode: ServedEpisode) -> tuple[list[Observation], float]:
        seen = [await episode.step(Spoken(content=words)) for words in said]
        return seen, await episode.reward()

    return play


def calling(*turns: Spoken) -> Callable[[ServedEpisode], Coroutine[Any, Any, tuple[list[Observation], float]]]:
    async def play(episode: ServedEpisode) -> tuple[list[Observation], float]:
        seen = [await episode.step(spoken) for spoken in turns]
        return seen, await episode.reward()

    return play


def call(name: str, number: int = 1, **arguments: object) -> ToolCall:
    return ToolCall(id=f"call0000{number}", name=name, arguments=arguments)


def test_words_fill_the_one_field_of_text(server: LocalServer) -> None:
    task = opened(server, "letters")
    problem = task.problem(0)
    assert isinstance(problem.prompt, str)
    assert problem.prompt == f"{problem.prompt[0] * 3}{problem.seed}"
    right = chr(ord(problem.prompt[0]) + 1)
    assert played(task, saying("?", right)) == ([Observation(answer="no"), Observation(over=True)], 0.75)
    assert played(opened(server, "letters", "reward=last"), saying("?", right))[1] == 1.0
    assert played(task, saying("?"))[1] == -0.25


def test_problems_are_the_same_wherever_the_server_is_and_sides_are_apart(server: LocalServer) -> None:
    task, again = opened(server, "letters"), opened(server, "letters", "wait_s=30")
    assert task.fingerprint == again.fingerprint
    assert [task.problem(index) for index in range(4)] == [again.problem(index) for index in range(4)]
    assert not {task.problem(n).prompt for n in range(20)} & {task.held_out(n).prompt for n in range(5)}


def test_fields_are_arguments_of_a_tool(server: LocalServer) -> None:
    task = opened(server, "grid", "observe=board")
    assert [tool.name for tool in task.problem(0).tools] == ["act"]
    wrong, right = call("act", 1, row="x", column=1), call("act", 2, row=1, column=2)
    seen, reward = played(
        task,
        calling(
            Spoken(content="", calls=(wrong, right)),
            Spoken(content="", malformed=("That is no call.",)),
            Spoken(content="", calls=(call("act", 3, row=0, column=0), call("act", 4, row=0, column=0))),
        ),
    )
    assert isinstance(first := seen[0].answer, tuple)
    assert [message.role for message in first] == ["tool", "tool"]
    assert first[0].content.startswith("error: row: Input should be a valid integer")
    assert first[1] == ChatMessage(role="tool", content="1/2", name="act", tool_call_id="call00002")
    assert seen[1].answer == (ChatMessage(role="user", content="That is no call."),)
    assert seen[2].over
    assert reward == 1.0


def test_turns_without_an_action_end_the_episode_at_last(server: LocalServer) -> None:
    task = opened(server, "grid")
    lost = Spoken(content="", malformed=("That is no call.",))
    refused = Spoken(content="", calls=(call("act", row="x", column=1),))
    taken = Spoken(content="", calls=(call("act", row=1, column=1),))
    seen, reward = played(task, calling(lost, refused, taken, lost, refused, lost))
    assert [one.over for one in seen] == [False, False, False, False, False, True]
    assert reward == 0.5


def test_an_observation_of_several_fields_is_read_as_json(server: LocalServer) -> None:
    assert str(opened(server, "grid").problem(0).prompt).startswith('{"board": ')


@pytest.mark.parametrize("options", ["", "observe=text"])
def test_tools_of_mcp_are_called(server: LocalServer, options: str) -> None:
    task = opened(server, "tools", options)
    [tool] = task.problem(0).tools
    assert (tool.name, tool.description) == ("add", "Add two numbers.")
    seen, reward = played(
        task,
        calling(
            Spoken(content="", calls=(call("add", 1, a=2, b=3),)),
            Spoken(content="", calls=(call("add", 2, a="x", b=3),)),
        ),
    )
    assert seen[0].answer == (ChatMessage(role="tool", content="5", name="add", tool_call_id="call00001"),)
    assert seen[1].over
    assert reward == 2.0
    assert played(task, calling(Spoken(content="It is 4."))) == ([Observation(over=True)], 0.0)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("hang", "did not answer within 1 s"),
        ("raise", r"the server failed: lost the board \(EXECUTION_ERROR\)"),
        ("large", "a message of more than 16 MiB"),
    ],
)
def test_what_a_server_gets_wrong_ends_the_episode(server: LocalServer, what: str, said: str) -> None:
    task = opened(server, "hostile", f"wait_s={1 if what == 'hang' else 30}")
    with pytest.raises(ServerFault, match=said):
        played(task, saying(what))

    async def go_on(episode: ServedEpisode) -> None:
        with pytest.raises(ServerFault, match=said):
            await episode.step(Spoken(content=what))
        with pytest.raises(ServerFault, match="failed earlier"):
            await episode.step(Spoken(content="again"))

    played(task, go_on)


@pytest.mark.parametrize("what", ["nan", "inf"])
def test_a_reward_that_is_no_number_is_never_counted(server: LocalServer, what: str) -> None:
    """Versions of OpenEnv write it as it is, or as null, which is no reward."""
    with suppress(ServerFault):
        assert played(opened(server, "hostile"), saying(what))[1] == 0.0


def servers() -> list[psutil.Process]:
    """Those that serve `letters` of a module."""
    return [one for one in psutil.Process().children() if one.cmdline()[-3:-2] == ["letters"]]


def test_a_server_that_dies_is_told(tmp_path: Path) -> None:
    (tmp_path / "served.py").write_text(MODULE)
    task: Any = open_task("openenv:served:letters", directory=tmp_path)
    assert isinstance(task, OpenEnvTask)
    [child] = servers()

    async def play(episode: ServedEpisode) -> None:
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(ServerFault, match="the server closed the connection"):
            await episode.step(Spoken(content="a"))

    played(task, play)
    child.wait(10)
    assert played(task, saying("?"), 1)[1] == -0.25, "the next episode has a new server"
    [again] = servers()
    task.locate.__self__.close()
    assert not again.is_running()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("over", "ends the episode at its reset"),
        ("single", "allows one session at a time.*max_concurrent_envs"),
        ("nowhere", "no OpenEnv server answers"),
        ("letters:field=text", "field=text: the server's actions have message"),
        ("letters:observe=words", "observe=words: the observation has text"),
        ("letters:python=/usr/bin/python3", "this one has an address"),
    ],
)
def test_what_cannot_be_played_is_refused_at_the_start(server: LocalServer, path: str, said: str) -> None:
    path, _, options = path.partition(":")
    with pytest.raises(TaskError, match=f"(?s)^task 'openenv': .*{said}"):
        opened(server, path, f"wait_s=2{options and f',{options}'}")


def test_a_reset_that_does_not_follow_its_seed_is_refused(server: LocalServer) -> None:
    task = opened(server, "forgetful")
    with pytest.raises(TaskError, match="Derive everything random in it from that seed"):
        played(task, saying("a"))


def test_sessions_that_share_one_environment_are_found(server: LocalServer) -> None:
    task = opened(server, "shared")

    async def play(episode: ServedEpisode) -> None:
        other = await task.environment(task.problem(1), 0)
        await other.close()
        with pytest.raises(ServerFault, match="its sessions share one environment"):
            await episode.reward()

    played(task, play)


def test_a_full_server_is_waited_for(server: LocalServer) -> None:
    task = opened(server, "few", "wait_s=2")
    problems = [task.problem(index) for index in range(3)]

    async def run() -> None:
        first, second = [await task.environment(problem, 0) for problem in problems[:2]]
        with pytest.raises(TaskError, match="limit of sessions, 2,"):
            await task.environment(problems[2], 0)
        waiting = asyncio.create_task(task.environment(problems[2], 0))
        await first.close()
        await (await waiting).close()
        await second.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("openenv:http://127.0.0.1:1", "no OpenEnv server answers at ws://127.0.0.1:1/ws"),
        ("openenv:ftp://host", "not the address of a server"),
        ("openenv:http://host:99999", "is not a URL"),
        ("openenv:http://host/?a=b", "not the address of a server"),
        ("openenv:my_env", "neither a URL such as"),
        ("openenv:my-env:app", "neither a URL such as"),
        ("openenv:no_such_module:app", "ends while it starts. Its output: .*No module named 'no_such_module'"),
        ("openenv:json:nothing", "ends while it starts. Its output: .*has no attribute 'nothing'"),
        ("openenv:json:app:python=nowhere/python", "cannot be started"),
    ],
)
def test_no_server(spec: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=f"(?s)^task 'openenv': .*{said}"):
        open_task(spec, directory=tmp_path)


ORPHAN = """
import os, signal, sys
from pathlib import Path
from node.tasks.adapters.openenv.server import LocalServer
server = LocalServer(module="bare", app="app", directory=Path(sys.argv[1]), python=sys.executable)
print(server.address().web, server._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""

BARE = """
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
"""


def test_a_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text(BARE)
    done = subprocess.run(
        [sys.executable, "-c", ORPHAN, str(tmp_path)], stdout=subprocess.PIPE, text=True, timeout=120, check=False
    )
    assert done.returncode == -signal.SIGKILL
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout.split()[1])).wait(30)


def test_a_server_that_never_serves_is_ended(tmp_path: Path) -> None:
    (tmp_path / "sleepy.py").write_text("import time\nprint('waking', flush=True)\ntime.sleep(3600)\n")
    server = LocalServer(module="sleepy", app="app", directory=tmp_path, python=sys.executable, start_s=3.0)
    with pytest.raises(ServerFault, match=r"does not serve within 3 s[.] Its output: waking"):
        server.address()
    assert not [one for one in psutil.Process().children() if "sleepy" in " ".join(one.cmdline())]


def test_addresses_are_written_without_the_last_slash() -> None:
    from node.tasks.adapters.openenv.session import read_address

    assert read_address("http://localhost:8000/") == Address(
        socket="ws://localhost:8000/ws", web="http://localhost:8000", is_here=True
    )
    assert read_address("https://host/env") == Address(
        socket="wss://host/env/ws", web="https://host/env", is_here=False
    )
