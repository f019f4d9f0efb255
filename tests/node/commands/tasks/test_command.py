"""Choose the task to show, with its model and settings: from a spec, a swarm.toml, or both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from node.commands.tasks.command import check, setting_of, show
from node.runtime.errors import UsageError
from node.tasks.api.interface import TaskError
from node.tasks.tokenizer import write_character_tokenizer

CONFIG = """
[swarm]
name = "n"

[model]
directory = "model"

[task]
{task}
held_out = {held_out}

[learn]
steps = 1
seed = 7
max_new_tokens = 40
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without a swarm.toml."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_swarm(directory: Path, task: str = 'spec = "reverse:letters=3"', held_out: int = 4) -> Path:
    """A swarm.toml below `directory`, with a model that takes 48 tokens."""
    path = directory / "swarm.toml"
    directory.mkdir(exist_ok=True)
    path.write_text(CONFIG.format(task=task, held_out=held_out), encoding="utf-8")
    write_character_tokenizer(directory / "model")
    config = {"vocab_size": 64, "max_position_embeddings": 48}
    (directory / "model" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


def shown(spec: str = "", *, config: Path | None = None, model: Path | None = None, count: int = 2) -> str:
    return show(spec, config=config, model=model, count=count, as_json_text=False).text


def as_values(spec: str = "", *, config: Path | None = None, count: int = 2) -> list[dict[str, object]]:
    told = json.loads(show(spec, config=config, model=None, count=count, as_json_text=True).text)
    tasks: list[dict[str, object]] = told["tasks"]
    return tasks


def test_a_spec_alone_is_shown_with_the_small_model(here: Path) -> None:
    told = shown("reverse:letters=3", count=1)
    assert "tokenizer the demo's small model, one token for each of 60 characters: a-z, 0-9" in " ".join(told.split())
    assert "Problem 0: 8 tokens" in told
    assert "Held-out problem 0: 8 tokens" in told
    assert "The reference answer has reward 1, an empty one 0." in told


def test_nothing_is_named_and_nothing_is_here(here: Path) -> None:
    with pytest.raises(UsageError, match=r"There is no swarm\.toml here\. Name a task, for example: volery tasks"):
        shown()


def test_a_configuration_here_is_taken(here: Path) -> None:
    write_swarm(here)
    [task] = as_values()
    assert task["spec"] == "reverse:letters=3"
    assert task["fingerprint"] == "reverse,alphabet=26,letters=3/7", "with the seed of the run"
    assert task["model"] == str(here / "model")


def test_another_task_with_the_settings_of_a_configuration(here: Path) -> None:
    path = write_swarm(here / "elsewhere")
    [task] = as_values("guess", config=path)
    assert task["fingerprint"] == "guess,numbers=10,tries=4/7"
    assert as_values("guess", config=path.parent) == [task], "its directory will do"


def test_a_model_that_is_named_counts_more(here: Path) -> None:
    write_swarm(here)
    write_character_tokenizer(here / "other")
    assert f"tokenizer    {here / 'other'}" in shown(model=here / "other")


def test_a_spec_and_a_model_need_no_configuration(here: Path) -> None:
    (here / "swarm.toml").write_text("nonsense", encoding="utf-8")
    write_character_tokenizer(here / "other")
    assert "reverse:letters=3" in shown("reverse:letters=3", model=here / "other")
    with pytest.raises(UsageError, match=r"swarm\.toml"):
        shown("reverse:letters=3")


def test_paths_of_a_spec_begin_where_the_configuration_lies(here: Path) -> None:
    path = write_swarm(here / "elsewhere", 'spec = "jsonl:data.jsonl:held_out=0.5"')
    rows = [{"prompt": f"say {number}", "answer": str(number)} for number in range(4)]
    (path.parent / "data.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    [task] = as_values(config=path)
    assert task["size"] == 2
    assert task["num_held_out"] == 2


def test_all_tasks_of_a_mixture_are_shown(here: Path) -> None:
    path = write_swarm(here, 'mixture = [{ spec = "reverse" }, { spec = "sort" }]')
    assert [task["name"] for task in as_values(config=path)] == ["reverse", "sort"]


def test_a_prompt_that_leaves_no_room_is_told(here: Path) -> None:
    write_swarm(here, 'spec = "reverse:letters=12"')
    told = " ".join(shown().split())
    assert "17 tokens. With [learn] max_new_tokens = 40 that is more than the 48 tokens that are allowed" in told
    assert "so training skips the problem" in told


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([("say a", "A"), ("say b", "B")], 1),
        ([("SAY A", "a"), ("SAY B", "b")], 1),
        ([("say a", "a"), ("say b", "B")], 0),
    ],
)
def test_a_task_of_which_the_model_can_learn_nothing_ends_with_one(
    here: Path, rows: list[tuple[str, str]], code: int
) -> None:
    path = write_swarm(here, 'spec = "jsonl:data.jsonl:held_out=0"')
    lines = [json.dumps({"prompt": prompt, "answer": answer}) for prompt, answer in rows]
    (here / "data.jsonl").write_text("\n".join(lines), encoding="utf-8")
    printed = show("", config=path, model=None, count=2, as_json_text=False)
    assert printed.code == code
    assert ("cannot write this answer" in printed.text) == (rows[1][1] == "B")
    path.unlink()
    without = show("jsonl:data.jsonl:held_out=0", config=None, model=None, count=2, as_json_text=False)
    assert without.code == 0, "the small tokenizer stands for a model that is not named"


def test_where_nothing_is_held_out_nothing_of_it_is_shown(here: Path) -> None:
    write_swarm(here, held_out=0)
    assert "Held-out problem" not in shown()


def test_a_model_that_cannot_be_read_is_named_with_its_option(here: Path) -> None:
    with pytest.raises(
        UsageError, match=r"^--model: nowhere does not exist\. Name a directory that save_pretrained wrote"
    ):
        shown("reverse", model=Path("nowhere"))
    write_swarm(here)
    (here / "model" / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(TaskError, match=r"^swarm\.toml: \[model\] directory: .*tokenizer\.json"):
        shown()


def test_a_key_of_the_configuration_is_named_with_its_file(here: Path) -> None:
    path = write_swarm(here)
    path.write_text(
        CONFIG.format(task='spec = "reverse"', held_out=4).replace(
            'directory = "model"', 'directory = "model"\nchat_template = "none.jinja"'
        ),
        encoding="utf-8",
    )
    with pytest.raises(UsageError, match=r"^swarm\.toml: \[model\] chat_template: .*none\.jinja"):
        shown()


def test_a_sound_task_ends_with_zero_and_a_broken_one_with_one(here: Path) -> None:
    (here / "broken_for_check.py").write_text(
        "from volery import Problem\n"
        "class Broken:\n"
        "    name, levels, fingerprint = 'broken', 1, 'broken'\n"
        "    def __init__(self, arguments): pass\n"
        "    def problem(self, index): return Problem(prompt='say a', answer='a')\n"
        "    def held_out(self, index): return Problem(prompt='say a', answer='a')\n"
        "    def reward(self, problem, completion): return float(completion.text == 'a')\n",
        encoding="utf-8",
    )
    sound, broken = (checked(spec) for spec in ("reverse", "python:broken_for_check:Broken"))
    assert sound == (0, "All 9 checks passed.")
    assert broken == (1, "1 of 9 checks failed.")


def checked(spec: str) -> tuple[int, str]:
    """The exit code, and the last line."""
    answer = check(spec, config=None, model=None, count=4, max_problem_s=None, max_reward_s=None, as_json_text=False)
    return answer.code, answer.text.splitlines()[-1]


def test_what_was_checked_as_values(here: Path) -> None:
    answer = check(
        "reverse", config=None, model=None, count=4, max_problem_s=None, max_reward_s=1000.0, as_json_text=True
    )
    [task] = json.loads(answer.text)["tasks"]
    assert task["passed"] is True
    assert {one["name"]: one["outcome"] for one in task["results"]}["times"] == "holds"


def test_a_configuration_without_a_task(here: Path) -> None:
    text = (
        CONFIG.format(task="", held_out=1).replace("held_out = 1", "")
        + '\n[offline]\npath = "logs.jsonl"\nshare = 1.0\n'
    )
    (here / "swarm.toml").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=r"\[task\] names no task"):
        setting_of("", config=None, model=None)


def test_without_a_configuration_a_small_model_gets_the_budget_that_init_would_give_it(here: Path) -> None:
    write_swarm(here / "elsewhere")
    told = shown("reverse:letters=12", model=here / "elsewhere" / "model")
    assert "training skips" not in told
    assert "17 tokens" in told


def test_what_a_start_says_of_the_chat_template_is_a_note(here: Path) -> None:
    write_swarm(here / "elsewhere")
    template = "{% for m in messages %}{{ m.content }}<pad>{% endfor %}"
    (here / "elsewhere" / "model" / "chat_template.jinja").write_text(template, encoding="utf-8")
    (here / "t.jsonl").write_text('{"prompt": "a", "answer": "b"}\n', encoding="utf-8")
    told = shown("jsonl:t.jsonl:held_out=0", model=here / "elsewhere" / "model")
    assert "ends the assistant's messages with <pad>" in " ".join(told.split())
