"""Apply the operator's settings for speaking to a model: prompts, notes and stop ids of the tasks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from node.config.swarm_config import LearnSection, ModelSection, SwarmConfig, SwarmSection, TaskSection
from node.tasks.api.interface import TaskError
from node.tasks.task_suite import TaskSuite, open_task_suite
from node.tasks.ways.model_ways import ModelWays, read_template, read_ways
from tests.support.chat_templates import MISTRAL, QWEN3, write_family_model


def open_suite(base: Path, template: str, **ways: object) -> TaskSuite:
    write_family_model(base / "model", template)
    rows = "".join(json.dumps({"prompt": f"{n}+{n}=", "answer": str(2 * n)}) + "\n" for n in range(40))
    (base / "rows.jsonl").write_text(rows)
    config = SwarmConfig(
        swarm=SwarmSection(name="n"),
        model=ModelSection(directory=str(base / "model"), **ways),  # type: ignore[arg-type]
        task=TaskSection(spec="jsonl:rows.jsonl:chat=auto", held_out=4),
        learn=LearnSection(steps=1),
    )
    return open_task_suite(config, base)


def test_a_section_that_says_nothing_changes_nothing() -> None:
    assert read_ways(ModelSection(directory="m")) == ModelWays()


def test_prompts_are_written_as_the_operator_has_it(tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text(QWEN3.replace("<think>\\n\\n</think>", "<think></think>"))
    suite = open_suite(
        tmp_path,
        QWEN3,
        chat_template=str(tmp_path / "own.jinja"),
        chat_template_kwargs={"enable_thinking": False},
        system_prompt="Be brief.",
        stop=["<|endoftext|>"],
    )
    prompt = suite.codec.decode(suite.next_prompt().tokens)
    assert prompt.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n")
    assert prompt.endswith("<|im_start|>assistant\n<think></think>\n\n")
    assert suite.codec.decode(suite.held_out[0].prompt).startswith("<|im_start|>system\nBe brief.")
    assert len(suite.stop_ids) == 2


def test_a_system_prompt_that_the_template_refuses_is_told_at_the_start(tmp_path: Path) -> None:
    open_suite(tmp_path, MISTRAL)
    with pytest.raises(TaskError, match=r"fails on messages of role system .*\. All 64 prompts"):
        open_suite(tmp_path, MISTRAL, system_prompt="Be brief.")


def test_what_is_worth_knowing_is_among_the_notes(tmp_path: Path) -> None:
    text = QWEN3.replace("<|im_start|>", "<|endoftext|>")
    (tmp_path / "own.jinja").write_text(text.replace("<|im_end|>", "<think>"))
    suite = open_suite(tmp_path, QWEN3, chat_template=str(tmp_path / "own.jinja"), stop=["a"])
    assert [name for name, note in suite.notes if "[model] stop" in note] == ["jsonl"]


@pytest.mark.parametrize(("content", "why"), [(None, "cannot be read: No such file"), (b"\xff", "UTF-8")])
def test_a_template_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, why: str) -> None:
    if content is not None:
        (tmp_path / "own.jinja").write_bytes(content)
    with pytest.raises(TaskError, match=rf"^\[model\] chat_template: .*own\.jinja.*{why}"):
        read_template(tmp_path / "own.jinja")
