"""Prompts are written before they are leased: elsewhere, ahead, in the same order."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from learner.rollouts.open_leases import Prompt
from node.config.swarm_config import (
    LearnSection,
    MixtureTask,
    ModelSection,
    SwarmConfig,
    SwarmSection,
    TaskSection,
    VerifiersSection,
)
from node.learner_role.scheduling.prompt_writer import AHEAD, PromptWriter
from node.learner_role.shared.signals import LearnerSignals
from node.runtime.errors import RunError
from node.runtime.events import EventLog
from node.tasks.task_suite import TaskSuite, Written, open_task_suite
from node.tasks.tokenizer import write_character_tokenizer
from node.verifiers.dispatch import FAILED_IN_A_ROW, Verifiers
from tests.support.learner_fixture import until

OWN = '''
import os, threading, time
from node.tasks.api.interface import Problem

GATE = threading.Event()
SEEN = set()


class Own:
    """Says where its problems were made; some of them are no problems, or never come."""

    name, levels = "own", 1

    def __init__(self, arguments):
        self.fingerprint, self.options = "own", arguments.options

    def problem(self, index):
        SEEN.add(threading.get_ident())
        if self.options.get("slow"):
            GATE.wait(60)
        if index > 63 and index % 3 == 1:  # the first 64 are looked at when the task is opened
            match self.options.get("odd"):
                case "dict":
                    return {"prompt": "?"}
                case "raise":
                    raise KeyError(index)
                case "hang":
                    time.sleep(60)
        if index > 63 and self.options.get("odd") == "all":
            return None
        return Problem(prompt=f"{index} {os.getpid()}")

    def held_out(self, index):
        return Problem(prompt=f"held out {index}")

    def reward(self, problem, completion):
        return 1.0


class Cheap(Own):
    is_cheap = True
'''


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    write_character_tokenizer(tmp_path / "model")
    return tmp_path


def open_suite(base: Path, *specs: str) -> TaskSuite:
    mixture = [MixtureTask(spec=spec, name=f"task{number}") for number, spec in enumerate(specs)]
    config = SwarmConfig(
        swarm=SwarmSection(name="n"),
        model=ModelSection(directory=str(base / "model")),
        task=TaskSection(mixture=mixture, held_out=2),
        learn=LearnSection(steps=1, max_new_tokens=8),
    )
    return open_task_suite(config, base)


def own(base: Path, spec: str) -> str:
    """A module of its own for each test, so that none finds what another has left."""
    name = f"own_{abs(hash(base)):x}"
    (base / f"{name}.py").write_text(OWN)
    return f"python:{name}:{spec}"


async def at_once(suite: TaskSuite, indexes: Sequence[int]) -> list[Written]:
    await trio.lowlevel.checkpoint()
    return [suite.write_prompt(index) for index in indexes]


def desk_of(suite: TaskSuite, **parts: object) -> PromptWriter:
    async def write(indexes: Sequence[int]) -> list[Written]:
        return await at_once(suite, indexes)

    settings = {"write": write, "alone": lambda index: False, "writers": 2, "signals": LearnerSignals()}
    return PromptWriter(suite=suite, **{**settings, **parts})  # type: ignore[arg-type]


@asynccontextmanager
async def working(desk: PromptWriter) -> AsyncIterator[PromptWriter]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.run)
        yield desk
        nursery.cancel_scope.cancel()


async def take(desk: PromptWriter) -> Prompt:
    while (prompt := desk.next_prompt()) is None:
        await trio.to_thread.run_sync(int)
    return prompt


MIXED = ("arithmetic:levels=3", "jsonl:few.jsonl:held_out=0", "reverse:letters=3")


def few(base: Path) -> Path:
    lines = [{"prompt": f"{number}+1=", "answer": str(number + 1)} for number in range(7)]
    (base / "few.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return base


@given(st.lists(st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0])), max_size=60))
def test_what_comes_is_what_would_come_without_the_desk(
    tmp_path_factory: pytest.TempPathFactory, story: list[float | None]
) -> None:
    """Prompts (None) and rewards of the last of them, in any order: the same prompts, and the same state after each."""
    base = tmp_path_factory.mktemp("same")
    (base / "model").mkdir()
    write_character_tokenizer(base / "model")
    plain, other = open_suite(few(base), *MIXED), open_suite(base, *MIXED)

    async def play() -> None:
        async with working(desk_of(other)) as desk:
            last = 0
            for reward in story:
                if reward is None:
                    prompt = plain.next_prompt()
                    assert await take(desk) == prompt
                    last = prompt.index
                else:
                    for suite in (plain, other):
                        suite.observe(last, reward)
                assert other.state() == plain.state()

    trio.run(play)


async def test_a_checkpoint_goes_on_with_the_very_same_prompts_whatever_was_written_ahead(base: Path) -> None:
    suite = open_suite(few(base), *MIXED)
    async with working(desk_of(suite)) as desk:
        for _ in range(11):
            suite.observe((await take(desk)).index, 1.0)
        await trio.testing.wait_all_tasks_blocked()
        state = json.loads(json.dumps(suite.state()))
        following = [await take(desk) for _ in range(30)]
    again = open_suite(base, *MIXED)
    async with working(desk_of(again)) as desk:
        await take(desk)
        again.restore(state)
        assert [await take(desk) for _ in range(30)] == following


async def test_enough_is_written_ahead_and_no_more(base: Path) -> None:
    suite, written = open_suite(base, "reverse:letters=4"), list[int]()

    async def write(indexes: Sequence[int]) -> list[Written]:
        written.extend(indexes)
        return await at_once(suite, indexes)

    async with working(desk_of(suite, write=write)) as desk:
        await trio.testing.wait_all_tasks_blocked()
        assert written == list(range(AHEAD))
        for _ in range(AHEAD // 2 - 1):
            assert desk.next_prompt() is not None
        await trio.testing.wait_all_tasks_blocked()
        assert len(written) == AHEAD
        assert desk.next_prompt() is not None
        await trio.testing.wait_all_tasks_blocked()
        assert written == list(range(AHEAD + AHEAD // 2))


async def test_very_long_prompts_are_written_ahead_by_their_tokens(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.learner_role.scheduling.prompt_writer.AHEAD_TOKENS", 300)
    suite, written = open_suite(base, "reverse:letters=95"), list[int]()

    async def write(indexes: Sequence[int]) -> list[Written]:
        written.extend(indexes)
        return await at_once(suite, indexes)

    async with working(desk_of(suite, write=write, alone=lambda index: True, writers=1)):
        await trio.testing.wait_all_tasks_blocked()
    assert written == [0, 1, 2], "100 tokens each"


async def test_who_has_waited_for_a_prompt_is_told_when_it_is_there(base: Path) -> None:
    suite, told, may = open_suite(base, "reverse:letters=4"), list[bool](), trio.Event()

    async def write(indexes: Sequence[int]) -> list[Written]:
        await may.wait()
        return await at_once(suite, indexes)

    signals = LearnerSignals()
    signals.prompts_ready.subscribe(lambda _: told.append(True))
    async with working(desk_of(suite, write=write, signals=signals)) as desk:
        assert desk.next_prompt() is None
        before = suite.state()
        assert desk.next_prompt() is None
        assert suite.state() == before, "nothing is drawn before it is there"
        await trio.testing.wait_all_tasks_blocked()
        assert told == []
        may.set()
        await trio.testing.wait_all_tasks_blocked()
        assert told == [True], "once"
        assert desk.next_prompt() is not None


# With tasks of an operator's own


def verifiers_of(suite: TaskSuite, **section: object) -> Verifiers:
    settings = msgspec.convert({"workers": 1, **section}, VerifiersSection)
    return Verifiers(suite=suite, section=settings, events=EventLog())


def desk_with(verifiers: Verifiers) -> PromptWriter:
    return PromptWriter(
        suite=verifiers.suite,
        write=verifiers.prompts,
        alone=verifiers.is_pooled,
        writers=verifiers.writers,
        signals=LearnerSignals(),
    )


def said(suite: TaskSuite, prompt: Prompt) -> list[str]:
    return suite.codec.decode(prompt.tokens).split()


async def test_prompts_are_written_in_a_verifiers_process(base: Path) -> None:
    verifiers = verifiers_of(open_suite(base, own(base, "Own")))
    async with verifiers.open(), working(desk_with(verifiers)) as desk:
        found = [said(verifiers.suite, await take(desk)) for _ in range(20)]
    assert [int(index) for index, _ in found] == list(range(20))
    [pid] = {int(pid) for _, pid in found}
    assert pid != os.getpid()


async def test_a_cheap_task_writes_them_on_a_thread_and_a_slow_one_holds_up_nobody(base: Path) -> None:
    spec = own(base, "Cheap:slow=")
    suite = open_suite(base, spec)
    task = suite.tasks["task0"].task
    module = __import__(type(task).__module__)
    module.SEEN.clear()
    task.options["slow"] = "yes"  # type: ignore[attr-defined]
    verifiers = verifiers_of(suite)
    assert verifiers.pooled == []
    async with working(desk_with(verifiers)) as desk:
        assert desk.next_prompt() is None
        await until(lambda: bool(module.SEEN))  # it is at it, and we are not
        assert desk.next_prompt() is None
        module.GATE.set()
        assert said(suite, await take(desk)) == ["0", str(os.getpid())]
    assert threading.get_ident() not in module.SEEN


@pytest.mark.parametrize("odd", ["dict", "raise", "hang"])
async def test_a_problem_that_is_none_or_never_comes_is_passed_over_and_told_once(base: Path, odd: str) -> None:
    suite = open_suite(base, own(base, f"Own:odd={odd}"))
    told: list[str] = []
    suite.troubles.subscribe(told.append)
    suite.curriculum.parts[0].cursor.ordinal = 64  # type: ignore[attr-defined]
    verifiers = verifiers_of(suite, timeout_s=3.0, workers=4)
    async with verifiers.open(), working(desk_with(verifiers)) as desk:
        found = [(await take(desk)).index for _ in range(4)]
    assert found == [65, 66, 68, 69]
    [text] = told
    assert text.startswith("task task0: ")
    assert text.endswith("; such prompts are passed over")
    says = {"dict": "gave no problem at index 64, but {'prompt': '?'}", "raise": "failed at index 64: KeyError"}
    assert says.get(odd, "no answer within 3 s") in text


async def test_a_task_that_writes_no_prompt_any_more_ends_the_run_with_a_sentence(base: Path) -> None:
    verifiers = verifiers_of(open_suite(base, own(base, "Own:odd=all")))
    async with verifiers.open():
        written = await verifiers.prompts(range(64, 64 + FAILED_IN_A_ROW - 1))
        assert all("gave no problem at index " in str(one) for one in written)
        with pytest.raises(RunError, match=rf"last {FAILED_IN_A_ROW} prompts could not be written.*gave no problem"):
            await verifiers.prompts([64])


async def test_a_tokenizer_or_template_that_fails_on_a_prompt_is_no_end_either(base: Path) -> None:
    template = "{% if '65' in messages[0].content %}{{ 1 // 0 }}{% endif %}{{ messages[0].content }}"
    (base / "model" / "chat_template.jinja").write_text(template)
    spec = own(base, "Own")
    module = base / f"{spec.split(':')[1]}.py"
    templated = OWN.replace('prompt=f"{index} {os.getpid()}"', 'prompt=f"{index}", chat=Chat.ALWAYS')
    module.write_text(templated.replace("import Problem", "import Chat, Problem"))
    suite = open_suite(base, spec)
    told: list[str] = []
    suite.troubles.subscribe(told.append)
    suite.curriculum.parts[0].cursor.ordinal = 64  # type: ignore[attr-defined]
    verifiers = verifiers_of(suite)
    async with verifiers.open(), working(desk_with(verifiers)) as desk:
        assert [(await take(desk)).index for _ in range(2)] == [64, 66]
    [text] = told
    assert "ZeroDivisionError" in text
