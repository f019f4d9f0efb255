"""Read logged completions from a file: groups with rewards, and preference pairs, one JSON object per line.

    {"prompt": ..., "completions": [{"text": ..., "reward": 1.0}, {"text": ..., "reward": 0}]}
    {"prompt": ..., "chosen": ..., "rejected": ...}

`prompt` (or `messages`) is text or chat messages, as in `node.tasks.kinds.jsonl`. `chosen` and `rejected` are text, or
messages, and then the last message counts. Other fields are ignored.

Invariants:

- A file with a wrong line is an error that names the line, before training starts.
- Every group has at least two completions, each with a finite reward and at least one token.
- A pair is a group of two: the better completion comes first and has reward 1, the other has reward 0.
- A token takes 4 bytes of memory.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import parse_line, without_mark
from learner.curriculum.offline_stream import Logged, LoggedGroup
from node.tasks.api.interface import MAX_REWARD, Chat, ChatMessage, Problem, TaskError
from node.tasks.tokenizer import TextCodec
from protocol.core.codec import MIN_LOGPROB
from protocol.core.limits import MAX_COMPLETION_TOKENS

MAX_GROUP = 1024
"""Maximum completions of one prompt, the same as for a lease."""


class _Message(msgspec.Struct):
    role: str
    content: str


Text = str | list[_Message]


class _Completion(msgspec.Struct):
    reward: float
    text: str | None = None
    tokens: list[int] | None = None
    logprobs: list[float] | None = None
    finished: bool = True


class _Row(msgspec.Struct):
    prompt: Text | None = None
    messages: list[_Message] | None = None
    completions: list[_Completion] | None = None
    chosen: Text | None = None
    rejected: Text | None = None


@dataclass(frozen=True, kw_only=True)
class Logs:
    """The content of a file: its groups, the number of pairs, and a digest of the bytes."""

    path: Path
    groups: tuple[LoggedGroup, ...]
    digest: str

    @property
    def pairs(self) -> int:
        return sum(len(group.completions) == 2 for group in self.groups)

    @property
    def note(self) -> str:
        """A clause that tells the operator what the file holds."""
        completions = sum(len(group.completions) for group in self.groups)
        return f"{self.path}: {len(self.groups)} logged groups of {completions} completions, {self.pairs} of them pairs"


def read_logs(
    path: Path, codec: TextCodec, chat: Chat, *, positions: int | None = None, vocabulary: int | None = None
) -> Logs:
    """Read a file of logged groups and pairs. Raises TaskError, which names file and line.

    Args:
        path: the JSON Lines file.
        codec: the model's tokenizer.
        chat: whether a prompt of plain text passes through the chat template.
        positions: tokens that the model can take in one sequence, if known.
        vocabulary: number of token ids that the model has, if known.
    """
    try:
        data = read_file(path)
    except OSError as error:
        raise TaskError(f"{path}: cannot be read: {error.strerror}. Name a JSON Lines file in [offline].") from error
    groups = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not without_mark(line).strip():
            continue
        try:
            groups.append(_read_group(line, codec, chat, positions, vocabulary))
        except (ValueError, TaskError) as error:
            raise TaskError(f"{path}:{number}: {error}. Correct the line, or remove it.") from error
    if not groups:
        raise TaskError(f'{path}: holds no lines. Write {{"prompt": ..., "chosen": ..., "rejected": ...}} or groups.')
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    return Logs(path=path, groups=tuple(groups), digest=digest)


def _read_group(
    line: bytes, codec: TextCodec, chat: Chat, positions: int | None, vocabulary: int | None
) -> LoggedGroup:
    """Read one line. Raises ValueError, which says what is wrong."""
    row = parse_line(line, _Row)
    if row.completions is not None:
        completions = row.completions
        if not 2 <= len(completions) <= MAX_GROUP:
            raise ValueError(f"`completions` has {len(completions)}; a group has 2 to {MAX_GROUP}, to be compared")
    elif row.chosen is not None and row.rejected is not None:
        completions = [
            _Completion(text=_last(row.chosen, "chosen"), reward=1.0),
            _Completion(text=_last(row.rejected, "rejected"), reward=0.0),
        ]
    else:
        raise ValueError("has neither `completions` nor both `chosen` and `rejected`")
    prompt = array("i", codec.encode_prompt(_problem(row, chat)))
    logged = tuple(_logged(one, number, codec) for number, one in enumerate(completions))
    if positions and (longest := len(prompt) + max(len(one.tokens) for one in logged)) > positions:
        raise ValueError(f"prompt and completion have {longest} tokens, and the model has {positions} positions")
    if (
        vocabulary
        and (highest := max(max(ids) for ids in (prompt, *(one.tokens for one in logged)) if ids)) >= vocabulary
    ):
        raise ValueError(f"token id {highest} is not in the model's vocabulary of {vocabulary}")
    return LoggedGroup(prompt=prompt, completions=logged)


def _problem(row: _Row, chat: Chat) -> Problem:
    """Return the prompt. A pair of conversations needs none: then it is what both say before their last messages."""
    prompt = row.prompt if row.prompt is not None else row.messages
    if prompt is None and isinstance(row.chosen, list) and isinstance(row.rejected, list):
        prompt = row.chosen[:-1]
        if prompt != row.rejected[:-1]:
            raise ValueError("`chosen` and `rejected` differ before their last messages, and there is no `prompt`")
    if not prompt:
        raise ValueError("`prompt` is missing or empty")
    if isinstance(prompt, str):
        return Problem(prompt=prompt, chat=chat)
    return Problem(prompt=tuple(ChatMessage(role=m.role, content=m.content) for m in prompt), chat=Chat.ALWAYS)


def _last(text: Text, name: str) -> str:
    if isinstance(text, str):
        return text
    if not text or text[-1].role != "assistant":
        raise ValueError(f"`{name}` does not end with a message of the assistant")
    return text[-1].content


def _logged(one: _Completion, number: int, codec: TextCodec) -> Logged:
    where = f"completion {number + 1}"
    if not abs(one.reward) <= MAX_REWARD:  # also true for NaN
        raise ValueError(f"{where}: `reward` {one.reward:g} does not lie between {-MAX_REWARD:g} and {MAX_REWARD:g}")
    if (one.text is None) == (one.tokens is None):
        raise ValueError(f"{where} needs either `text` or `tokens`, and not both")
    tokens = _tokens(one, codec)
    if not 0 < len(tokens) <= MAX_COMPLETION_TOKENS:
        raise ValueError(f"{where} has {len(tokens)} tokens; it may have 1 to {MAX_COMPLETION_TOKENS}")
    if (logprobs := one.logprobs) is not None:
        if len(logprobs) != len(tokens):
            raise ValueError(
                f"{where} has {len(logprobs)} `logprobs` for {len(tokens)} tokens, the stop token included; give "
                "`tokens` as they were sampled, or leave `logprobs` out"
            )
        if not all(MIN_LOGPROB <= value <= 0 for value in logprobs):
            raise ValueError(f"{where}: `logprobs` must lie between {MIN_LOGPROB:g} and 0")
    return Logged(tokens=tokens, reward=one.reward, logprobs=None if logprobs is None else array("f", logprobs))


def _tokens(one: _Completion, codec: TextCodec) -> array[int]:
    """Return the token ids of a logged completion. A text that ended by itself gets its stop id."""
    if one.tokens is not None:
        if not all(0 <= token < 1 << 31 for token in one.tokens):
            raise ValueError("`tokens` holds a number that is not a token id")
        return array("i", one.tokens)
    assert one.text is not None
    answer: Sequence[int] = codec.encode_answer(one.text)
    return array("i", answer if one.finished else answer[:-1])
