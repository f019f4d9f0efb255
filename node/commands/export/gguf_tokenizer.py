"""Read a model's tokenizer for a GGUF file: its tokens, merges, special tokens and chat template.

llama.cpp cuts text with rules of its own and knows them by name (`tokenizer.ggml.pre`). A file with the wrong name
loads and answers, and reads prompts otherwise than the model was trained. So a tokenizer is taken only if its
tokenizer.json has exactly the parts that a name stands for; each was compared with llama.cpp's tokens
(`tests/integration/test_gguf.py`). The names are those of llama.cpp's convert_hf_to_gguf.py.

Pure, but for reading files.
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
"""Of a tokenizer.json: those of 256,000 tokens have 35 MB."""

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
    """How text becomes tokens, as tokenizer.json says it, and what llama.cpp calls that."""

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
    """What llama.cpp takes a token for: the numbers of `gguf.TokenType`."""

    NORMAL = 1
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The tokens of a model by their ids, what each is, the merges, and the name of the rules."""

    rules: str
    tokens: tuple[str, ...]
    types: tuple[TokenType, ...]
    merges: tuple[str, ...]


def read_vocabulary(directory: Path, vocab_size: int) -> Vocabulary:
    """The tokenizer in `directory`, of a model with `vocab_size` rows. Raises UsageError where llama.cpp would read
    text otherwise, or that is not known; OSError."""
    try:
        found = parse_json(read_file(directory / TOKENIZER, MAX_TOKENIZER_BYTES))
        return _vocabulary(found, vocab_size)
    except FileNotFoundError:
        raise UsageError(
            f"--gguf: the model has no {TOKENIZER}, and no other tokenizer is written. {BY_HAND}"
        ) from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(
            f"--gguf: the model's {TOKENIZER} is not one that is known here ({error!r}). {BY_HAND}"
        ) from None


BY_HAND = (
    "Leave --gguf away, and convert the directory with llama.cpp's convert_hf_to_gguf.py, which knows more models."
)


def _vocabulary(found: Mapping[str, Any], vocab_size: int) -> Vocabulary:
    model, added = found["model"], list(found["added_tokens"])
    rules = _rules(found, model)
    if odd := [one["content"] for one in added if one["lstrip"] or one["rstrip"] or one["single_word"]]:
        raise UsageError(f"--gguf: the token {odd[0]!r} takes spaces beside it, which llama.cpp does not. {BY_HAND}")
    by_id = {number: token for token, number in model["vocab"].items()}
    by_id |= {one["id"]: one["content"] for one in added}
    if beyond := [number for number in by_id if not 0 <= number < vocab_size]:
        raise UsageError(f"--gguf: the tokenizer has an id {max(beyond)}, and the model {vocab_size} rows. {BY_HAND}")
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
        raise ValueError("a merge holds a space")
    return left, right


def _looks_special(token: str) -> bool:
    """llama.cpp's converter takes these for control tokens, whatever the tokenizer says."""
    return token.startswith("<|") and token.endswith("|>")


def _rules(found: Mapping[str, Any], model: Mapping[str, Any]) -> Rules:
    if (
        model.get("type") != "BPE"
        or model.get("byte_fallback")
        or (found.get("decoder") or {}).get("type") != "ByteLevel"
    ):
        raise UsageError(
            f"--gguf: the model's tokenizer ({model.get('type')}) is not byte-level BPE, the only kind that is written "
            f"here. {BY_HAND}"
        )
    if any(model.get(key) for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk")):
        raise UsageError(f"--gguf: the model's tokenizer is a kind of BPE that llama.cpp does not have. {BY_HAND}")
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
        "--gguf: the model's tokenizer cuts text in a way that is not known here; known are those of "
        f"{', '.join(rules.name for rules in RULES)}. {BY_HAND}"
    )


def _plain(part: Any) -> Any:
    """A part of tokenizer.json without what does not change tokens: offsets, which tell places in the text."""
    if isinstance(part, dict):
        return {key: _plain(value) for key, value in part.items() if key != "trim_offsets"}
    return [_plain(one) for one in part] if isinstance(part, list) else part
