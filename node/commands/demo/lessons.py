"""Define what the demo can teach: for each lesson the task, the small model that begins, and how much it is trained.

`reverse` is one turn of letters. The small model of `tools` has a tool: it can multiply in a sandbox, but not by
itself. The program that runs is the same.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from learner.monitoring.eval_scores import Scores
from node.commands.demo.recipe import Recipe
from node.learner_role.training.warm_start import TINY_QWEN3, WarmStartTerms
from node.tasks.tokenizer import DEMO_ALPHABET, write_character_tokenizer

LessonName = Literal["reverse", "tools"]


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """A task and the model that learns it.

    Args:
        task: spec of the task.
        does, things: words for "The model {does} 48% of 512 {things}".
        held_out: prompts for evaluation; `warm_held_out` of them measure the warm start.
        words: tokens of several characters, besides those of `alphabet`.
        chat_template: set if the task has conversations.
    """

    task: str
    does: str
    things: str
    held_out: int
    warm_held_out: int
    max_new_tokens: int
    recipe: Recipe
    terms: WarmStartTerms = field(default_factory=WarmStartTerms)
    max_turns: int = 1
    positions: int = 64
    alphabet: str = DEMO_ALPHABET
    words: tuple[str, ...] = ()
    chat_template: str | None = None

    @property
    def model(self) -> Mapping[str, Any]:
        """Return the model's configuration."""
        return {**TINY_QWEN3, "max_position_embeddings": self.positions}

    def share(self, scores: Scores) -> str:
        """Return in words how much the model gets right, by the accuracy that the warm start aims at."""
        if self.terms.by == "greedy":
            return f"{scores.greedy:.0%} (greedy)"
        return f"{scores.sampled:.0%} (sampled)"

    def write_tokenizer(self, directory: Path) -> None:
        """Write the model's tokenizer into `directory`."""
        write_character_tokenizer(directory, self.alphabet, words=self.words, chat_template=self.chat_template)


REVERSE = Lesson(
    task="reverse:letters=6",
    does="reverses",
    things="words",
    held_out=512,
    warm_held_out=512,
    # Six letters, the end of sequence, and one spare token.
    max_new_tokens=8,
    recipe=Recipe(),
)

CALL, END_OF_CALL = '{"name": "python", "arguments": {"code": "print(', ')"}}'
"""A call of the tool without the expression to print. Each part is one token, as the marks of a call are in larger
models. So the small model has to learn only when to call, and what to copy."""

TEMPLATE = """\
{%- for tool in tools or [] %}{{ tool.function.name }}:{% endfor -%}
{%- for message in messages -%}
{%- if message.role == "assistant" %}{{ message.content }}{{ eos_token }}
{%- elif message.role == "tool" %}[{{ message.content }}]
{%- else %}{{ message.content }}
{%- endif -%}
{%- endfor -%}
"""
"""The shortest template that works: the tool's name, the product, and in brackets what the tool printed."""

TOOLS = Lesson(
    task="tools:product:digits=2,tools=python,calls=2",
    does="solves",
    things="products",
    held_out=128,
    # Each evaluation needs a sandbox or two of 25 ms.
    warm_held_out=96,
    # The beginning of a call, five characters, its end, the end of sequence, and some spare tokens.
    max_new_tokens=12,
    recipe=Recipe(steps=100, prompts=24, group=8, warmup_steps=5, decay_steps=150),
    # Two of five examples call the tool, so that at most two of five samples do at the start.
    terms=WarmStartTerms(by="sampled", low=0.3, high=0.48, first_block=100, fine_block=20, moving=0.04),
    max_turns=4,
    positions=128,
    alphabet=string.ascii_lowercase + string.digits + ' :*=[]()?."',
    words=(CALL, END_OF_CALL, "python"),
    chat_template=TEMPLATE,
)

LESSONS: Mapping[LessonName, Lesson] = {"reverse": REVERSE, "tools": TOOLS}
