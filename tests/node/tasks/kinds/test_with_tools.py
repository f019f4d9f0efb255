"""Tasks played with tools, in the real sandbox."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from node.tasks.api.interface import Chat, ChatMessage, Spoken, TaskError, ToolCall
from node.tasks.gate import Gate, Place
from node.tasks.kinds.with_tools import NO_MORE, ToolEpisode, ToolsTask
from node.tasks.registry import open_task
from node.tasks.sandbox import workshop as sandbox

TASK = "tools:product:calls=3,output=100,memory_mb=128"


def opened(spec: str = TASK, directory: Path | None = None) -> ToolsTask:
    task = open_task(spec, directory=directory)
    assert isinstance(task, ToolsTask)
    return task


@pytest.fixture
def episode() -> Iterator[ToolEpisode]:
    task = opened()
    made = task.environment(task.problem(0), 0)
    yield made
    made.close()


def call(tool: str, **arguments: object) -> Spoken:
    return Spoken(content="", calls=(ToolCall(id="abcdefgh1", name=tool, arguments=arguments),))


def told(episode: ToolEpisode, spoken: Spoken) -> str:
    answer = episode.step(spoken)
    assert isinstance(answer, tuple)
    (message,) = answer
    assert (message.role, message.tool_call_id) == ("tool", "abcdefgh1")
    return message.content


def test_the_answer_of_the_tool_is_the_answer() -> None:
    task = opened()
    problem = task.problem(0)
    episode = task.environment(problem, 0)
    product = str(problem.prompt).removesuffix("=")
    assert told(episode, call("python", code=f"print({product})")) == problem.answer
    assert episode.step(Spoken(content=str(problem.answer))) is None
    assert episode.reward() == 1.0
    episode.close()


def test_an_answer_that_is_wrong_or_missing_is_worth_nothing(episode: ToolEpisode) -> None:
    assert episode.reward() == 0.0
    assert episode.step(Spoken(content="0")) is None
    assert episode.reward() == 0.0


def test_files_stay_from_python_to_shell(episode: ToolEpisode) -> None:
    assert told(episode, call("python", code="open('a', 'w').write('5')")) == "It printed nothing."
    assert told(episode, call("shell", command="cat a")) == "5"


def test_what_is_long_is_cut_with_a_sentence(episode: ToolEpisode) -> None:
    said = told(episode, call("python", code="for _ in range(50): print('x' * 1_000_000)"))
    assert said == "x" * 100 + "\nThe output is cut after 100 characters."


def test_what_fails_or_hangs_is_told_in_a_sentence() -> None:
    task = opened(f"{TASK},time_s=2")
    episode = task.environment(task.problem(0), 0)
    assert told(episode, call("shell", command="echo no; exit 3")) == "no\nExit code 3."
    hung = told(episode, call("python", code="print('x', flush=True)\nwhile True: pass"))
    assert hung == "x\nIt did not end within 2 s, and was ended."
    episode.close()


def test_a_fork_bomb_is_an_answer_like_any_other() -> None:
    task = opened(f"{TASK},time_s=2")
    episode = task.environment(task.problem(0), 0)
    code = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
    assert told(episode, call("python", code=code)) == "It did not end within 2 s, and was ended."
    assert told(episode, call("python", code="print(1)")) == "1"
    episode.close()


@pytest.mark.parametrize(
    ("spoken", "said"),
    [
        (call("browser", url="x"), "There is no tool 'browser'. Tools: python, shell."),
        (call("python"), "python takes one argument, code, which is text; it was given nothing."),
        (call("python", code=5), "python takes one argument, code, which is text; it was given code."),
        (call("shell", code="ls"), "shell takes one argument, command, which is text; it was given code."),
        (call("python", code="1", more=1), "python takes one argument, code, which is text; it was given code, more."),
    ],
    ids=["unknown", "nothing", "number", "other-name", "too-many"],
)  # fmt: skip
def test_a_call_that_cannot_be_run_is_told_why(episode: ToolEpisode, spoken: Spoken, said: str) -> None:
    assert told(episode, spoken) == said


def test_what_is_no_call_is_told_to_the_policy(episode: ToolEpisode) -> None:
    assert episode.step(Spoken(content="", malformed=("Call 1 is not JSON.",))) == "Call 1 is not JSON."
    both = replace(call("shell", command="echo hi"), malformed=("Call 2 is no object.",))
    assert told(episode, both) == f"hi\nCall 2 is no object.\n{NO_MORE}"


def test_calls_without_end_are_ended(episode: ToolEpisode) -> None:
    echo = call("shell", command="echo hi")
    assert [told(episode, echo) for _ in range(4)] == ["hi", "hi", f"hi\n{NO_MORE}", NO_MORE]
    assert episode.step(echo) is None
    assert episode.reward() == 0.0


def test_many_calls_in_one_turn_are_run_as_far_as_there_are_some(episode: ToolEpisode) -> None:
    one = call("shell", command="echo hi").calls[0]
    answer = episode.step(Spoken(content="", calls=(one,) * 64))
    assert isinstance(answer, tuple)
    assert [message.content for message in answer] == ["hi", "hi", "hi", *[NO_MORE] * 61]


def test_malformed_calls_count_too(episode: ToolEpisode) -> None:
    wrong = Spoken(content="", malformed=("Call 1 is not JSON.",))
    turns = 0
    while episode.step(wrong) is not None:
        turns += 1
    assert turns == 4


def test_a_sandbox_that_is_lost_is_told(episode: ToolEpisode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.Workshop, "run", lambda *_: sandbox.Lost())
    assert told(episode, call("python", code="1")).startswith("The sandbox was lost, with all files.")


def test_a_data_file_is_played_with_its_own_options_and_its_own_match(tmp_path: Path) -> None:
    rows = [{"question": f"What is {n} times {n}?", "final": f"#### {n * n}"} for n in range(20)]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    spec = "tools:jsonl:data.jsonl:prompt=question,answer=final,match=numeric,tools=shell,calls=2"
    task = opened(spec, tmp_path)
    gate = Gate(task)
    assert gate.finite is not None
    assert (gate.finite.size, gate.finite.num_held_out) == (18, 2)
    problem = gate.problem(Place(index=0))
    assert problem.chat is Chat.ALWAYS
    assert [tool.name for tool in problem.tools] == ["shell"]
    episode = task.environment(problem, 0)
    episode.step(Spoken(content=f"It is {str(problem.answer).removeprefix('#### ')}."))
    assert episode.reward() == 1.0


def test_a_warm_start_is_shown_what_the_tool_would_have_said() -> None:
    task = opened()
    shown = [task.demonstrate(index) for index in range(30)]
    calling = [one for one in shown if len(one) == 3]
    assert len(calling) == 12
    assert {one[0].content for one in shown if len(one) == 1} == {"?"}
    said, answered, last = calling[0]
    episode = task.environment(task.problem(0), 0)
    spoken = replace(call("python"), calls=said.tool_calls)
    answer = episode.step(spoken)
    assert answer == (answered,)
    assert last == ChatMessage(role="assistant", content=answered.content)
    episode.close()


def test_the_fingerprint_tells_tools_and_task_apart() -> None:
    specs = (TASK, f"{TASK},tools=python", "tools:product:digits=4,calls=3", "tools:arithmetic")
    assert len({opened(spec).fingerprint for spec in specs}) == len(specs)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("tools:guess", "guess has turns of its own. Name a task of one turn"),
        ("tools:tools:product", "has turns of its own"),
        ("tools", "needs SPEC: tools:SPEC"),
        ("tools:nothing", "there is no task 'nothing'"),
        ("tools:product:digit=3", "has no key 'digit' .did you mean 'digits'"),
        ("tools:product:calls=0", "calls=0: must lie in 1 to 256"),
    ],
    ids=["turns", "twice", "bare", "unknown", "inner-key", "own-key"],
)
def test_what_cannot_be_played_is_said(spec: str, why: str) -> None:
    with pytest.raises(TaskError, match=why):
        open_task(spec)


def test_where_there_is_no_bubblewrap_the_task_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    sandbox.require_workshop.cache_clear()
    with pytest.raises(TaskError, match=r"tools python and shell run in bubblewrap, .*apt-get install -y bubblewrap"):
        Gate(opened()).require()
