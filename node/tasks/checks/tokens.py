"""Check prompts as token ids, with the author's model or a small tokenizer with one token for each character."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from node.tasks.api.interface import TaskError
from node.tasks.checks.trial import LeftOut, Trial
from node.tasks.tokenizer import TextCodec, write_character_tokenizer

SMALL = Path("the demo's small model")
"""The name of the small tokenizer's directory in messages."""


def small_codec() -> TextCodec:
    """Return the tokenizer of the small model that `volery new task` makes: lower case, digits, some signs."""
    with tempfile.TemporaryDirectory() as directory:
        write_character_tokenizer(Path(directory))
        return replace(TextCodec.load(Path(directory)), directory=SMALL)


def written(trial: Trial, encode: Callable[[], tuple[int, ...]]) -> tuple[int, ...]:
    """Return what `encode` returns. If a token is missing, raises LeftOut with the small tokenizer, else TaskError."""
    try:
        return encode()
    except TaskError as error:
        if trial.own_model:
            raise
        raise LeftOut(f"{error}. Name the directory of your model to check this") from None


def encodes(trial: Trial) -> Iterator[str]:
    """Check that every prompt can be written in tokens."""
    for index, problem in enumerate(trial.problems()):
        try:
            written(trial, partial(trial.codec.encode_prompt, problem))
        except TaskError as error:
            yield f"index {index}: {error}"
