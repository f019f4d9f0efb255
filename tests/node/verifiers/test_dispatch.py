"""Verifiers: every question has a reply, and the next one is answered, whatever a task does.

All processes are real; the task is a file beside swarm.toml, as an operator's own would be.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import psutil
import pytest
import trio
import trio.testing

from learner.rollouts.environment import Answered, Ended, Question, Reply
from node.config.swarm_config import (
    LearnSection,
    ModelSection,
    SwarmConfig,
    SwarmSection,
    TaskSection,
    VerifierMachine,
    VerifiersSection,
)
from node.processes.outcomes import ChildEvent, ChildStarted
from node.runtime.errors import RunError
from node.runtime.events import EventLog, Field
from node.tasks.api.interface import TaskError
from node.tasks.grading import Asked
from node.tasks.registry import open_task
from node.tasks.task_suite import open_task_suite
from node.tasks.tokenizer import write_character_tokenizer
from node.verifiers.dispatch import FAILED_IN_A_ROW, NEVER_RIGHT, Verifiers, require_here
from node.verifiers.pool import VERIFIER, Failure, PoolTerms, VerifierPool, open_pool

NASTY = '''
import os, re, signal, sys, time

from node.tasks.api.interface import Problem


class Nasty:
    """Does what it is told."""

    name, levels = "nasty", 1

    def __init__(self, arguments):
        self.fingerprint = "nasty/" + str(arguments.options.get("made", "here"))

    def problem(self, index):
        return Problem(prompt=str(index))

    def held_out(self, index):
        return Problem(prompt="held out " + str(index))

    def reward(self, problem, completion):
        match completion.text:
            case "hang":
                re.match("(a+)+$", "a" * 64 + "b")  # holds the interpreter lock all the while
            case "die":
                os._exit(3)
            case "raise":
                raise KeyError("no such thing")
            case "hoard":
                bytearray(1 << 42)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "print":
                print("not a frame", flush=True)
                os.write(1, b"nor this")
            case "pid":
                return float(os.getpid())
            case "read":
                return float(len(sys.stdin.read()))
            case "none":
                return None
            case "text":
                return "0.5"
            case "list":
                return [0.5]
            case "set":
                return {0.5}
            case "nan":
                return float("nan")
            case "true":
                return True
            case "exit":
                sys.exit(3)
        return len(completion.text) + len(problem.prompt) / 100


class NastyTurns(Nasty):
    def answer_turn(self, problem, turns, said):
        if said == "dicts":
            return [{"role": "user", "content": "and?"}]
        return None if said == "z" else "ab"[len(turns) % 2] + said


class CheapNasty(Nasty):
    is_cheap = True


class CheapNastyTurns(NastyTurns):
    is_cheap = True


class Never(Nasty):
    def reward(self, problem, completion):
        if completion.text == "right":
            return 1.0


class CheapNever(Never):
    is_cheap = True
'''

DEAR = """
from node.tasks.api.interface import Problem


class Dear:
    name, levels, size, num_held_out, notes, pass_rates = "dear", 1, 9, 2, ["nine problems"], None

    def __init__(self, arguments):
        self.asked = 0

    @property
    def fingerprint(self):
        self.asked += 1
        return "dear"

    def problem(self, index):
        return Problem(prompt=str(index))

    held_out = problem

    def answer_turn(self, problem, turns, said):
        return None

    def reward(self, problem, completion):
        return 1.0
"""

NO_REWARDS = {
    "none": "None",
    "text": "'0.5' (of type str)",
    "list": "[0.5] (of type list)",
    "set": "{0.5} (of type set)",
}


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    (tmp_path / "nasty.py").write_text(NASTY)
    return tmp_path


def terms(beside: Path, *, timeout_s: float = 30.0, spec: str = "python:nasty:Nasty", **changes: object) -> PoolTerms:
    settings = {
        "tasks": {"nasty": {"spec": spec, "directory": str(beside), "seed": 0}},
        "fingerprints": {"nasty": open_task(spec, directory=beside).fingerprint},
        "timeout_s": timeout_s,
        "memory_gb": 2.0,
    }
    return PoolTerms(**{**settings, **changes})  # type: ignore[arg-type]


@asynccontextmanager
async def pool(beside: Path, size: int = 1, **changes: object) -> AsyncIterator[VerifierPool]:
    async with open_pool([(f"verifier {n}", VERIFIER) for n in range(size)], terms(beside, **changes)) as opened:  # type: ignore[arg-type]
        yield opened


def said(text: str, **changes: object) -> Asked:
    settings = {"index": 7, "held_out": False, "said": (text,), "finished": True, "wants_reward": True}
    return Asked(**{**settings, **changes})  # type: ignore[arg-type]


async def test_a_reward_is_what_it_is_here(beside: Path) -> None:
    async with pool(beside) as verifiers:
        assert await verifiers.judge("nasty", said("four")) == 4.01
        assert await verifiers.judge("nasty", said("four", held_out=True)) == 4.1


@pytest.mark.parametrize("text", ["print", "read"])
async def test_what_a_task_prints_or_reads_is_not_the_pipes(beside: Path, text: str) -> None:
    async with pool(beside) as verifiers:
        assert await verifiers.judge("nasty", said(text)) == (5.01 if text == "print" else 0.0)
        assert await verifiers.judge("nasty", said("four")) == 4.01


@pytest.mark.parametrize(
    ("text", "how", "detail"),
    [
        ("hang", "timed_out", "no answer within 3 s"),
        ("stop", "timed_out", "no answer within 3 s, and the verifier did not end itself"),
        ("die", "died", "ended with exit code 3"),
        ("raise", "raised", "failed at index 7: KeyError: 'no such thing'"),
        ("hoard", "raised", "failed at index 7: MemoryError"),
    ],
)
async def test_what_cannot_be_judged_is_a_value_and_the_next_is_judged(
    beside: Path, text: str, how: str, detail: str
) -> None:
    async with pool(beside, timeout_s=3.0, late_s=0.5) as verifiers:
        failure = await verifiers.judge("nasty", said(text))
        assert isinstance(failure, Failure)
        assert failure.how == how
        assert detail in failure.detail
        assert await verifiers.judge("nasty", said("four")) == 4.01


async def test_a_verifier_that_hangs_is_ended_by_its_pid_and_holds_up_no_other(beside: Path) -> None:
    pids: list[int] = []

    def heard(name: str) -> object:
        def on_event(event: ChildEvent) -> None:
            if isinstance(event, ChildStarted):
                pids.append(event.pid)

        return on_event

    commands = [(f"verifier {n}", VERIFIER) for n in range(2)]
    async with open_pool(commands, terms(beside, timeout_s=6.0), heard) as verifiers:  # type: ignore[arg-type]
        outcomes: list[object] = []
        async with trio.open_nursery() as nursery:

            async def ask(text: str) -> None:
                outcomes.append(await verifiers.judge("nasty", said(text)))

            nursery.start_soon(ask, "hang")
            for _ in range(20):
                nursery.start_soon(ask, "four")
        assert outcomes[:-1] == [4.01] * 20, "all others were answered while it hung"
        assert isinstance(outcomes[-1], Failure)
        used: set[object] = set()
        while len(used) < 2:  # the one that was ended comes back
            used.add(await verifiers.judge("nasty", said("pid")))
        assert len(pids) == 3
        assert [pid for pid in pids if not psutil.pid_exists(pid)] == [next(pid for pid in pids if pid not in used)]
    assert not any(psutil.pid_exists(pid) for pid in pids)


async def test_turns_are_folded_there_as_here(beside: Path) -> None:
    spec = "python:nasty:NastyTurns"
    async with pool(beside, spec=spec) as verifiers:
        assert await verifiers.judge("nasty", said("x", said=("p", "q"), wants_reward=False)) == "bq"
        assert await verifiers.judge("nasty", said("x", said=("p", "z"), wants_reward=False)) is None
        impossible = await verifiers.judge("nasty", said("x", said=("z", "q"), wants_reward=False))
        assert isinstance(impossible, Failure)
        assert "answers differently than before" in impossible.detail


async def test_another_file_on_the_other_machine_is_refused_at_the_start(beside: Path) -> None:
    with pytest.raises(RunError, match=r"task 'nasty' differs from this node's \(nasty/here, here nasty/there\)"):
        async with pool(beside, fingerprints={"nasty": "nasty/there"}):
            raise AssertionError("it was opened")


async def test_a_command_that_is_no_verifier_is_refused_at_the_start(beside: Path) -> None:
    with pytest.raises(RunError, match=r"A verifier could not be started: .*exit code 255"):
        async with open_pool([("verifier 1 (ssh nowhere)", ("sh", "-c", "exit 255"))], terms(beside)):
            raise AssertionError("it was opened")


STRANGE = """
import sys, time
from learner.trainer_api.pipes import claim_pipes, requests_of
from protocol.core.pipe import encode_frame

how, fingerprint = sys.argv[1:]
requests, replies = claim_pipes()

def write(header):
    replies.write(encode_frame(header))
    replies.flush()

write({"event": "ready"})
for header, _ in requests_of(requests):
    if header["op"] != "open":
        said = {"empty": {}, "text": {"reward": "much"}, "nan": {"reward": float("nan")}, "other": {"reward": 1.0}}
        write({"ok": True, **said[how], "id": header["id"] + (how == "other")})
    elif how != "never":
        write({"ok": True, "fingerprints": {"nasty": fingerprint} if how != "nothing" else 1, "id": header["id"]})
"""


def strange(how: str) -> list[tuple[str, tuple[str, ...]]]:
    """A verifier that keeps to the frames, and not to what stands in them."""
    return [("verifier 1", (sys.executable, "-c", STRANGE, how, "nasty/here"))]


@pytest.mark.parametrize(
    ("how", "detail"),
    [
        ("empty", "its answer cannot be read (KeyError: 'reward')"),
        ("text", "its answer cannot be read (ValueError"),
        ("nan", "its answer cannot be read"),
        ("other", "neither an event nor a reply to a request of ours"),
    ],
)
async def test_an_answer_that_is_none_is_a_failure_and_not_the_end(beside: Path, how: str, detail: str) -> None:
    async with open_pool(strange(how), terms(beside)) as verifiers:
        failure = await verifiers.judge("nasty", said("four"))
        assert isinstance(failure, Failure)
        assert failure.how == "died"
        assert detail in failure.detail


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("never", r"it has not opened the tasks within 0\.5 s"),
        ("nothing", r"differs from this node's \(None, here nasty/here\)"),
    ],
)
async def test_a_verifier_that_never_opens_its_tasks_is_refused(beside: Path, how: str, told: str) -> None:
    with pytest.raises(RunError, match=told):
        async with open_pool(strange(how), terms(beside, open_s=0.5 if how == "never" else 60.0)):
            raise AssertionError("it was opened")


async def test_verifiers_that_went_away_while_idle_cost_no_question_its_time(beside: Path) -> None:
    """A machine that vanishes takes all its verifiers with it, and they do not come back soon."""
    pids: dict[str, int] = {}

    def heard(name: str) -> object:
        def on_event(event: ChildEvent) -> None:
            if isinstance(event, ChildStarted):
                pids[name] = event.pid

        return on_event

    away = beside / "away"
    there = ("sh", "-c", f"[ -e {away} ] && exit 255; exec {sys.executable} -m node.verifiers.worker")
    commands = [*((f"there {number}", there) for number in range(4)), ("here", VERIFIER)]
    settings = terms(beside, timeout_s=20.0, late_s=20.0)
    async with open_pool(commands, settings, heard) as verifiers:  # type: ignore[arg-type]
        away.touch()
        for name, pid in pids.items():
            if name != "here":
                psutil.Process(pid).kill()
        while any(psutil.pid_exists(pid) for name, pid in pids.items() if name != "here"):
            await trio.lowlevel.checkpoint()
        assert [await verifiers.judge("nasty", said("pid")) for _ in range(5)] == [float(pids["here"])] * 5


# Between the pool and the loops


def opened(beside: Path, log: list[tuple[str, dict[str, Field]]], spec: str, **section: object) -> Verifiers:
    (beside / "model").mkdir(exist_ok=True)
    write_character_tokenizer(beside / "model")
    config = SwarmConfig(
        swarm=SwarmSection(name="n"),
        model=ModelSection(directory=str(beside / "model")),
        task=TaskSection(spec=spec, held_out=2),
        learn=LearnSection(steps=1, max_new_tokens=16),
    )
    events = EventLog()
    events.listen(lambda name, fields: log.append((name, dict(fields))))
    verifiers = msgspec.convert({"workers": 1, **section}, VerifiersSection)
    return Verifiers(suite=open_task_suite(config, beside), section=verifiers, events=events)


def question(verifiers: Verifiers, *texts: str) -> Question:
    codec = verifiers.suite.codec
    spoken = tuple(codec.encode_answer(text) for text in texts)
    return Question(index=7, said=spoken, transcript=sum(map(len, spoken)) + 1)


async def replies(verifiers: Verifiers, *texts: str) -> Sequence[Reply]:
    return await verifiers.replies([question(verifiers, text) for text in texts])


async def test_replies_come_in_order_and_a_failure_is_zero_and_told(beside: Path) -> None:
    log: list[tuple[str, dict[str, Field]]] = []
    verifiers = opened(beside, log, "python:nasty:Nasty", workers=2)
    async with verifiers.open():
        first, second, third = await replies(verifiers, "four", "raise", "fives")
        assert (first, third) == (Ended(reward=4.01), Ended(reward=5.01))
        assert isinstance(second, Ended)
        assert (second.reward, second.void) == (0.0, False)
        assert second.failure.startswith("raised: task 'nasty' failed at index 7")
        [held_out] = await verifiers.held_out_replies(
            [(verifiers.suite.held_out[1], question(verifiers, "four").said, 9, ())]
        )
        assert held_out == Ended(reward=4.1)
        assert await trio.to_thread.run_sync(verifiers.ask_one, question(verifiers, "four")) == first
    [failed] = [fields for name, fields in log if name == "reward_failed"]
    assert (failed["task"], failed["index"], failed["how"]) == ("python", 7, "raised")
    [told] = [fields["text"] for name, fields in log if name == "trouble"]
    assert str(told).startswith(
        "1 reward could not be computed. They count as 0. The newest failure, at problem 7 of task python: "
    )


async def test_a_failure_may_make_its_group_void(beside: Path) -> None:
    verifiers = opened(beside, [], "python:nasty:Nasty", on_failure="drop")
    async with verifiers.open():
        [reply] = await replies(verifiers, "raise")
    assert isinstance(reply, Ended)
    assert reply.void


async def test_a_task_that_fails_at_everything_ends_the_run(beside: Path) -> None:
    verifiers = opened(beside, [], "python:nasty:Nasty")
    async with verifiers.open():
        await replies(verifiers, *["raise"] * (FAILED_IN_A_ROW - 1))
        await replies(verifiers, "four")
        await replies(verifiers, *["raise"] * (FAILED_IN_A_ROW - 1))
        with pytest.raises(RunError, match="KeyError"):
            await replies(verifiers, "raise")


async def test_several_turns_with_the_task_elsewhere_and_the_tokens_here(beside: Path) -> None:
    verifiers = opened(beside, [], "python:nasty:NastyTurns")
    async with verifiers.open():
        codec = verifiers.suite.codec
        [reply] = await verifiers.replies([question(verifiers, "p", "q")])
        assert isinstance(reply, Answered)
        assert codec.decode(reply.tokens) == "bq"
        assert await verifiers.replies([question(verifiers, "p", "z")]) == [Ended(reward=1.01)]


async def test_a_cheap_task_needs_no_process(beside: Path) -> None:
    verifiers = opened(beside, [], "reverse:letters=4", workers=3)
    assert verifiers.pooled == []
    children = len(psutil.Process().children())
    async with verifiers.open():
        answer = verifiers.suite.tasks["reverse"].task.problem(7).answer
        assert await replies(verifiers, str(answer)) == [Ended(reward=1.0)]
        assert len(psutil.Process().children()) == children


async def test_without_workers_the_node_asks_the_task_itself(beside: Path) -> None:
    verifiers = opened(beside, [], "python:nasty:Nasty", workers=0)
    async with verifiers.open():
        assert await replies(verifiers, "pid") == [Ended(reward=float(os.getpid()))]


async def test_other_machines_are_any_command(beside: Path) -> None:
    """What ssh would run there: the command line's own verifier, started by a shell in another directory."""
    there = VerifierMachine(
        command=["sh", "-c", f"cd / && PYTHONPATH={Path.cwd()} exec {sys.executable} -m node verifier"], workers=2
    )
    verifiers = opened(beside, [], "python:nasty:Nasty", workers=0)
    verifiers.section = msgspec.structs.replace(verifiers.section, machine=[there])
    async with verifiers.open():
        found = await replies(verifiers, *["pid"] * 8)
    pids = {reply.reward for reply in found if isinstance(reply, Ended)}
    assert len(pids) <= 2
    assert os.getpid() not in pids


async def test_who_still_asks_when_the_pool_is_closed_is_told_nothing(beside: Path) -> None:
    """A run that ends is no reason for a reward of 0."""
    outcomes: list[object] = []
    async with trio.open_nursery() as nursery:

        async def ask(verifiers: VerifierPool) -> None:
            outcomes.append(await verifiers.judge("nasty", said("hang")))

        async with pool(beside, size=2) as verifiers:
            for _ in range(3):
                nursery.start_soon(ask, verifiers)
            await trio.testing.wait_all_tasks_blocked(0.1)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert outcomes == []


# What is no reward


@pytest.mark.parametrize("text", [*NO_REWARDS, "nan"])
async def test_what_is_no_reward_kills_no_verifier_and_is_told_in_a_sentence(beside: Path, text: str) -> None:
    async with pool(beside) as verifiers:
        pid = await verifiers.judge("nasty", said("pid"))
        failure = await verifiers.judge("nasty", said(text))
        assert isinstance(failure, Failure)
        assert failure.how == "raised"
        if text == "nan":
            assert failure.detail.startswith("task 'nasty' gave the reward nan at index 7; it must lie between")
        else:
            assert failure.detail.startswith(f"task 'nasty' gave no reward at index 7, but {NO_REWARDS[text]}")
        assert await verifiers.judge("nasty", said("true")) == 1.0
        assert await verifiers.judge("nasty", said("pid")) == pid, "it was the same process all the while"


async def test_dicts_where_messages_belong_kill_no_verifier_and_are_told_in_a_sentence(beside: Path) -> None:
    async with pool(beside, spec="python:nasty:NastyTurns") as verifiers:
        pid = await verifiers.judge("nasty", said("pid"))
        failure = await verifiers.judge("nasty", said("dicts", wants_reward=False))
        assert isinstance(failure, Failure)
        assert failure.detail.startswith("task 'nasty' gave no answer at index 7, but [{'content': 'and?', ")
        assert "ChatMessage(role=..., content=...)" in failure.detail
        assert await verifiers.judge("nasty", said("pid")) == pid


@pytest.mark.parametrize("text", [*NO_REWARDS, "nan", "raise", "exit"])
async def test_what_is_no_reward_is_a_value_where_the_node_asks_as_well(beside: Path, text: str) -> None:
    """A cheap task is asked in the learner, which goes on; so it does after a restart, when it asks again."""
    log: list[tuple[str, dict[str, Field]]] = []
    verifiers = opened(beside, log, "python:nasty:CheapNasty")
    assert verifiers.pooled == []
    async with verifiers.open():
        first, second = await replies(verifiers, text, "four")
        again = await trio.to_thread.run_sync(verifiers.ask_one, question(verifiers, text))
    assert isinstance(first, Ended)
    assert (first.reward, first.void, again) == (0.0, False, first)
    assert first.failure.startswith("raised: task 'nasty' ")
    assert "at index 7" in first.failure
    assert second == Ended(reward=4.01)
    assert [fields["how"] for name, fields in log if name == "reward_failed"] == ["raised"] * 2


@pytest.mark.parametrize("spec", ["python:nasty:CheapNastyTurns", "python:nasty:NastyTurns"])
async def test_dicts_where_messages_belong_are_a_value_wherever_the_task_is_asked(beside: Path, spec: str) -> None:
    verifiers = opened(beside, [], spec, on_failure="drop")
    async with verifiers.open():
        reply, good = await verifiers.replies([question(verifiers, "dicts"), question(verifiers, "p", "q")])
        assert await trio.to_thread.run_sync(verifiers.ask_one, question(verifiers, "dicts")) == reply
    assert isinstance(reply, Ended)
    assert reply.void
    assert "gave no answer at index 7, but [{'content': 'and?', 'role': 'user'}] (of type list)" in reply.failure
    assert isinstance(good, Answered)


@pytest.mark.parametrize("spec", ["python:nasty:CheapNever", "python:nasty:Never"])
async def test_a_task_whose_every_reward_is_wrong_is_told_once_and_then_ends_the_run(beside: Path, spec: str) -> None:
    log: list[tuple[str, dict[str, Field]]] = []
    verifiers = opened(beside, log, spec)
    async with verifiers.open():
        with pytest.raises(RunError, match=r"last 256 rewards could not be computed.*gave no reward at index 7"):
            await replies(verifiers, *["x"] * FAILED_IN_A_ROW)
    plainly = [str(fields["text"]) for name, fields in log if name == "trouble" and "judged none" in str(fields)]
    [text] = plainly
    assert text.startswith(f"Task python has judged none of its first {NEVER_RIGHT} completions, so the policy cannot")
    assert "gave no reward at index 7, but None" in text


async def test_a_task_that_has_judged_one_completion_is_not_told_to_judge_none(beside: Path) -> None:
    log: list[tuple[str, dict[str, Field]]] = []
    verifiers = opened(beside, log, "python:nasty:CheapNever")
    await replies(verifiers, "x", "right", *["x"] * (2 * NEVER_RIGHT))
    assert not [fields for name, fields in log if name == "trouble" and "judged none" in str(fields["text"])]


async def test_a_task_that_is_asked_elsewhere_is_asked_for_its_problem_there_once(beside: Path) -> None:
    """Between two turns the answer goes through the template after the prompt: nobody makes the problem here."""
    verifiers = opened(beside, [], "python:nasty:NastyTurns")
    task = verifiers.suite.tasks["python"].task
    made: list[int] = []
    task.problem = lambda index: made.append(index)  # type: ignore[assignment]
    async with verifiers.open():
        found = await verifiers.replies([question(verifiers, "p", "q"), question(verifiers, "q")])
        assert await verifiers.prompts([7]) == [verifiers.suite.codec.encode_answer("7")[:-1]]
    assert [verifiers.suite.codec.decode(reply.tokens) for reply in found if isinstance(reply, Answered)] == [
        "bq",
        "aq",
    ]
    assert made == []
    assert len(verifiers._posed) == 1


async def test_a_fingerprint_is_computed_once_whoever_asks(beside: Path) -> None:
    """It may draw problems for seconds; `isinstance` with a Protocol would run it each time, on Python 3.11."""
    (beside / "dear.py").write_text(DEAR)
    verifiers = opened(beside, [], "python:dear:Dear")
    task = verifiers.suite.tasks["python"].task
    async with verifiers.open():
        for _ in range(3):
            await replies(verifiers, "four")
            assert verifiers.pooled == ["python"]
        assert (verifiers.suite.has_turns, len(verifiers.suite.notes)) == (True, 1)
    assert task.asked == 1  # type: ignore[attr-defined]


def test_a_task_without_a_reward_is_refused_before_the_run_unless_others_compute_it(beside: Path) -> None:
    verifiers = opened(beside, [], "python:nasty:Never")
    with pytest.raises(TaskError, match="'nasty' gave no reward at index 0, but None"):
        require_here(verifiers.suite, VerifiersSection())
    elsewhere = VerifiersSection(workers=0, machine=[VerifierMachine(command=["ssh", "there"])])
    require_here(verifiers.suite, elsewhere)
