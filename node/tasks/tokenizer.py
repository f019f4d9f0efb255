"""Convert between text and token ids, from the files of a model directory: no transformers, no torch, no model code.

It reads the tokenizer (`node.tasks.tokenizer_files`), chat_template.jinja (`node.tasks.ways.chat_template`),
generation_config.json and config.json (`node.tasks.ways.stop_tokens`), and what the operator overrides of these
(`node.tasks.ways.model_ways`).

Invariants:

- The text of a completion shows every token, also special tokens and ids that the tokenizer does not know. So a policy
  cannot hide junk from a reward.
- A prompt that the tokenizer cannot write is an error.
- A prompt begins with the beginning-of-text token at most once, whether the chat template, the tokenizer or both write
  it.
- Writing the tokens after a turn never renders the policy's own words again.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from learner.artifacts.model_limits import Positions, positions_in
from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import NotText, text_of
from node.runtime.errors import naming
from node.tasks.api.interface import Answer, Chat, ChatMessage, Completion, Problem, Spoken, TaskError
from node.tasks.tokenizer_files import TokenizerFiles, read_object, read_tokenizer
from node.tasks.tools.formats import ToolFormat, format_of
from node.tasks.tools.reading import THINK, read_spoken
from node.tasks.ways.chat_template import ChatTemplate
from node.tasks.ways.model_ways import ModelWays
from node.tasks.ways.stop_tokens import declared_stop_ids, stops_of
from protocol.core.limits import MAX_PROMPT_TOKENS, MAX_STOP_IDS

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""Stands for an id beyond the vocabulary. Padded embeddings can produce such ids, and decoders drop them silently."""

MAX_END_TOKENS = 2
"""A template ends an assistant's message with one or two tokens. The last of them ends generation."""

DEMO_ALPHABET = string.ascii_lowercase + string.digits + " \n.,:;=+-*/()[]{}?!'\"_#%"
"""60 characters, all that the built-in tasks write. With four special tokens they are the demo's vocabulary of 64."""

CHARACTER_VOCABULARY = 64

SHOWN_VOCABULARY = 128
"""Largest vocabulary whose characters an error lists: the demo's. Larger ones would fill the screen."""


@dataclass(frozen=True, kw_only=True)
class TextCodec:
    """The tokenizer of one model.

    `eos_id` ends reference answers; it is one of `stop_ids`, which end generation. `rows`: number of rows of the
    model's embedding, None if unknown; no engine accepts an id beyond them. `system_prompt`: begins conversations that
    have no system message; "" adds none. `tool_format`: how the model writes tool calls; None if its chat template
    writes them in a form that is not supported. `notes`: clauses for the operator.
    """

    directory: Path
    tokenizer: Tokenizer
    special_tokens: Mapping[str, str]
    template: ChatTemplate | None
    eos_id: int
    stop_ids: frozenset[int]
    rows: int | None = None
    system_prompt: str = ""
    tool_format: ToolFormat | None = "json"
    notes: tuple[str, ...] = ()

    @classmethod
    def load(cls, directory: Path, ways: ModelWays = ModelWays()) -> TextCodec:  # noqa: B008  (it is frozen)
        """Read the files in `directory`. Raises TaskError, which names the file and what it lacks."""
        files = read_tokenizer(directory)
        rows, asked = vocabulary_of(directory), stops_of(files.tokenizer, ways.stop)
        declared = _declared_by_model(directory, files, rows, asked.ids | set(ways.stop_ids))
        stop_ids = declared | _within(rows, asked.ids, "stop") | _within(rows, ways.stop_ids, "stop_ids")
        if len(stop_ids) > MAX_STOP_IDS:
            raise TaskError(f"{directory}: {len(stop_ids)} tokens end a text; a lease carries at most {MAX_STOP_IDS}")
        template = _template(directory, files, ways)
        return cls(
            directory=directory,
            tokenizer=files.tokenizer,
            special_tokens=files.special_tokens,
            template=template,
            eos_id=files.eos_id if files.eos_id is not None else min(declared or stop_ids),
            stop_ids=frozenset(stop_ids),
            rows=rows,
            system_prompt=ways.system_prompt,
            tool_format=format_of(template.text if template else None)
            if ways.tool_format == "auto"
            else ways.tool_format,
            notes=asked.notes,
        )

    @property
    def bos_id(self) -> int | None:
        """The id of the token that begins a text; None if the model has none."""
        bos = self.special_tokens.get("bos_token")
        found: int | None = None if bos is None else self.tokenizer.token_to_id(bos)
        return found

    @property
    def begins_with_bos(self) -> bool:
        """Whether the tokenizer itself puts `bos_id` before a text."""
        return self.bos_id is not None and self.tokenizer.encode("a").ids[:1] == [self.bos_id]

    @cached_property
    def begins_in_thinking(self) -> bool:
        """Whether the chat template opens <think> at the beginning of the assistant's message."""
        try:
            return self.render([ChatMessage(role="user", content="?")]).rstrip().endswith(THINK)
        except TaskError:
            return False

    def encode_prompt(self, problem: Problem) -> tuple[int, ...]:
        """Return the token ids of a problem's prompt, through the chat template if the problem asks for it.

        Raises TaskError if a chat template is needed and missing, if it leaves out a message or a tool, if a character
        has no token, or if the prompt is empty or too long.
        """
        ids = self.encode_as_written(problem)
        beginnings = next((place for place, token in enumerate(ids) if token != self.bos_id), len(ids))
        ids = ids[max(beginnings - 1, 0) :]
        if not 1 <= len(ids) <= MAX_PROMPT_TOKENS:
            shown = str(problem.prompt)[:40]
            raise TaskError(f"the prompt {shown!r} has {len(ids)} tokens; a lease carries 1 to {MAX_PROMPT_TOKENS}")
        return ids

    def encode_as_written(self, problem: Problem) -> tuple[int, ...]:
        """Return the prompt as chat template or tokenizer write it: of any length, perhaps with `bos_id` twice."""
        if (messages := self.messages(problem)) is None:
            return self._encode(str(problem.prompt), special=True)
        return self._encode(self._needed().prompt(messages, problem.tools), special=False)

    def encode_turn(self, problem: Problem, answered: Answer) -> tuple[int, ...]:
        """Return the token ids that follow a stop id of the policy: the answer, in the form of the chat template.

        They are not taken from a new encoding of the whole conversation, so what the policy said stays unchanged.
        Raises TaskError if a chat template is needed and missing or fails, or if a character has no token.
        """
        before = self.messages(problem)
        if before is None and isinstance(answered, str):
            return self._encode(answered, special=False)
        messages = [ChatMessage(role="user", content=answered)] if isinstance(answered, str) else answered
        template, before = self._needed(), before or ()
        try:
            ids = self._encode(template.after_said(before, messages, problem.tools), special=False)
        except TaskError as refused:
            if all(message.role != "tool" for message in messages):
                raise
            return self._after_call(before, messages, problem, refused)
        # The template's end of the assistant's message is left out, because the policy's stop id is there already.
        ends = (place + 1 for place, token in enumerate(ids[:MAX_END_TOKENS]) if token in self.stop_ids)
        return ids[next(ends, 0) :]

    def _after_call(
        self, before: Sequence[ChatMessage], messages: Sequence[ChatMessage], problem: Problem, refused: TaskError
    ) -> tuple[int, ...]:
        """Return the same for a template that accepts a tool's result only after a call. Raises `refused` if it accepts
        none even then."""
        template = self._needed()
        try:
            text = template.after_call(before, messages, problem.tools)
        except TaskError:
            raise refused from None
        ids = self._encode(text, special=False)
        if (end := next((place for place, token in enumerate(ids) if token in self.stop_ids), None)) is None:
            raise TaskError(
                f"{template.where}: its chat template ends a tool call with no token that ends a completion. Name the "
                "token that ends it in [model] stop."
            )
        return ids[end + 1 :]

    def messages(self, problem: Problem) -> Sequence[ChatMessage] | None:
        """Return the prompt as a conversation, with the operator's system prompt; None if it is plain text."""
        if isinstance(problem.prompt, str):
            plain = problem.chat is Chat.NEVER or (problem.chat is Chat.AUTO and self.template is None)
            if plain and not problem.tools:
                return None
            messages: Sequence[ChatMessage] = [ChatMessage(role="user", content=problem.prompt)]
        else:
            messages = problem.prompt
        if not self.system_prompt or any(message.role == "system" for message in messages):
            return messages
        return [ChatMessage(role="system", content=self.system_prompt), *messages]

    def spoken(self, problem: Problem, text: str) -> Spoken:
        """Parse what the policy said in one turn, by the model's tool format and the problem's tools. Raises TaskError
        if the format is not supported."""
        return read_spoken(
            self.require_tool_format(),
            text,
            tools=[tool.name for tool in problem.tools],
            in_thinking=self.begins_in_thinking and self.messages(problem) is not None,
        )

    def require_tool_format(self) -> ToolFormat:
        """Return how the model writes tool calls. Raises TaskError if that is not supported."""
        if self.tool_format is None:
            raise TaskError(
                f"{self._needed().where}: its chat template writes tool calls in a form that is not supported. Set "
                '[model] tool_format to the form that the policy shall learn, such as "hermes" or "json".'
            )
        return self.tool_format

    def encode_answer(self, text: str, end: int | None = None) -> tuple[int, ...]:
        """Return the token ids of a reference answer, followed by `end`, or else by `eos_id`. Raises TaskError if a
        character has no token."""
        return (*self._encode(text, special=False), self.eos_id if end is None else end)

    def end_of_turn(self, problem: Problem) -> int:
        """Return the stop id that ends the policy's turns: the one that the chat template writes there, if it is in
        `stop_ids`. Otherwise return `eos_id`, which some model families write only after a whole conversation."""
        if (before := self.messages(problem)) is None:
            return self.eos_id
        try:
            ids = self._encode(self._needed().after_said(before, (), problem.tools), special=False)
        except TaskError:
            return self.eos_id
        return next((one for one in ids[:MAX_END_TOKENS] if one in self.stop_ids), self.eos_id)

    def completion(self, tokens: Sequence[int]) -> Completion:
        """Return the text of generated `tokens`. It is finished if its last token, and no other, is a stop id."""
        stops = [place for place, token in enumerate(tokens) if token in self.stop_ids]
        finished = stops == [len(tokens) - 1]
        return Completion(text=self.decode(tokens[:-1] if finished else tokens), finished=finished)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of `tokens` with special tokens. Each run of unknown ids becomes one REPLACEMENT."""
        parts: list[str] = []
        known: list[int] = []
        for token in tokens:
            if self.tokenizer.id_to_token(token) is not None:
                known.append(token)
                continue
            parts += [self._decode_known(known), REPLACEMENT]
            known = []
        return "".join([*parts, self._decode_known(known)])

    def render(self, messages: Sequence[ChatMessage]) -> str:
        """Return the conversation as text, up to where the assistant begins. Raises TaskError if there is no template
        or it fails."""
        return self._needed().render(messages)

    def _needed(self) -> ChatTemplate:
        if self.template is None:
            raise TaskError(
                f"{self.directory}: has no chat template, and the task's prompts are conversations. Use a model with "
                "chat_template.jinja, give a template in [model] chat_template, or use prompts of plain text with "
                "chat=never."
            )
        return self.template

    def _encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=special).ids
        unknown = self.special_tokens.get("unk_token")
        if unknown is not None and unknown not in text and self.tokenizer.token_to_id(unknown) in ids:
            raise TaskError(
                f"{self.directory}: its tokenizer has no token for {self._missing(text)} {text[:80]!r}{self._alphabet}"
            )
        if self.rows is not None and max(ids, default=0) >= self.rows:
            raise TaskError(
                f"{self.directory}: its tokenizer writes {self.tokenizer.id_to_token(max(ids))!r} as token id "
                f"{max(ids)}, and {_embedded(self.rows)}. Use the tokenizer and chat template that belong to these "
                "weights, or weights whose embedding was resized for them."
            )
        return tuple(ids)

    def _missing(self, text: str) -> str:
        """Return which character of `text` has no token, as the beginning of a phrase."""
        unknown = self.tokenizer.token_to_id(self.special_tokens["unk_token"])
        for character in dict.fromkeys(text):
            if unknown in self.tokenizer.encode(character, add_special_tokens=False).ids:
                return f"{character!r} in"
        return "a part of"

    @property
    def _alphabet(self) -> str:
        """The characters that a small vocabulary has, in parentheses; "" for a large one."""
        vocabulary = self.tokenizer.get_vocab()
        if len(vocabulary) > SHOWN_VOCABULARY:
            return ""
        characters = sorted((one for one in vocabulary if len(one) == 1), key=vocabulary.__getitem__)
        return f" (its characters: {''.join(characters)!r})"

    def _decode_known(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=False)) if tokens else ""


def limit_of(directory: Path) -> Positions | None:
    """Return the longest sequence that the model in `directory` takes, and the reason; None if it is unknown."""
    return positions_in(read_object(directory / "config.json"))


def positions_of(directory: Path) -> int | None:
    """Return the tokens of the longest sequence that the model in `directory` takes; None if it is unknown."""
    limit = limit_of(directory)
    return None if limit is None else limit.tokens


def vocabulary_of(directory: Path) -> int | None:
    """Return the number of token ids that the model in `directory` has embeddings for; None if it is unknown."""
    config = read_object(directory / "config.json")
    text = config.get("text_config")
    found = (text if isinstance(text, dict) else config).get("vocab_size")
    return found if isinstance(found, int) and found > 0 else None


def _embedded(rows: int) -> str:
    return f"the model's embedding has {rows} rows (vocab_size), for ids 0 to {rows - 1}"


# --- Reading a model directory ----------------------------------------------------------------------------------------


def _declared_by_model(directory: Path, files: TokenizerFiles, rows: int | None, asked: Collection[int]) -> set[int]:
    """Return the stop ids that the model's files name and its embedding has. Raises TaskError if nothing ends a
    text."""
    eos = files.eos_id
    found = declared_stop_ids(directory) | ({eos} if eos is not None else set())
    if not found and not asked:
        raise TaskError(
            f"{directory}: nothing says which token ends a text. Set eos_token_id in generation_config.json, or "
            "eos_token in tokenizer_config.json, to a token that the tokenizer has, or name one in [model] stop."
        )
    said = {one for one in found if rows is None or one < rows}  # larger ids come from a larger vocabulary
    if rows is not None and ((found and not said and not asked) or (eos is not None and eos not in said)):
        raise TaskError(
            f"{directory}: token id {max(found - said)} ends a text, and {_embedded(rows)}, so it is never "
            "generated. Correct eos_token_id in generation_config.json and config.json, or eos_token in "
            "tokenizer_config.json."
        )
    return said


def _within(rows: int | None, ids: Collection[int], key: str) -> set[int]:
    """Return the ids that the operator's `key` adds. Raises TaskError if the model does not have one of them."""
    if rows is not None and (beyond := [one for one in ids if one >= rows]):
        raise TaskError(f"[model] {key}: token id {beyond[0]} is never generated: {_embedded(rows)}. Leave it out.")
    return set(ids)


def _template(directory: Path, files: TokenizerFiles, ways: ModelWays) -> ChatTemplate | None:
    """Return the operator's template, or else the model's own. Raises TaskError if a setting needs one and none is
    there."""
    text = _read_chat_template(directory, files.settings) if ways.chat_template is None else ways.chat_template
    if text is None:
        for key, value in (("chat_template_kwargs", ways.template_kwargs), ("system_prompt", ways.system_prompt)):
            if value:
                raise TaskError(
                    f"{directory}: has no chat template, and [model] {key} needs one. Give a template in [model] "
                    f"chat_template, or leave {key} out."
                )
        return None
    template = ChatTemplate(
        text=text,
        where=ways.template_file or str(directory),
        special_tokens=files.special_tokens,
        variables=ways.template_kwargs,
    )
    if template.variables:
        with naming("[model] chat_template_kwargs"):
            template.require_variables()
    return template


def _read_chat_template(directory: Path, settings: Mapping[str, Any]) -> str | None:
    """Return the model's default chat template, from its own file or from tokenizer_config.json."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        try:
            return text_of(read_file(path))  # jinja reads any line end as a new line
        except NotText as error:
            raise TaskError(f"{path} {error}") from error
        except OSError as error:
            raise TaskError(f"{path}: cannot be read: {error}") from error
    match settings.get("chat_template"):
        case str(template):
            return template
        case list(named):
            return next((str(each["template"]) for each in named if each.get("name") == "default"), None)
        case _:
            return None


# --- Making a tokenizer -----------------------------------------------------------------------------------------------


def write_character_tokenizer(
    directory: Path, alphabet: str = DEMO_ALPHABET, *, words: Sequence[str] = (), chat_template: str | None = None
) -> None:
    """Write tokenizer.json and tokenizer_config.json of a tokenizer with one token per character.

    transformers' AutoTokenizer can load it. It has CHARACTER_VOCABULARY ids: <pad> 0, <bos> 1, <eos> 2, <unk> 3, then
    `words` and the alphabet from 4 on, then unused ones. Each of `words` is one token, for example a mark of a tool
    call. With a `chat_template`, a character without a token is read as "?" and is no error, because people can say
    anything to such a model. Then "?" must be in the alphabet.

    Raises:
        ValueError: a character occurs twice, there are more than 60 of them with the words, or one is "<", which could
            spell a special token.
    """
    names = ["<pad>", "<bos>", "<eos>", "<unk>"]
    tokens = [*names, *words, *alphabet]
    if len(set(tokens)) != len(tokens) or len(tokens) > CHARACTER_VOCABULARY or "<" in "".join((alphabet, *words)):
        raise ValueError(
            f"an alphabet has up to {CHARACTER_VOCABULARY - len(names)} characters, each once, without '<'"
        )
    tokens += [f"<unused{place}>" for place in range(len(tokens), CHARACTER_VOCABULARY)]
    unknown = "<unk>" if chat_template is None else "?"
    tokenizer = Tokenizer(models.WordLevel({token: place for place, token in enumerate(tokens)}, unk_token=unknown))
    # [\s\S], because a dot would leave line ends inside a piece.
    pieces = "|".join([*map(re.escape, sorted(words, key=len, reverse=True)), r"[\s\S]"])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pieces), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    special = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), names, strict=True))
    if chat_template is not None:
        del special["unk_token"]  # otherwise a text with that token would be an error
        special["chat_template"] = chat_template
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **special,
    }
    directory.mkdir(parents=True, exist_ok=True)
    # Not by its own `save`, which takes no path that is not UTF-8.
    (directory / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
