"""Between text and token ids, from the files of a model directory alone: no transformers, no torch, no code of the
model's.

Reads the tokenizer (`node.tasks.tokenizer_files`), chat_template.jinja, generation_config.json and config.json. What
always holds: chat templates run in jinja2's immutable sandbox; a completion's text shows every token, also special
ones and ids that the tokenizer does not know, so that a policy cannot hide junk from a reward; a prompt that the
tokenizer cannot write is an error."""

from __future__ import annotations

import json
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from learner.artifacts.model_limits import Positions, positions_in
from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import NotText, text_of
from node.tasks.api.interface import Answer, Chat, ChatMessage, Completion, Problem, TaskError
from node.tasks.tokenizer_files import read_object, read_tokenizer
from protocol.core.limits import MAX_PROMPT_TOKENS, MAX_STOP_IDS

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""Stands for an id beyond the vocabulary: padded embeddings can produce it, and decoders leave it out silently."""

SAID, ANSWERED = "WhatThePolicySaid", "WhatWasAnswered"
"""Stand for it in a conversation that is rendered to see what follows, and whether that is shown."""

MAX_END_TOKENS = 2
"""Templates end what the assistant said with one token or two, the last of which ends generation."""

DEMO_ALPHABET = string.ascii_lowercase + string.digits + " \n.,:;=+-*/()[]{}?!'\"_#%"
"""60 characters: all that the built-in tasks write, and with four special tokens the demo's vocabulary of 64."""

CHARACTER_VOCABULARY = 64


@dataclass(frozen=True, kw_only=True)
class TextCodec:
    """The tokenizer of one model. `eos_id` ends reference answers; it is one of `stop_ids`, which end generation. The
    model's embedding has `rows`, None when it does not say: no engine takes an id beyond them.
    """

    directory: Path
    tokenizer: Tokenizer
    special_tokens: Mapping[str, str]
    chat_template: str | None
    eos_id: int
    stop_ids: frozenset[int]
    rows: int | None = None

    @classmethod
    def load(cls, directory: Path) -> TextCodec:
        """Read `directory`. Raises TaskError naming the file and what it lacks."""
        files = read_tokenizer(directory)
        eos, declared = files.eos_id, _declared_stop_ids(directory)
        if eos is None and not declared:
            raise TaskError(
                f"{directory}: nothing says which token ends a text. Set eos_token_id in generation_config.json, or "
                "eos_token in tokenizer_config.json, to a token that the tokenizer has."
            )
        stop_ids = declared | ({eos} if eos is not None else set())
        if len(stop_ids) > MAX_STOP_IDS:
            raise TaskError(f"{directory}: {len(stop_ids)} tokens end a text; a lease carries at most {MAX_STOP_IDS}")
        rows = vocabulary_of(directory)
        said = {one for one in stop_ids if rows is None or one < rows}  # the others stem from a larger vocabulary
        if rows is not None and (not said or (eos is not None and eos not in said)):
            raise TaskError(
                f"{directory}: token id {max(stop_ids - said)} ends a text, and {_embedded(rows)}, so it is never "
                "generated. Correct eos_token_id in generation_config.json and config.json, or eos_token in "
                "tokenizer_config.json."
            )
        return cls(
            directory=directory,
            tokenizer=files.tokenizer,
            special_tokens=files.special_tokens,
            chat_template=_read_chat_template(directory, files.settings),
            eos_id=eos if eos is not None else min(said),
            stop_ids=frozenset(said),
            rows=rows,
        )

    def encode_prompt(self, problem: Problem) -> tuple[int, ...]:
        """Token ids of a problem's prompt, through the chat template where the problem wants it.

        Raises TaskError: no chat template where one is needed, characters without a token, empty or too long.
        """
        if (messages := self._messages(problem)) is None:
            ids = self._encode(str(problem.prompt), special=True)
        else:
            ids = self._encode(self.render(messages), special=False)
        if not 1 <= len(ids) <= MAX_PROMPT_TOKENS:
            raise TaskError(f"a prompt has {len(ids)} tokens; a lease carries 1 to {MAX_PROMPT_TOKENS}")
        return ids

    def encode_turn(self, problem: Problem, answered: Answer) -> tuple[int, ...]:
        """Token ids that follow a stop id of the policy's: the answer, and what the chat template puts around it.

        They are never those of the whole conversation encoded anew, so that what the policy said stays what it said.
        Raises TaskError: no chat template where one is needed, or it fails; characters without a token.
        """
        before = self._messages(problem)
        if before is None and isinstance(answered, str):
            return self._encode(answered, special=False)
        said = ChatMessage(role="assistant", content=SAID)
        messages = [ChatMessage(role="user", content=answered)] if isinstance(answered, str) else answered
        after = self._after_said([*(before or ()), said, *messages])
        for message in messages:
            if message.content.strip() not in after:  # a template may write it as JSON, but not leave it out
                probe = ChatMessage(role=message.role, content=ANSWERED)
                if ANSWERED not in self._after_said([*(before or ()), said, probe]):
                    raise TaskError(
                        f"{self.directory}: its chat template does not show messages of role {message.role}"
                    )
        ids = self._encode(after, special=False)
        # The template's end of a message stands for the stop id that is there already.
        ends = (place + 1 for place, token in enumerate(ids[:MAX_END_TOKENS]) if token in self.stop_ids)
        return ids[next(ends, 0) :]

    def _after_said(self, messages: Sequence[ChatMessage]) -> str:
        """What the template writes after the last thing that the assistant said."""
        _, shown, after = self.render(messages).rpartition(SAID)
        if not shown:
            raise TaskError(f"{self.directory}: its chat template does not show what the assistant said")
        return after

    def _messages(self, problem: Problem) -> Sequence[ChatMessage] | None:
        """The prompt as a conversation; None where it is plain text."""
        if not isinstance(problem.prompt, str):
            return problem.prompt
        if problem.chat is Chat.NEVER or (problem.chat is Chat.AUTO and self.chat_template is None):
            return None
        return [ChatMessage(role="user", content=problem.prompt)]

    def encode_answer(self, text: str) -> tuple[int, ...]:
        """Token ids of a reference answer, ended by `eos_id`. Raises TaskError for characters without a token."""
        return (*self._encode(text, special=False), self.eos_id)

    def completion(self, tokens: Sequence[int]) -> Completion:
        """What generated `tokens` say. Finished: the last one, and only that one, is a stop id."""
        stops = [place for place, token in enumerate(tokens) if token in self.stop_ids]
        finished = stops == [len(tokens) - 1]
        return Completion(text=self.decode(tokens[:-1] if finished else tokens), finished=finished)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`, special tokens shown, each run of unknown ids shown as REPLACEMENT."""
        parts: list[str] = []
        known: list[int] = []
        for token in tokens:
            if self.tokenizer.id_to_token(token) is not None:
                known.append(token)
                continue
            parts += [self._decode_known(known), REPLACEMENT]
            known = []
        return "".join([*parts, self._decode_known(known)])

    def render(self, messages: Iterable[ChatMessage]) -> str:
        """The conversation as text, up to where the assistant begins. Raises TaskError: no template, or it fails."""
        if self.chat_template is None:
            raise TaskError(
                f"{self.directory}: has no chat template, and the task's prompts are conversations. Use a model with "
                "chat_template.jinja, or prompts of plain text with chat=never."
            )
        variables = {
            **self.special_tokens,
            "messages": [{"role": message.role, "content": message.content} for message in messages],
            "add_generation_prompt": True,
        }
        try:
            return _compile(self.chat_template).render(variables)
        except Exception as error:  # a stranger's program: 1 / 0, a macro that calls itself, brackets without end
            raise TaskError(
                f"{self.directory}: its chat template fails on a prompt: {type(error).__name__}: {error}"
            ) from error

    def _encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=special).ids
        unknown = self.special_tokens.get("unk_token")
        if unknown is not None and unknown not in text and self.tokenizer.token_to_id(unknown) in ids:
            raise TaskError(f"{self.directory}: its tokenizer has no token for a character of {text[:80]!r}")
        if self.rows is not None and max(ids, default=0) >= self.rows:
            raise TaskError(
                f"{self.directory}: its tokenizer writes {self.tokenizer.id_to_token(max(ids))!r} as token id "
                f"{max(ids)}, and {_embedded(self.rows)}. Take the tokenizer and the chat template that belong to "
                "these weights, or weights whose embedding was resized for them."
            )
        return tuple(ids)

    def _decode_known(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=False)) if tokens else ""


def limit_of(directory: Path) -> Positions | None:
    """How long a sequence the model in `directory` takes, and why no longer; None when it does not say."""
    return positions_in(read_object(directory / "config.json"))


def positions_of(directory: Path) -> int | None:
    """Tokens of the longest sequence that the model in `directory` takes; None when it does not say."""
    limit = limit_of(directory)
    return None if limit is None else limit.tokens


def vocabulary_of(directory: Path) -> int | None:
    """Token ids that the model in `directory` has embeddings for; None when it does not say."""
    config = read_object(directory / "config.json")
    text = config.get("text_config")
    found = (text if isinstance(text, dict) else config).get("vocab_size")
    return found if isinstance(found, int) and found > 0 else None


def _embedded(rows: int) -> str:
    return f"the model's embedding has {rows} rows (vocab_size), for ids 0 to {rows - 1}"


# --- reading a model directory ----------------------------------------------------------------------------------------


def _declared_stop_ids(directory: Path) -> set[int]:
    """eos_token_id, a number or a list, of generation_config.json and config.json together."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        declared = read_object(directory / name).get("eos_token_id")
        ids = declared if isinstance(declared, list) else [] if declared is None else [declared]
        if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in ids):
            raise TaskError(f"{directory / name}: eos_token_id is neither a token id nor a list of them: {declared!r}")
        found.update(ids)
    return found


def _read_chat_template(directory: Path, settings: Mapping[str, Any]) -> str | None:
    """The model's default chat template: a file of its own, or inside tokenizer_config.json."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        try:
            return text_of(read_file(path))  # jinja takes any line end for a new line
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


# --- chat templates, as transformers runs them (transformers.utils.chat_template_utils) -------------------------------


class _GenerationTag(Extension):
    """{% generation %} ... {% endgeneration %} marks words for training masks; here it only passes them on."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=8)
def _compile(template: str) -> Template:
    """Cached: templates of today take milliseconds to compile, and every prompt goes through one."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


def _to_json(value: object, indent: int | None = None) -> str:
    """jinja2's own filter escapes for HTML, which no model expects."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


# --- a tokenizer made on the spot -------------------------------------------------------------------------------------


def write_character_tokenizer(directory: Path, alphabet: str = DEMO_ALPHABET) -> None:
    """Write tokenizer.json and tokenizer_config.json: one token a character, which transformers' AutoTokenizer loads.

    The ids, CHARACTER_VOCABULARY of them: <pad> 0, <bos> 1, <eos> 2, <unk> 3, the alphabet from 4 on, unused ones.

    Raises:
        ValueError: a character occurs twice, there are more than 60, or "<" is one, which could spell a special token.
    """
    names = ["<pad>", "<bos>", "<eos>", "<unk>"]
    tokens = [*names, *alphabet]
    if len(set(alphabet)) != len(alphabet) or len(tokens) > CHARACTER_VOCABULARY or "<" in alphabet:
        raise ValueError(
            f"an alphabet has up to {CHARACTER_VOCABULARY - len(names)} characters, each once, without '<'"
        )
    tokens += [f"<unused{place}>" for place in range(len(tokens), CHARACTER_VOCABULARY)]
    tokenizer = Tokenizer(models.WordLevel({token: place for place, token in enumerate(tokens)}, unk_token="<unk>"))
    # [\s\S], since a dot would leave line ends inside a piece.
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), names, strict=True)),
    }
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
