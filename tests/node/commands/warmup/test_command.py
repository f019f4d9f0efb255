"""A warm-up finds mistakes in its settings before it starts any process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from node.commands.warmup.command import require_out, thoughtless
from node.commands.warmup.conversations import Reader
from node.learner_role.training.supervised import Example, example_of
from node.runtime.errors import RunError, UsageError
from node.tasks.data_files.rows import Row
from node.tasks.tokenizer import TextCodec
from tests.support.chat_templates import QWEN3, write_family_model

THINKS = QWEN3.replace(
    "<|im_start|>assistant\n{% if enable_thinking", "<|im_start|>assistant\n<think>\n{% if enable_thinking"
)


def test_a_place_for_the_result(tmp_path: Path) -> None:
    require_out(tmp_path / "new" / "deep")
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for taken in ("file", "link"):
        with pytest.raises(UsageError, match="already exists"):
            require_out(tmp_path / taken)
    with pytest.raises(UsageError, match="file is a file"):
        require_out(tmp_path / "file" / "below")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_that_may_not_be_written_to(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RunError, match="is not writable"):
        require_out(tmp_path / "new")


@pytest.mark.parametrize(
    ("template", "said", "notes"),
    [(THINKS, "4", 1), (THINKS, "2 and 2\n</think>\n4", 0), (QWEN3, "4", 0)],
    ids=["no thought", "a thought", "no template that thinks"],
)
def test_examples_without_thoughts_behind_a_template_that_begins_one(
    tmp_path: Path, template: str, said: str, notes: int
) -> None:
    directory = write_family_model(tmp_path / "model", QWEN3)
    (directory / "chat_template.jinja").write_text(template)
    codec = TextCodec.load(directory)
    talk = [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": said}]
    passages = Reader(codec=codec).passages(Row(number=1, fields={"messages": talk}, names=("messages",)))
    examples: list[Example] = [example_of(passages)]
    assert len(thoughtless(examples, codec)) == notes
    assert thoughtless([], codec) == []
