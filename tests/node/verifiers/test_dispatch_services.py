"""The learner's loops ask for slow rewards: of an author's own tasks, of judges and of services."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest

from learner.rollouts.environment import Ended, Question, Reply
from node.config.swarm_config import (
    JudgeSection,
    LearnSection,
    ModelSection,
    RewardServiceSection,
    SwarmConfig,
    SwarmSection,
    TaskSection,
    VerifiersSection,
)
from node.runtime.events import EventLog, Field
from node.tasks.api.interface import TaskError
from node.tasks.task_suite import open_task_suite
from node.tasks.tokenizer import write_character_tokenizer
from node.verifiers.dispatch import UNSAID_IN_A_ROW, Verifiers, require_here
from tests.support.reward_servers import Heard, Server, chat, nobody, rewards, serving
from tests.support.reward_servers import Reply as ServerReply

TASK = """
import asyncio, os
from volery import CANNOT_SAY, Problem

class Awaited:
    name, levels, fingerprint = "awaited", 1, "awaited/1"

    def problem(self, index):
        return Problem(prompt=f"q{index}", answer="a")

    def held_out(self, index):
        return Problem(prompt=f"h{index}", answer="a")

    def answer_turn(self, problem, turns, said):
        return "b" if said == "turn" and len(turns) < 2 else None

    async def reward(self, problem, completion):
        match completion.text:
            case "hang": await asyncio.sleep(3600)
            case "unsaid": return CANNOT_SAY
            case "bad": return None
            case "raise": raise OSError("no route")
            case "cancel": raise asyncio.CancelledError
            case "leave": raise SystemExit(3)
            case "pid": return float(os.getpid())
        await asyncio.sleep(0)
        return len(completion.turns) + len(completion.text) / 10

def make(arguments):
    return Awaited()
"""

LOADING = ServerReply(status=503, value="loading")

Log = list[tuple[str, dict[str, Field]]]


def opened(root: Path, spec: str, log: Log | None = None, *, workers: int = 1, **more: Any) -> Verifiers:
    (root / "model").mkdir(exist_ok=True)
    write_character_tokenizer(root / "model")
    (root / "awaited_task.py").write_text(TASK)
    sections = {key: more.pop(key) for key in ("judge", "reward_service") if key in more}
    config = SwarmConfig(
        swarm=SwarmSection(name="n"),
        model=ModelSection(directory=str(root / "model")),
        task=TaskSection(spec=spec, held_out=0),
        learn=LearnSection(steps=1, max_new_tokens=8, **({"max_turns": 3} if "python" in spec else {})),
        **sections,
    )
    events = EventLog()
    events.listen(lambda name, fields: log.append((name, dict(fields))) if log is not None else None)
    section = msgspec.convert({"workers": workers, **more}, VerifiersSection)
    return Verifiers(suite=open_task_suite(config, root), section=section, events=events)


async def asked(verifiers: Verifiers, words: list[tuple[str, ...]]) -> list[Reply]:
    codec = verifiers.suite.codec
    questions = [
        Question(index=number, said=tuple(codec.encode_answer(word) for word in said), transcript=40)
        for number, said in enumerate(words)
    ]
    return await verifiers.replies(questions)


@pytest.mark.parametrize("workers", [0, 1])
async def test_a_reward_may_be_async(tmp_path: Path, workers: int) -> None:
    verifiers = opened(tmp_path, "python:awaited_task:make", workers=workers)
    assert verifiers.suite.tasks["python"].gate.has_async_reward
    require_here(verifiers.suite, verifiers.section)
    async with verifiers.open():
        found = await asked(verifiers, [("abc",), ("turn", "ab"), ("turn", "turn", "a")])
    assert found == [Ended(reward=0.3), Ended(reward=1.2), Ended(reward=2.1)]


@pytest.mark.parametrize("workers", [0, 1])
async def test_whatever_it_raises_or_returns_is_its_own_failure(tmp_path: Path, workers: int) -> None:
    log: Log = []
    verifiers = opened(tmp_path, "python:awaited_task:make", log, workers=workers)
    async with verifiers.open():
        bad, raised, cancelled, left, good = await asked(
            verifiers, [("bad",), ("raise",), ("cancel",), ("leave",), ("abc",)]
        )
        [again] = await asked(verifiers, [("ab",)])
    assert (good, again) == (Ended(reward=0.3), Ended(reward=0.2))
    for reply, why in ((bad, "must return"), (raised, "no route"), (cancelled, "Cancelled"), (left, "SystemExit")):
        assert isinstance(reply, Ended)
        assert why in reply.failure
    assert [name for name, _ in log].count("child_died") == 0


async def test_one_that_hangs_is_cancelled_and_costs_nobody_anything(tmp_path: Path) -> None:
    """One process, in which as many wait as may: the others are answered beside them, by the same process."""
    log: Log = []
    verifiers = opened(tmp_path, "python:awaited_task:make", log, timeout_s=5.0, episodes_at_once=8)
    async with verifiers.open():
        *hanging, before, after = await asked(verifiers, [("hang",)] * 7 + [("pid",), ("pid",)])
        [later] = await asked(verifiers, [("pid",)])
    assert before == after == later
    for reply in hanging:
        assert isinstance(reply, Ended)
        assert reply.failure.startswith("timed_out")
    assert [name for name, _ in log].count("child_died") == 0


async def test_what_nobody_can_say_is_void_and_no_failure(tmp_path: Path) -> None:
    log: Log = []
    verifiers = opened(tmp_path, "python:awaited_task:make", log)
    async with verifiers.open():
        unsaid, said = await asked(verifiers, [("unsaid",), ("abc",)])
    assert isinstance(unsaid, Ended)
    assert unsaid.void
    assert said == Ended(reward=0.3)
    assert verifiers.failures == 0
    assert not [name for name, _ in log if name in ("reward_failed", "trouble")]


async def test_where_nobody_can_ever_say_the_operator_hears_of_it(tmp_path: Path) -> None:
    log: Log = []
    verifiers = opened(tmp_path, "python:awaited_task:make", log)
    async with verifiers.open():
        await asked(verifiers, [("unsaid",)] * (UNSAID_IN_A_ROW - 1))
        await asked(verifiers, [("abc",)])
        await asked(verifiers, [("unsaid",)] * (2 * UNSAID_IN_A_ROW - 1))
    [told] = [str(fields["text"]) for name, fields in log if name == "trouble"]
    assert told.startswith("Task python gave no reward for its last 64 completions, so their groups are")
    assert verifiers.failures == 0


def data(root: Path, **more: Any) -> str:
    rows = [{"prompt": f"say {number}", **more} for number in range(8)]
    (root / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "jsonl:t.jsonl:held_out=0,match="


def length(number: int, heard: Heard) -> Any:
    return rewards(*(len(item["completion"]) / 10 for item in heard.value["items"]))


def service(server: Server | str, **more: Any) -> dict[str, Any]:
    url = server if isinstance(server, str) else server.url
    return {"reward_service": RewardServiceSection(url=url, **more)}


@pytest.mark.parametrize("workers", [0, 2])
async def test_a_file_without_answers_is_judged_by_a_service(tmp_path: Path, workers: int) -> None:
    with serving(length) as server:
        verifiers = opened(tmp_path, data(tmp_path) + "service", workers=workers, **service(server, batch=4))
        require_here(verifiers.suite, verifiers.section)
        async with verifiers.open():
            found = await asked(verifiers, [("abc",), ("ab",), ("a",)])
        assert found == [Ended(reward=0.3), Ended(reward=0.2), Ended(reward=0.1)]
        items = [item for heard in server.heard for item in heard.value["items"]]
        assert {item["completion"]: item["prompt"] for item in items if item["completion"]} == {
            "abc": "say 0",
            "ab": "say 1",
            "a": "say 2",
        }
        assert sorted(item["index"] for item in items[1:]) == [1, 2, 3]  # lines of the file
        assert {item["answer"] for item in items} == {None}


async def test_a_judge_is_asked_with_its_key_at_the_verifiers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-secret")
    (tmp_path / "prompt.txt").write_text("Grade {response} against {answer}.")
    log: Log = []
    with serving(lambda number, heard: chat('{"score": 4}')) as server:
        judge = JudgeSection(
            url=f"{server.url}/v1", model="m", prompt="prompt.txt", scale=[0.0, 5.0], api_key_env="JUDGE_KEY"
        )
        verifiers = opened(tmp_path, data(tmp_path, answer="42") + "judge", log, judge=judge)
        async with verifiers.open():
            assert await asked(verifiers, [("abc",)]) == [Ended(reward=0.8)]
        [heard] = server.heard
    assert heard.headers["authorization"] == "Bearer sk-secret"
    assert heard.value["messages"][1]["content"].startswith("Grade <response ")
    assert "sk-secret" not in json.dumps(log) + json.dumps(verifiers.suite.origins)


async def test_what_does_not_end_is_not_shown_to_a_judge(tmp_path: Path) -> None:
    with serving(lambda number, heard: chat('{"score": 10}')) as server:
        judge = JudgeSection(url=server.url, model="m")
        verifiers = opened(tmp_path, data(tmp_path) + "judge", judge=judge)
        async with verifiers.open():
            cut_off = verifiers.suite.codec.encode_answer("abc")[:-1]
            [reply] = await verifiers.replies([Question(index=0, said=(cut_off,), transcript=40)])
        assert reply == Ended(reward=0.0, cut_off=True)
        assert server.heard == []


async def test_an_outage_is_told_once_and_the_run_goes_on_after_it(tmp_path: Path) -> None:
    """Two processes find out, and one trouble is told. Nobody learns from what could not be judged."""
    log: Log = []
    is_up = Event()

    def answer(number: int, heard: Heard) -> Any:
        return length(number, heard) if is_up.is_set() else LOADING

    with serving(answer) as server:
        terms = service(server, timeout_s=3.0, retries=1, batch=1)
        verifiers = opened(tmp_path, data(tmp_path) + "service", log, workers=2, **terms)
        async with verifiers.open():
            for reply in await asked(verifiers, [(word,) for word in ("a", "b", "c", "d", "e", "f", "g", "h")]):
                assert isinstance(reply, Ended)
                assert reply.void
            is_up.set()
            assert await asked(verifiers, [("abc",)]) == [Ended(reward=0.3)]
    told = [str(fields["text"]) for name, fields in log if name == "trouble"]
    assert [text for text in told if "does not answer" in text] == told[:1]
    assert 'HTTP 503: "loading"' in told[0]
    assert "down" in [fields["how"] for name, fields in log if name == "reward_service"]
    assert verifiers.failures == 0


async def test_a_judge_that_talks_is_void_and_its_words_are_told(tmp_path: Path) -> None:
    log: Log = []
    with serving(lambda number, heard: chat("What a lovely answer! " * 100)) as server:
        verifiers = opened(tmp_path, data(tmp_path) + "judge", log, judge=JudgeSection(url=server.url, model="m"))
        async with verifiers.open():
            [reply] = await asked(verifiers, [("abc",)])
    assert isinstance(reply, Ended)
    assert reply.void
    [heard] = [fields for name, fields in log if name == "reward_service"]
    assert (heard["service"], heard["how"]) == ("[judge]", "unclear")
    assert "What a lovely answer!" in str(heard["detail"])
    assert len(str(heard["detail"])) < 1000


@pytest.mark.parametrize("match", ["judge", "service"])
def test_a_start_is_refused_where_nobody_answers(tmp_path: Path, match: str) -> None:
    judge = JudgeSection(url=nobody(), model="m", timeout_s=3.0)
    verifiers = opened(tmp_path, data(tmp_path) + match, judge=judge, **service(nobody(), timeout_s=3.0))
    with pytest.raises(TaskError, match=r"\[task\] jsonl: \[(judge|reward_service)\] http.*gave no reward.*Connect"):
        require_here(verifiers.suite, verifiers.section)


@pytest.mark.parametrize("match", ["judge", "service"])
def test_a_match_without_its_section_says_what_is_missing(tmp_path: Path, match: str) -> None:
    with pytest.raises(TaskError, match=rf"match={match} asks a service.*set url in \[(judge|reward_service)\]"):
        opened(tmp_path, data(tmp_path) + match)


async def test_names_have_weights_and_one_that_is_not_said_counts_as_nothing(tmp_path: Path) -> None:
    def answer(number: int, heard: Heard) -> Any:
        of = {"ab": {"correct": 1, "format": 0.5}, "cd": {"correct": 1}, "": {"correct": 0, "format": 0}}
        return rewards(*(of.get(item["completion"], {"correct": None}) for item in heard.value["items"]))

    with serving(answer) as server:
        terms = service(server, weights={"format": 0.2})
        verifiers = opened(tmp_path, data(tmp_path) + "service", **terms)
        require_here(verifiers.suite, verifiers.section)
        async with verifiers.open():
            both, one, none = await asked(verifiers, [("ab",), ("cd",), ("ef",)])
    assert isinstance(both, Ended)
    assert isinstance(one, Ended)
    assert isinstance(none, Ended)
    assert (both.reward, one.reward, none.void) == (1.1, 1.0, True)
    assert [(part.name, part.value, part.weight) for part in both.parts] == [
        ("format", 0.5, 0.2),
        ("correct", 1.0, 1.0),
    ]
