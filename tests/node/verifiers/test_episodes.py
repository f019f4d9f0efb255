"""Environments in verifiers' processes: every question has a reply, and other episodes go on.

All processes are real; the task is a file beside swarm.toml, as an operator's own would be.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import trio

from node.processes.outcomes import ChildEvent, ChildStarted
from node.tasks.environments.question import digest_of_answer
from node.tasks.grading import Asked, Judgement
from node.tasks.registry import open_task
from node.verifiers.pool import VERIFIER, Failure, PoolTerms, VerifierPool, open_pool

WORLDS = '''
import asyncio, os, pathlib, random, re, time

from volery import Problem, Spoken


class World:
    """Counts what it is told, and does it."""

    shared = []

    def __init__(self, problem, seed):
        self.told, self.dice, self.hoard = [], random.Random(seed), []

    def step(self, spoken):
        word = spoken.content
        self.told.append(word)
        World.shared.append(word)
        match word:
            case "hang":
                time.sleep(1000)
            case "spin":
                re.match("(a+)+$", "a" * 64 + "b")  # holds the interpreter lock all the while
            case "die":
                os._exit(3)
            case "leak":
                while True:
                    self.hoard.append(bytearray(1 << 27))
            case "big":
                return "x" * 50_000_000
            case "raise":
                raise KeyError("no such thing")
            case "pid":
                return str(os.getpid())
            case "random":
                return os.urandom(8).hex()
            case "shared":
                return str(len(World.shared))
            case "dice":
                return str(self.dice.random())
            case "print":
                print("not a frame", flush=True)
                os.write(1, b"nor this")
            case "end":
                return None
        return f"{len(self.told)} {word}"

    def reward(self):
        return float("nan") if "nan" in self.told else len(self.told) + 0.5

    def close(self):
        if "cling" in self.told:
            raise OSError("it does not let go")


class AsyncWorld(World):
    async def step(self, spoken):
        if spoken.content == "wait":
            await asyncio.Event().wait()
        if spoken.content == "meet":  # only with another
            World.shared.append("here")
            while World.shared.count("here") < 2:
                await asyncio.sleep(0)
        return super().step(spoken)

    async def close(self):
        pathlib.Path(__file__).with_name("closed").open("a").write("".join(self.told) + "\\n")


class Worlds:
    name, levels, fingerprint = "worlds", 1, "worlds/1"
    kind = World

    def __init__(self, arguments):
        pass

    def problem(self, index):
        return Problem(prompt=str(index))

    def held_out(self, index):
        return Problem(prompt="held out " + str(index))

    def environment(self, problem, seed):
        return self.kind(problem, seed)


class AsyncWorlds(Worlds):
    kind = AsyncWorld
'''


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    (tmp_path / "worlds.py").write_text(WORLDS)
    return tmp_path


def terms(beside: Path, *, spec: str = "python:worlds:Worlds", **changes: object) -> PoolTerms:
    settings: dict[str, object] = {
        "tasks": {"worlds": {"spec": spec, "directory": str(beside), "seed": 0}},
        "fingerprints": {"worlds": open_task(spec, directory=beside).fingerprint},
        "played": frozenset({"worlds"}),
        "timeout_s": 30.0,
        "memory_gb": 2.0,
    }
    return PoolTerms(**{**settings, **changes})  # type: ignore[arg-type]


@asynccontextmanager
async def pool(
    beside: Path, size: int = 2, pids: dict[str, int] | None = None, **changes: object
) -> AsyncIterator[VerifierPool]:
    def heard(name: str) -> object:
        def on_event(event: ChildEvent) -> None:
            if isinstance(event, ChildStarted) and pids is not None:
                pids[name] = event.pid

        return on_event

    commands = [(f"verifier {number}", VERIFIER) for number in range(size)]
    async with open_pool(commands, terms(beside, **changes), heard) as opened:  # type: ignore[arg-type]
        yield opened


@dataclass(kw_only=True)
class Player:
    """Says words in one episode, and keeps what came back."""

    pool: VerifierPool
    index: int = 7
    said: list[str] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)

    async def say(self, *words: str) -> Judgement | Failure:
        """What comes back to the last of them."""
        found: Judgement | Failure = None
        for word in words:
            self.said.append(word)
            found = await self.pool.judge("worlds", self.asked())
            if isinstance(found, str):
                self.digests.append(digest_of_answer(found))
        return found

    async def worth(self, *, finished: bool = True) -> Judgement | Failure:
        return await self.pool.judge("worlds", self.asked(wants_reward=True, finished=finished))

    def asked(self, *, wants_reward: bool = False, finished: bool = True) -> Asked:
        return Asked(
            index=self.index,
            held_out=False,
            said=tuple(self.said),
            finished=finished,
            wants_reward=wants_reward,
            digests=tuple(self.digests[: len(self.said) - 1]),
        )


@pytest.mark.parametrize("spec", ["python:worlds:Worlds", "python:worlds:AsyncWorlds"])
async def test_an_episode_stays_where_its_environment_is(beside: Path, spec: str) -> None:
    async with pool(beside, spec=spec) as verifiers:
        players = [Player(pool=verifiers, index=index) for index in range(6)]
        for player in players:
            await player.say(f"a{player.index}")
        for player in players:
            assert await player.say("b", "c") == "3 c"
            first, second = await player.say("pid"), await player.say("pid")
            assert first == second
            assert await player.say("end") is None
            assert await player.worth() == 6.5


async def test_a_killed_verifier_costs_no_episode_that_follows_from_its_seed(beside: Path) -> None:
    pids: dict[str, int] = {}
    async with pool(beside, pids=pids) as verifiers:
        player, other = Player(pool=verifiers), Player(pool=verifiers)
        drawn = await player.say("dice", "dice")
        for pid in list(pids.values()):
            psutil.Process(pid).kill()
        assert await player.say("c", "dice") is not None
        assert await other.say("dice", "dice") == drawn, "the seed is the problem's"
        assert await player.worth() == 4.5


async def test_one_that_answers_otherwise_is_abandoned_as_a_value_once_it_was_lost(beside: Path) -> None:
    pids: dict[str, int] = {}
    async with pool(beside, pids=pids) as verifiers:
        player, steady = Player(pool=verifiers), Player(pool=verifiers)
        await steady.say("a", "b")
        await player.say("random", "b")
        assert await player.say("c") == "3 c", "alive, it may be as random as it likes"
        gone = list(pids.values())
        for pid in gone:
            psutil.Process(pid).kill()
        failure = await player.say("d")
        assert isinstance(failure, Failure)
        assert failure.how == "otherwise"
        assert failure.detail.startswith(
            "the environment of task 'worlds' at index 7 was made again, and in turn 1 it answered differently"
        )
        assert await steady.say("c") == "3 c"


async def test_one_that_answers_by_what_others_said_is_found_out_when_it_is_replayed(beside: Path) -> None:
    """The replayed environment shares something else with other episodes than at first."""
    async with pool(beside, size=1, environments=1, at_once=1) as verifiers:
        player, other = Player(pool=verifiers), Player(pool=verifiers)
        await player.say("shared")
        await other.say("a")  # takes the only place
        failure = await player.say("b")
        assert isinstance(failure, Failure)
        assert failure.how == "otherwise"
        assert await other.say("b") == "2 b"


@pytest.mark.parametrize(
    ("word", "how", "detail"),
    [
        ("hang", "timed_out", "`step` at index 7 did not end within 3 s"),
        pytest.param("spin", "died", "", marks=pytest.mark.rest),
        ("die", "died", "ended with exit code 3"),
        ("leak", "raised", "failed at index 7, in `step`: MemoryError"),
        ("big", "raised", "answered with 50,000,000 characters at index 7"),
        ("raise", "raised", "failed at index 7, in `step`: KeyError: 'no such thing'"),
    ],
)
async def test_what_an_environment_does_is_a_value_and_all_others_go_on(
    beside: Path, word: str, how: str, detail: str
) -> None:
    async with pool(beside, timeout_s=3.0 if word in ("hang", "spin") else 30.0) as verifiers:
        others = [Player(pool=verifiers, index=index) for index in range(4)]
        for other in others:
            await other.say("a")
        player = Player(pool=verifiers)
        await player.say("a")
        failure = await player.say(word)
        assert isinstance(failure, Failure)
        assert failure.how == how
        assert detail in failure.detail
        for other in others:
            assert await other.say("b", "c") == "3 c"
            assert await other.worth() == 3.5


async def test_others_that_are_at_work_when_a_process_ends_are_told_again_elsewhere(beside: Path) -> None:
    async with pool(beside, size=2, timeout_s=5.0) as verifiers:
        outcomes: dict[int, object] = {}

        async def play(index: int, word: str) -> None:
            player = Player(pool=verifiers, index=index)
            outcomes[index] = [await player.say("a", word), None if word == "hang" else await player.say("c")]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(play, 0, "hang")
            for index in range(1, 20):
                nursery.start_soon(play, index, "b")
        assert [outcomes[index] for index in range(1, 20)] == [["2 b", "3 c"]] * 19
        [failure, _] = outcomes[0]  # type: ignore[misc]
        assert isinstance(failure, Failure)
        assert failure.how == "timed_out"


async def test_several_wait_at_a_time_in_one_process(beside: Path) -> None:
    """Two that go on only when both are at work: one after the other would never end."""
    async with pool(beside, size=1, spec="python:worlds:AsyncWorlds") as verifiers:
        found: list[object] = []

        async def meet(index: int) -> None:
            found.append(await Player(pool=verifiers, index=index).say("meet"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(meet, 1)
            nursery.start_soon(meet, 2)
        assert found == ["1 meet"] * 2


async def test_an_async_one_that_hangs_leaves_its_process_to_the_others(beside: Path) -> None:
    async with pool(beside, size=1, spec="python:worlds:AsyncWorlds", timeout_s=3.0) as verifiers:
        other, player = Player(pool=verifiers, index=1), Player(pool=verifiers)
        pid = await other.say("pid")
        failure = await player.say("a", "wait")
        assert isinstance(failure, Failure)
        assert failure.how == "timed_out"
        assert await other.say("pid") == pid, "it was the same process all the while"


async def test_no_number_for_a_reward_is_a_value_and_a_close_that_raises_is_nobodys_trouble(beside: Path) -> None:
    async with pool(beside, size=1) as verifiers:
        player, clinging = Player(pool=verifiers), Player(pool=verifiers)
        await player.say("nan")
        failure = await player.worth()
        assert isinstance(failure, Failure)
        assert failure.detail.startswith("task 'worlds' gave the reward nan at index 7")
        pid = await clinging.say("cling", "pid")
        assert await clinging.worth() == 2.5
        assert await Player(pool=verifiers).say("pid") == pid


async def test_words_that_were_cut_off_are_not_told_and_the_episode_has_its_reward(beside: Path) -> None:
    async with pool(beside, size=1) as verifiers:
        player = Player(pool=verifiers)
        await player.say("a", "b")
        player.said.append("half a ca")
        assert await player.worth(finished=False) == 2.5
        fresh = Player(pool=verifiers, said=["half"])
        assert await fresh.worth(finished=False) == 0.5


async def test_what_an_environment_prints_is_not_the_pipes(beside: Path) -> None:
    async with pool(beside, size=1) as verifiers:
        assert await Player(pool=verifiers).say("print") == "1 print"


async def test_environments_are_closed_when_their_verifier_is_told_to_end(beside: Path) -> None:
    async with pool(beside, size=1, spec="python:worlds:AsyncWorlds") as verifiers:
        await Player(pool=verifiers).say("a", "b")
    assert (beside / "closed").read_text() == "ab\n"


SWAPPING = """
import sys
from learner.trainer_api.pipes import claim_pipes, requests_of
from protocol.core.pipe import encode_frame

requests, replies = claim_pipes()

def write(header):
    replies.write(encode_frame(header))
    replies.flush()

write({"event": "ready"})
for header, _ in requests_of(requests):
    if header["op"] == "open":
        write({"ok": True, "fingerprints": {"worlds": "worlds/1"}, "id": header["id"]})
    else:
        write({"ok": True, "of": "another's", "answer": "7", "id": header["id"]})
"""


async def test_an_answer_to_another_episode_is_none(beside: Path) -> None:
    async with open_pool([("verifier 1", (sys.executable, "-c", SWAPPING))], terms(beside)) as verifiers:
        failure = await Player(pool=verifiers).say("a")
        assert isinstance(failure, Failure)
        assert failure.how == "died"
        assert "it is the answer to another question" in failure.detail
