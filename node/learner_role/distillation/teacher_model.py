"""Check whether a model can be the teacher of a policy: same vocabulary, and sequences that are long enough.

A teacher gives the probability of a token by its id. So each id must be the same text in both models. It does not
matter how text is split into tokens, because nothing is encoded for the teacher. A larger model of a family often has a
larger vocabulary size than its tokenizer has tokens (padding for the hardware), and can still be a teacher.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from learner.artifacts.model_directory import BadModel, read_directory
from learner.artifacts.model_limits import positions_in, text_part
from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import NotText, parse_json
from node.config.preflight import require_model
from node.config.swarm_config import SwarmConfig
from node.runtime.errors import UsageError
from node.tasks.task_suite import TaskSuite

KEY = "[distill] teacher"
TOKENIZER, CONFIG = "tokenizer.json", "config.json"

SAME_FAMILY = "Use a teacher of the policy's own family, or start the policy from a model of the teacher's family."


def require_teacher(config: SwarmConfig, suite: TaskSuite) -> None:
    """Raise UsageError if the teacher cannot score the policy's completions. Does nothing without a teacher."""
    if config.distill.teacher is None:
        return
    teacher, policy = Path(config.distill.teacher), Path(config.model.directory)
    require_model(teacher, KEY)
    require_vocabulary(teacher, policy)
    longest = suite.limits.tokens if suite.has_turns else suite.longest_prompt + config.learn.max_new_tokens
    require_positions(teacher, longest)


def require_vocabulary(teacher: Path, policy: Path) -> None:
    """Raise UsageError if a token id of the policy is another token in the teacher, or none."""
    theirs, ours = texts_of(teacher), texts_of(policy)
    other = next((number for number, text in sorted(ours.items()) if theirs.get(number) != text), None)
    if other is not None:
        there = repr(theirs[other]) if other in theirs else "no token"
        raise UsageError(
            f"{KEY}: {teacher} has another vocabulary than the policy in {policy}: the id {other} is {ours[other]!r} "
            f"in the policy and {there} in the teacher. {SAME_FAMILY}"
        )
    size = text_part(_object(teacher / CONFIG)).get("vocab_size")
    if isinstance(size, int) and ours and size <= max(ours):
        raise UsageError(
            f"{KEY}: {teacher} has {size} token ids (vocab_size), but the policy has an id {max(ours)}. {SAME_FAMILY}"
        )


def require_positions(teacher: Path, longest: int) -> None:
    """Raise UsageError if the teacher cannot read sequences of `longest` tokens."""
    limit = positions_in(_object(teacher / CONFIG))
    if limit is not None and limit.tokens < longest:
        why = f" {limit.why}." if limit.why else ""
        raise UsageError(
            f"{KEY}: {teacher} reads sequences of at most {limit.tokens} tokens, but those of this run may have "
            f"{longest}.{why} Lower [learn] max_new_tokens or max_episode_tokens, or use another teacher."
        )


def config_of(directory: Path) -> Mapping[str, Any]:
    """Return a teacher's config.json. Raises UsageError."""
    return _object(directory / CONFIG)


def parameters_of(directory: Path) -> int:
    """Return the number of a teacher's parameters.

    If the weights are quantised, or cannot be read here, it is estimated from their files at two bytes each.
    """
    try:
        return sum(math.prod(shape) for shape in read_directory(directory).shapes.values())
    except BadModel:
        return sum(file.stat().st_size for file in directory.glob("*.safetensors")) // 2


def texts_of(directory: Path) -> dict[int, str]:
    """Return the text of each token id in a directory's tokenizer.json, added tokens among them. Raises UsageError."""
    found = _object(directory / TOKENIZER)
    model = found.get("model")
    entries = model.get("vocab") if isinstance(model, dict) else None
    texts: dict[int, str] = {}
    if isinstance(entries, dict):
        texts = {number: text for text, number in entries.items() if isinstance(number, int)}
    elif isinstance(entries, list):  # Unigram: a list of [text, score]
        texts = {number: str(entry[0]) for number, entry in enumerate(entries) if isinstance(entry, list) and entry}
    for token in found.get("added_tokens") or []:
        if isinstance(token, dict) and isinstance(token.get("id"), int):
            texts[token["id"]] = str(token.get("content"))
    if not texts:
        raise UsageError(
            f"{KEY}: {directory / TOKENIZER} has no tokens, so the vocabularies of teacher and policy cannot be "
            "compared. Copy the tokenizer's files from where the model came from."
        )
    return texts


def _object(path: Path) -> Mapping[str, Any]:
    try:
        value = parse_json(read_file(path))
    except (OSError, NotText, json.JSONDecodeError, ValueError) as error:
        raise UsageError(f"{KEY}: {path} cannot be read: {error}. Copy it from where the model came from.") from None
    if not isinstance(value, dict):
        raise UsageError(f"{KEY}: {path} holds no JSON object. Copy it from where the model came from.")
    return value
