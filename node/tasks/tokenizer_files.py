"""Read the tokenizer of a model directory like transformers, but from its files alone: no transformers, no torch.

tokenizer.json holds most of it. The model was trained on tokens that transformers made. So this module adds what
transformers adds from the other files, and ignores what it ignores.

Invariants:

- A text always becomes the same ids, those of transformers' PreTrainedTokenizerFast
  (tests/node/tasks/test_tokenizer_files.py compares them). Nothing is cut off or padded, even if tokenizer.json says
  so.
- Every special token that one of the files names is one token. If tokenizer.json lacks it, it has the id that the other
  files give it.
- A file that cannot be read is a TaskError that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, models

from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import NotText, parse_json, text_of
from node.tasks.api.interface import TaskError

TOKENIZER = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
ADDED_TOKENS = "added_tokens.json"

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Special tokens that every tokenizer may name, in the order in which transformers adds missing ones."""

FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


@dataclass(frozen=True, kw_only=True)
class TokenizerFiles:
    """A model's tokenizer, its special tokens by the names that chat templates use, and tokenizer_config.json.

    `eos_id`: the id of the token that the files name as the end of a text; None if there is none, or it has no id.
    """

    tokenizer: Tokenizer
    special_tokens: Mapping[str, str]
    settings: Mapping[str, Any]
    eos_id: int | None


def read_tokenizer(directory: Path) -> TokenizerFiles:
    """Read the tokenizer in `directory`. Raises TaskError, which names the file and what is wrong with it."""
    tokenizer = _read_library_file(directory)
    settings = read_object(directory / SETTINGS)
    special = _special_tokens(directory, settings)
    _add(directory, tokenizer, _added_tokens(directory, settings, set(special.values())))
    eos_id = tokenizer.token_to_id(special["eos_token"]) if "eos_token" in special else None
    tokenizer.add_tokens([AddedToken(text, special=True) for text in _missing(tokenizer, special, settings)])
    # Left over from the last call before the tokenizer was saved. transformers ignores them too.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if isinstance(tokenizer.model, models.BPE) and tokenizer.model.dropout:
        tokenizer.model.dropout = None  # meant for training; with it, the same text becomes other tokens each time
    tokenizer.encode_special_tokens = settings.get("split_special_tokens") is True
    return TokenizerFiles(tokenizer=tokenizer, special_tokens=special, settings=settings, eos_id=eos_id)


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`, or an empty one if there is no such file. Raises TaskError."""
    try:
        value = parse_json(read_file(path))
    except FileNotFoundError:
        return {}
    except NotText as error:
        raise TaskError(f"{path} {error}") from error
    except (OSError, ValueError) as error:
        raise TaskError(f"{path}: cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise TaskError(f"{path}: does not hold a JSON object")
    return value


def _read_library_file(directory: Path) -> Tokenizer:
    path = directory / TOKENIZER
    if not path.is_file():
        raise TaskError(f"{directory}: no tokenizer.json. {_advice(directory)}")
    try:
        text = text_of(read_file(path))
    except NotText as error:
        raise TaskError(f"{path} {error}") from error
    except OSError as error:
        raise TaskError(f"{path}: cannot be read: {error}") from error
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the library raises a bare Exception for every defect of the file
        raise TaskError(f"{path}: not a tokenizer of the tokenizers library: {error}") from error


def _advice(directory: Path) -> str:
    if not directory.is_dir():
        return "The directory does not exist."
    if (directory / "tokenizer.model").exists() or (directory / "vocab.json").exists():
        return "Convert the older files: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) with transformers."
    return "Copy the tokenizer's files from the model that this one was made from."


# --- special tokens, and tokens that were added to a vocabulary -------------------------------------------------------


def _special_tokens(directory: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of the special tokens by name: the usual ones first, then those that only this model has."""
    named = _named(settings)
    legacy = _named(read_object(directory / SPECIAL_TOKENS))
    # Older files have the map, which is then right. If both forms are there, the newer one is right.
    found = {**legacy, **named} if "added_tokens_decoder" in settings else {**named, **legacy}
    order = [*NAMES, *(name for name in found if name not in NAMES)]
    return {name: found[name] for name in order if name in found}


def _named(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of the special tokens that a file names. Each entry is a text, or an object with "content"."""
    extra = settings.get("extra_special_tokens")
    entries = {**settings, **extra} if isinstance(extra, dict) else settings
    # "add_bos_token" and the like also end with "_token", and are true or false.
    texts = {name: _token_text(entry) for name, entry in entries.items() if name.endswith("_token")}
    return {name: text for name, text in texts.items() if text}


def _token_text(entry: object) -> str:
    text = entry.get("content") if isinstance(entry, dict) else entry
    return text if isinstance(text, str) else ""


def _added_tokens(directory: Path, settings: Mapping[str, Any], special: set[str]) -> dict[int, AddedToken]:
    """Return the tokens that files other than tokenizer.json add to the vocabulary, by id, in order."""
    path = directory / SETTINGS
    by_id: Any = settings.get("added_tokens_decoder")
    if by_id is None:  # an older form
        path = directory / ADDED_TOKENS
        by_id = {number: {"content": text, "special": text in special} for text, number in read_object(path).items()}
    try:
        tokens = {int(number): _token(entry, special) for number, entry in by_id.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise TaskError(f"{path}: its added tokens are not objects with `content`, by id: {error}") from error
    return dict(sorted(tokens.items()))


def _token(entry: object, special: set[str]) -> AddedToken:
    """Return the added token that an entry describes. Raises TypeError."""
    if not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
        raise TypeError(f"{str(entry)[:80]!r} has no content")
    flags = {"normalized": not entry.get("special"), **{name: bool(entry[name]) for name in FLAGS if name in entry}}
    return AddedToken(entry["content"], **{**flags, "special": flags.get("special") or entry["content"] in special})


def _add(directory: Path, tokenizer: Tokenizer, tokens: Mapping[int, AddedToken]) -> None:
    """Add the tokens. Raises TaskError if a token that tokenizer.json lacks does not get the id that the files name."""
    lacking = {number: one for number, one in tokens.items() if tokenizer.token_to_id(one.content) is None}
    tokenizer.add_tokens(list(tokens.values()))  # also updates the flags of tokens that are there already
    for wanted, token in lacking.items():
        if (found := tokenizer.token_to_id(token.content)) != wanted:
            raise TaskError(
                f"{directory}: the token {token.content!r} should have the id {wanted}, but tokenizer.json gives it "
                f"{found}. Copy the tokenizer's files again from where the model came from."
            )


def _missing(tokenizer: Tokenizer, special: Mapping[str, str], settings: Mapping[str, Any]) -> list[str]:
    """Return the special texts of the files that are not among the added tokens yet, in transformers' order."""
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens")
    texts = [*special.values(), *(map(_token_text, extra) if isinstance(extra, list) else ())]
    there = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    return [text for text in dict.fromkeys(texts) if text and text not in there]
