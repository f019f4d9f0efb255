"""A warm-up finds mistakes in its settings before it starts any process."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from node.commands.warmup.command import next_swarm, plan, require_out, thoughtless
from node.commands.warmup.conversations import Reader
from node.commands.warmup.options import Wanted
from node.learner_role.training.supervised import Example, example_of
from node.runtime.errors import RunError, UsageError
from node.tasks.data_files.rows import Row
from node.tasks.tokenizer import TextCodec, write_character_tokenizer
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


@pytest.mark.parametrize(("width", "rate"), [(64, 1e-3), (100_000_000, 2e-5)])
def test_the_rate_suits_the_models_size(tmp_path: Path, width: int, rate: float) -> None:
    write_character_tokenizer(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "qwen3", "vocab_size": 64}))
    header = json.dumps({"norm.weight": {"dtype": "BF16", "shape": [width], "data_offsets": [0, 2 * width]}}).encode()
    with (tmp_path / "model" / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 2 * width)  # a hole: it takes no room on disk
    config = tmp_path / "swarm.toml"
    config.write_text(
        '[swarm]\nname = "n"\n[model]\ndirectory = "model"\n[task]\nspec = "sort"\n[learn]\nsteps = 1\n'
        "max_new_tokens = 8\n"
    )
    assert plan(Wanted(config=config, out=tmp_path / "out", steps=9)).schedule.rate == rate


def test_the_next_swarm_is_one_that_init_can_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "my-swarm" / "swarm.toml"
    config.parent.mkdir()
    monkeypatch.chdir(tmp_path)
    assert next_swarm(Path("my-swarm/swarm.toml")) == "my-swarm-2"
    (tmp_path / "my-swarm-2").mkdir()
    assert next_swarm(config) == "my-swarm-3"
    monkeypatch.chdir(config.parent)
    assert next_swarm(Path("swarm.toml")) == "../my-swarm-3"
