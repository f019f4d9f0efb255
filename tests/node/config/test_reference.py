"""Describe every key once, for files and for pages."""

from __future__ import annotations

import tomllib
from typing import Any

import msgspec
import pytest

from node.config.common import Section, default_of
from node.config.node_config import NodeConfig
from node.config.reference import brief, descriptions, example, to_toml, toml_value
from node.config.swarm_config import (
    LearnSection,
    MixtureTask,
    ModelSection,
    SwarmConfig,
    SwarmSection,
    TaskSection,
    TrustSection,
)

SECTIONS: list[type[Section]] = [
    field.type
    for kind in (SwarmConfig, NodeConfig)
    for field in msgspec.structs.fields(kind)
    if isinstance(field.type, type) and issubclass(field.type, Section)
]
each_section = pytest.mark.parametrize("kind", SECTIONS, ids=lambda kind: kind.__name__)


@each_section
def test_every_key_is_described_in_a_sentence_that_a_file_has_room_for(kind: type[Section]) -> None:
    assert list(descriptions(kind)) == [key.name for key in msgspec.structs.fields(kind)]
    for name, about in descriptions(kind).items():
        first = brief(about)
        assert about[0].isupper() or about.startswith("kappa: "), name
        assert about[-1] == ".", name
        assert len(first) <= 92, name
        assert "](" not in first, "a file has no links"
        assert first.count('"') % 2 == first.count("`") % 2 == 0, name


@each_section
def test_what_is_unset_has_an_example_that_may_be_written(kind: type[Section]) -> None:
    for key in msgspec.structs.fields(kind):
        if default_of(key) is None:
            shown = tomllib.loads(f"x = {toml_value(example(key))}")["x"]
            assert msgspec.convert(shown, key.type) is not None


def test_a_configuration_is_written_as_a_file_that_says_the_same() -> None:
    mixture = [MixtureTask(spec="sort:digits=3", weight=2.5), MixtureTask(spec="reverse", name='a "b" \\ \x7f ü')]
    config = SwarmConfig(
        swarm=SwarmSection(name="n"),
        model=ModelSection(
            directory="m",
            chat_template_kwargs={"enable_thinking": False, "a b": {"tone": ["dry", 1.5]}},
            system_prompt='Be "brief".\nBe kind.',
            stop=["<|im_end|>", "\n"],
        ),
        task=TaskSection(mixture=mixture),
        learn=LearnSection(steps=1),
        trust=TrustSection(audits=False),
    )
    text = to_toml(config, {("learn", "steps"): "(set this)"})
    assert msgspec.convert(tomllib.loads(text), SwarmConfig) == config
    assert "steps = 1                  # (set this) Training steps" in text
    assert '# spec = "reverse:letters=6"' in text, "an unset key must be a comment"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1e-6, "1e-6"), (1e-12, "1e-12"), (0.0, "0.0"), (True, "true"), ([1, 2], "[1, 2]"), ("\x7f", '"\\u007f"')],
)
def test_values_are_spelt_as_toml_has_them(value: Any, shown: str) -> None:
    assert toml_value(value) == shown
    assert tomllib.loads(f"x = {shown}")["x"] == value
