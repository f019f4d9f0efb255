"""Find the token ids that end a completion: those of the model's files, and those that the operator adds.

A lease carries token ids, and every engine ends a completion at the first of them. So an audit finds the same end. A
stop string is therefore a string that is one token, whose id ends a completion. A string of several tokens is an error,
because a text can be split into tokens in other ways than the tokenizer's.

Invariants:

- The ids are a pure function of the files and of what the operator says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from node.tasks.api.interface import TaskError
from node.tasks.tokenizer_files import read_object

MAX_SHOWN = 8
"""Tokens of a stop string to show in a message."""


@dataclass(frozen=True, kw_only=True)
class Stops:
    """Ids that end a completion. `notes`: for the operator, each a clause."""

    ids: frozenset[int]
    notes: tuple[str, ...] = ()


def declared_stop_ids(directory: Path) -> frozenset[int]:
    """Return eos_token_id, a number or a list, of generation_config.json and config.json together. Raises TaskError."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        declared = read_object(directory / name).get("eos_token_id")
        ids = declared if isinstance(declared, list) else [] if declared is None else [declared]
        if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in ids):
            raise TaskError(f"{directory / name}: eos_token_id is neither a token id nor a list of them: {declared!r}")
        found.update(ids)
    return frozenset(found)


def stops_of(tokenizer: Tokenizer, stop: Sequence[str]) -> Stops:
    """Return the ids of stop strings. Raises TaskError for a string that is not exactly one token."""
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    ids = {found for text in stop if text in added and (found := tokenizer.token_to_id(text)) is not None}
    if not (others := [text for text in stop if text not in added]):
        return Stops(ids=frozenset(ids))
    known = sorted(tokenizer.get_vocab().values())
    texts = dict(zip(known, tokenizer.decode_batch([[one] for one in known], skip_special_tokens=False), strict=True))
    notes = []
    for text in others:
        if not (exact := {number for number, shown in texts.items() if shown == text}):
            raise TaskError(_several(tokenizer, text))
        ids |= exact
        if more := [one for one, shown in texts.items() if text in shown and one not in exact and shown not in added]:
            shown = texts[min(more, key=lambda number: (len(texts[number]), number))]
            notes.append(
                f"[model] stop = {text!r} ends a completion where it is a token of its own, but {len(more)} other "
                f"tokens contain it, such as {shown!r}: these do not. Add their ids to [model] stop_ids if they should"
            )
    return Stops(ids=frozenset(ids), notes=tuple(notes))


def _several(tokenizer: Tokenizer, text: str) -> str:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    tokens = [tokenizer.decode([one], skip_special_tokens=False) for one in ids]
    shown = ", ".join(map(repr, tokens[:MAX_SHOWN])) + (", ..." if len(tokens) > MAX_SHOWN else "")
    return (
        f"[model] stop = {text!r} is not a single token of this tokenizer (it writes {shown}). A lease ends "
        "completions at single tokens, so that every engine and every audit finds the same end. Name a string that is "
        "one token, or give ids in [model] stop_ids."
    )
