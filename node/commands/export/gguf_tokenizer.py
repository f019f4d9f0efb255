"""Read a model's tokenizer for a GGUF file: its tokens, merges, special tokens and chat template.

llama.cpp splits text by built-in rules, which have names (`tokenizer.ggml.pre`). A file with the wrong name loads and
answers, but splits prompts differently from the training. So a tokenizer is accepted only if its tokenizer.json has
exactly the parts that a name stands for. Each was compared with llama.cpp's tokens (`tests/integration/test_gguf.py`).
The names are those of llama.cpp's convert_hf_to_gguf.py.

Pure, except for reading files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import parse_json
from node.runtime.errors import UsageError

TOKENIZER = "tokenizer.json"

MAX_TOKENIZER_BYTES = 256 << 20
"""Most bytes of a tokenizer.json: those with 256,000 tokens have 35 MB."""

_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"

QWEN2 = rf"{_ENDINGS}|{_WORD}|\p{{N}}|{_REST}"
LLAMA3 = rf"{_ENDINGS}|{_WORD}|\p{{N}}{{1,3}}|{_REST}"

_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
_RAW_BYTES = {**_BYTES, "use_regex": False}


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _sequence(*parts: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(parts)}


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How text becomes tokens, as in tokenizer.json, and llama.cpp's name for that."""

    name: str
    pre_tokenizer: Mapping[str, Any]
    ignore_merges: bool = False
    normalizers: tuple[str | None, ...] = (None,)


RULES = (
    Rules(name="qwen2", pre_tokenizer=_sequence(_split(QWEN2), _RAW_BYTES), normalizers=(None, "NFC")),
    Rules(name="llama-bpe", pre_tokenizer=_sequence(_split(LLAMA3), _RAW_BYTES), ignore_merges=True),
    Rules(name="smollm", pre_tokenizer=_sequence({"type": "Digits", "individual_digits": True}, _BYTES)),
    Rules(name="gpt-2", pre_tokenizer=_BYTES),
)


class TokenType(IntEnum):
    """The type that llama.cpp gives a token: the numbers of `gguf.TokenType`."""

    NORMAL = 1
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The tokens of a model and their types, by id, the merges, and the name of the rules."""

    rules: str
    tokens: tuple[str, ...]
    types: tuple[TokenType, ...]
    merges: tuple[str, ...]


def read_vocabulary(directory: Path, vocab_size: int) -> Vocabulary:
    """Return the tokenizer in `directory`, for a model with `vocab_size` rows.

    Raises UsageError if llama.cpp would split text differently, or might; OSError.
    """
    try:
        found = parse_json(read_file(directory / TOKENIZER, MAX_TOKENIZER_BYTES))
        return _vocabulary(found, vocab_size)
    except FileNotFoundError:
        raise UsageError(
            f"--gguf: the model has no {TOKENIZER}, and no other kind of tokenizer is supported. {BY_HAND}"
        ) from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(f"--gguf: the model's {TOKENIZER} has an unknown form ({error!r}). {BY_HAND}") from None


BY_HAND = "Omit --gguf, and convert the directory with llama.cpp's convert_hf_to_gguf.py, which supports more models."


def _vocabulary(found: Mapping[str, Any], vocab_size: int) -> Vocabulary:
    model, added = found["model"], list(found["added_tokens"])
    rules = _rules(found, model)
    if odd := [one["content"] for one in added if one["lstrip"] or one["rstrip"] or one["single_word"]]:
        raise UsageError(f"--gguf: the token {odd[0]!r} strips spaces around it, which llama.cpp does not. {BY_HAND}")
    by_id = {number: token for token, number in model["vocab"].items()}
    by_id |= {one["id"]: one["content"] for one in added}
    if beyond := [number for number in by_id if not 0 <= number < vocab_size]:
        raise UsageError(
            f"--gguf: the tokenizer has an id {max(beyond)}, but the model has only {vocab_size} rows. {BY_HAND}"
        )
    special = {one["id"]: one["special"] or _looks_special(one["content"]) for one in added}
    types = [
        (TokenType.CONTROL if special[number] else TokenType.USER_DEFINED)
        if number in special
        else (TokenType.NORMAL if number in by_id else TokenType.UNUSED)
        for number in range(vocab_size)
    ]
    return Vocabulary(
        rules=rules.name,
        tokens=tuple(by_id.get(number, f"[PAD{number}]") for number in range(vocab_size)),
        types=tuple(types),
        merges=tuple(one if isinstance(one, str) else " ".join(_pair(one)) for one in model["merges"]),
    )


def _pair(merge: Any) -> tuple[str, str]:
    left, right = merge
    if " " in left or " " in right:
        raise ValueError("a merge contains a space")
    return left, right


def _looks_special(token: str) -> bool:
    """Return whether llama.cpp's converter treats it as a control token, even if the tokenizer does not."""
    return token.startswith("<|") and token.endswith("|>")


def _rules(found: Mapping[str, Any], model: Mapping[str, Any]) -> Rules:
    if (
        model.get("type") != "BPE"
        or model.get("byte_fallback")
        or (found.get("decoder") or {}).get("type") != "ByteLevel"
    ):
        raise UsageError(
            f"--gguf: the model's tokenizer ({model.get('type')}) is not byte-level BPE, the only supported kind. "
            f"{BY_HAND}"
        )
    if any(model.get(key) for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk")):
        raise UsageError(f"--gguf: the model's tokenizer uses a kind of BPE that llama.cpp lacks. {BY_HAND}")
    normalizer = None if found.get("normalizer") is None else found["normalizer"]["type"]
    cuts = _plain(found.get("pre_tokenizer"))
    for rules in RULES:
        if (
            cuts == rules.pre_tokenizer
            and bool(model.get("ignore_merges")) == rules.ignore_merges
            and normalizer in rules.normalizers
        ):
            return rules
    raise UsageError(
        "--gguf: the model's tokenizer splits text by unknown rules; known are those of "
        f"{', '.join(rules.name for rules in RULES)}. {BY_HAND}"
    )


def _plain(part: Any) -> Any:
    """Return a part of tokenizer.json without the setting on offsets in the text, which does not change tokens."""
    if isinstance(part, dict):
        return {key: _plain(value) for key, value in part.items() if key != "trim_offsets"}
    return [_plain(one) for one in part] if isinstance(part, list) else part
