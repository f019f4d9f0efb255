"""What `volery init` prints: what was written, what is missing, and lines that can be typed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from node.commands.init.data_spec import DataSpec
from node.commands.init.named_model import NamedModel
from node.commands.init.summary import Summary

HERE = NamedModel(directory=Path("Qwen3-0.6B"))
AWAY = NamedModel(directory=Path("my swarm/Qwen3-0.6B"), fetched_from="Qwen/Qwen3-0.6B")
DATA = DataSpec(spec="jsonl:a.jsonl:match=exact", why="answers are texts", notes=("3 problems",), warning="Long ones.")


def summary(model: NamedModel | None = None, data: DataSpec | None = None, aside: Path | None = None) -> Summary:
    config = Path("my swarm/swarm.toml")
    return Summary(config=config, model=model, data=data, aside=aside, again="volery init 'my swarm' --force")


@pytest.mark.parametrize(
    ("model", "data", "missing"),
    [
        (None, None, "[model] directory and [task] spec"),
        (None, DATA, "[model] directory"),
        (HERE, None, "[task] spec and [learn] steps"),
        (AWAY, DATA, "[learn] steps"),
    ],
)
def test_the_last_line_says_what_to_set_and_starts(
    model: NamedModel | None, data: DataSpec | None, missing: str
) -> None:
    done = summary(model, data)
    last = done.text.splitlines()[-1]
    assert last == f"Set {missing} in it, then: volery learn 'my swarm/swarm.toml'"
    assert shlex.split(done.start) == ["volery", "learn", "my swarm/swarm.toml"]


def test_a_model_that_is_not_here_gets_its_line_and_a_word_on_its_values() -> None:
    lines = summary(AWAY).text.splitlines()
    assert f"  {AWAY.fetch}" in lines
    assert "  volery init 'my swarm' --force" in lines
    assert not any("hf download" in line or "--force" in line for line in summary(HERE).text.splitlines())


def test_what_was_found_in_the_data_is_told() -> None:
    lines = summary(HERE, DATA).text.splitlines()
    assert lines[0] == "Wrote my swarm/swarm.toml, for the model in Qwen3-0.6B."
    assert lines[1:4] == [
        '[task] spec = "jsonl:a.jsonl:match=exact", because answers are texts.', "  3 problems", "Long ones.",
    ]  # fmt: skip


def test_an_old_file_is_named() -> None:
    assert summary(aside=Path("swarm.toml.old")).text.startswith(
        "Wrote my swarm/swarm.toml. The old file is swarm.toml.old."
    )


def test_programs_get_the_same() -> None:
    values = summary(AWAY, DATA).values
    assert (values["fetch"], values["task"], values["set"]) == (AWAY.fetch, DATA.spec, ["[learn] steps"])
    assert summary().values["fetch"] is None
