"""Answer requests: check paths and keys, and generate completions as long as their client takes them.

A request is checked in this order, each time before more work is done for it: path, key, content type, room
(`admission`), body, model, prompt. Its completions are cancelled as soon as its client leaves.

Invariants:

- Every HTTP request is answered once, or its client has left.
- An error after the first event is an event, with the same content as an error answer.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import trio

from node.commands.serve.admission import Admission, Place
from node.commands.serve.answers import (
    Choice,
    Form,
    chat_choice,
    delta_choice,
    end_word,
    model_entry,
    model_list,
    model_names,
    text_choice,
    tool_call,
    usage_of,
)
from node.commands.serve.api_error import ApiError, bad_request
from node.commands.serve.connection import Connection, ConnectionGone, Head
from node.commands.serve.keys import is_local
from node.commands.serve.requests import ChatRequest, Sampling, TextRequest, parse_chat, parse_text
from node.engine.interface import EngineError, EngineRefused
from node.serving.completion import DEFAULT_NEW_TOKENS, Piece, Wish, complete
from node.serving.prompts import encode_chat, encode_text
from node.serving.served_model import Served, ServedModel, VersionLeft
from node.tasks.api.interface import Spoken, TaskError
from node.tasks.tools.reading import read_spoken
from protocol.core.visible import first_line
from swarm.transport.error_groups import first_cause

MODELS = "/v1/models"
POSTS = ("/v1/chat/completions", "/v1/completions")


@dataclass(kw_only=True)
class Api:
    """Answers requests.

    Args:
        key: the key that requests must give. None: no key is needed, but the request must use a local host name.
        encode: turns a request into token ids. It runs in a thread, because long requests and templates take time.
    """

    model: ServedModel
    key: str | None
    encode: Callable[[Served, ChatRequest | TextRequest], Awaitable[tuple[int, ...]]] = field(
        default_factory=lambda: _encode_in_thread
    )
    admission: Admission = field(default_factory=Admission)

    async def handle(self, connection: Connection, head: Head) -> None:
        """Answer one request. Raises ConnectionGone."""
        try:
            self._require_allowed(head)
            if head.method == "GET":
                await self._get(connection, head.path)
            elif head.method == "POST" and head.path in POSTS:
                await self._post(connection, head)
            else:
                self._wrong_path(head)
        except ApiError as error:
            await self._fail(connection, error)

    def _require_allowed(self, head: Head) -> None:
        """Raise ApiError if the request lacks the key, or may come from a page in a browser."""
        if self.key is not None:
            given = head.headers.get("authorization", "").removeprefix("Bearer ").strip()
            if not hmac.compare_digest(_digest(given), _digest(self.key)):
                raise ApiError(401, "Give the server's key: Authorization: Bearer KEY.", code="invalid_api_key")
            return
        host = head.headers.get("host", "").lower()
        name, _, port = host.rpartition(":")
        if not is_local((name if name and port.isdecimal() else host).strip("[]")):
            raise ApiError(403, "Without a key this server is only for this machine. Use the address 127.0.0.1.")

    async def _get(self, connection: Connection, path: str) -> None:
        served, name = self.model.served, self.model.source.name
        if path == "/health":
            await connection.answer(200, {"status": "ok", "version": served.label})
        elif path == MODELS:
            await connection.answer(200, model_list(name, served))
        elif path.startswith(f"{MODELS}/"):
            self._label(wanted := path.removeprefix(f"{MODELS}/"))
            await connection.answer(200, model_entry(wanted, served))
        else:
            raise ApiError(404, f"There is no path {path[:80]}. {_PATHS}")

    def _wrong_path(self, head: Head) -> None:
        known = head.path in POSTS or head.path == MODELS
        raise ApiError(405 if known else 404, f"{head.method[:20]} {head.path[:80]} is not supported. {_PATHS}")

    def _label(self, model: str) -> str:
        """Return the version that a request's `model` names, "" for any. Raises ApiError 404."""
        name, names = self.model.source.name, model_names(self.model.source.name, self.model.served)
        if model not in names:
            raise ApiError(
                404, f"model: {model[:80]!r} is not served. Served: {', '.join(names)}.", param="model", code=_NO_MODEL
            )
        return model.removeprefix(name).removeprefix("@")

    async def _post(self, connection: Connection, head: Head) -> None:
        kind = head.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # a page in a browser cannot send that without permission
            raise ApiError(415, "Send the request as application/json: -H 'Content-Type: application/json'.")
        with self.admission.entered() as place:
            body = await connection.read_body(head)
            chat = head.path == POSTS[0]
            request: ChatRequest | TextRequest = parse_chat(body) if chat else parse_text(body)
            del body
            label = self._label(request.sampling.model)
            served = self.model.served
            prompt = await self.encode(served, request)
            form = Form(
                id=f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}",
                created=int(time.time()),
                model=request.sampling.model,
                kind="chat.completion" if chat else "text_completion",
            )
            wishes = _wishes(request.sampling, prompt, served, label)
            answer = _Answer(api=self, connection=connection, request=request, form=form, served=served, wishes=wishes)
            await answer.give(place)

    async def _fail(self, connection: Connection, error: ApiError) -> None:
        if connection.can_answer:
            await connection.refuse(error)
        else:
            await connection.send_event(error.body)
            await connection.end_events()


_PATHS = f"Paths: GET {MODELS}, POST {POSTS[0]}, POST {POSTS[1]}, GET /health."
_NO_MODEL = "model_not_found"


@dataclass(kw_only=True)
class _Answer:
    """Makes the answer to one request for completions."""

    api: Api
    connection: Connection
    request: ChatRequest | TextRequest
    form: Form
    served: Served
    wishes: Sequence[Wish]
    choices: list[Choice] = field(default_factory=list)
    _sending: trio.Lock = field(default_factory=trio.Lock)

    async def give(self, place: Place) -> None:
        """Generate, and send. Raises ApiError, ConnectionGone."""
        self.choices = [Choice() for _ in self.wishes]
        gone = False
        with first_cause():
            async with trio.open_nursery() as nursery:

                async def watch() -> None:
                    nonlocal gone
                    await self.connection.wait_gone()
                    gone = True
                    nursery.cancel_scope.cancel()

                nursery.start_soon(watch)
                await self.api.admission.begin(place, len(self.wishes))
                if self.request.sampling.stream:
                    await self._stream()
                else:
                    await self._all(self._collect)
                nursery.cancel_scope.cancel()
        if gone:
            raise ConnectionGone("the client left before its answer was complete")
        if not self.request.sampling.stream:
            await self.connection.answer(200, self._whole())

    async def _all(self, take: Callable[[int, Piece], Awaitable[None]]) -> None:
        with first_cause():
            async with trio.open_nursery() as nursery:
                for index, wish in enumerate(self.wishes):
                    nursery.start_soon(self._complete, index, wish, take)

    async def _complete(self, index: int, wish: Wish, take: Callable[[int, Piece], Awaitable[None]]) -> None:
        async def sink(piece: Piece) -> None:
            self.served = piece.served
            await take(index, piece)

        try:
            await complete(self.api.model, wish, sink)
        except VersionLeft as error:
            now = ", ".join(model_names(self.api.model.source.name, self.api.model.served))
            raise ApiError(
                404,
                f"model: version {wish.label} is no longer served. Served: {now}.",
                param="model",
                code=_NO_MODEL,
            ) from error
        except EngineRefused as error:
            status = 400 if error.kind == "bad_request" else 503
            raise ApiError(status, f"The engine cannot generate this: {first_line(str(error))}.") from error
        except EngineError as error:
            raise ApiError(503, f"The engine failed: {first_line(str(error))}.") from error

    async def _collect(self, index: int, piece: Piece) -> None:
        self.choices[index].take(piece, logprobs=self._logprobs)

    # A whole answer.

    def _whole(self) -> dict[str, Any]:
        listed = []
        for index, choice in enumerate(self.choices):
            if self.form.is_chat:
                listed.append(chat_choice(index, choice, self._spoken(choice), logprobs=self._logprobs))
            else:
                listed.append(text_choice(index, choice.said, end_word(choice.end)))
        return self.form.whole(self.served, listed, self._usage())

    def _usage(self) -> dict[str, int]:
        return usage_of(len(self.wishes[0].prompt), sum(choice.made for choice in self.choices))

    @property
    def _logprobs(self) -> bool:
        return isinstance(self.request, ChatRequest) and self.request.logprobs

    @property
    def _reads_calls(self) -> bool:
        return isinstance(self.request, ChatRequest) and bool(self.request.tools)

    def _spoken(self, choice: Choice) -> Spoken | None:
        """Return the completion read for calls, if the request has tools and the calls can be read; else None."""
        if not isinstance(self.request, ChatRequest) or not self.request.tools:
            return None
        codec = self.served.codec
        spoken = read_spoken(
            codec.require_tool_format(),
            choice.said,
            tools=[tool.name for tool in self.request.tools],
            in_thinking=codec.begins_in_thinking,
        )
        return None if spoken.malformed and not spoken.calls else spoken

    # An answer in events.

    async def _stream(self) -> None:
        await self.connection.begin_events()
        if self.form.is_chat:
            for index in range(len(self.choices)):
                await self._send([delta_choice(index, {"role": "assistant", "content": ""})])
        await self._all(self._collect_calls if self._reads_calls else self._send_piece)
        if self.request.sampling.include_usage:
            await self.connection.send_event(self.form.chunk(self.served, [], self._usage()))
        await self.connection.send_event("[DONE]")
        await self.connection.end_events()

    async def _send_piece(self, index: int, piece: Piece) -> None:
        choice = self.choices[index]
        choice.made, choice.end = piece.made, piece.end
        finish = end_word(piece.end)
        if not self.form.is_chat:
            await self._send([text_choice(index, piece.text, finish)])
            return
        if piece.text or (piece.tokens and self._logprobs):
            tokens = piece.tokens if self._logprobs else None
            await self._send([delta_choice(index, {"content": piece.text}, tokens)])
        if finish is not None:
            await self._send([delta_choice(index, {}, finish=finish)])

    async def _collect_calls(self, index: int, piece: Piece) -> None:
        """Collect a text that may be a call. It is sent at its end, because only then it is known to be one."""
        choice = self.choices[index]
        choice.take(piece, logprobs=self._logprobs)
        if piece.end is None:
            return
        spoken = self._spoken(choice)
        delta: dict[str, Any] = {"content": choice.said}
        if spoken is not None:
            delta = {"content": spoken.content} if spoken.content or not spoken.calls else {}
            if spoken.thinking:
                delta["reasoning_content"] = spoken.thinking
            if spoken.calls:
                delta["tool_calls"] = [tool_call(call, place) for place, call in enumerate(spoken.calls)]
        await self._send([delta_choice(index, delta, choice.tokens or None)])
        finish = "tool_calls" if spoken is not None and spoken.calls else end_word(piece.end)
        await self._send([delta_choice(index, {}, finish=finish)])

    async def _send(self, choices: Sequence[dict[str, Any]]) -> None:
        """Send one event. Events of several completions go out one by one."""
        async with self._sending:
            await self.connection.send_event(self.form.chunk(self.served, choices))


async def _encode_in_thread(served: Served, request: ChatRequest | TextRequest) -> tuple[int, ...]:
    return await trio.to_thread.run_sync(encode, served, request)


def encode(served: Served, request: ChatRequest | TextRequest) -> tuple[int, ...]:
    """Return the token ids of the text to continue. Raises ApiError."""
    codec, field_name = served.codec, "messages" if isinstance(request, ChatRequest) else "prompt"
    if isinstance(request, ChatRequest) and codec.template is None:
        raise bad_request(
            f"messages: this model has no chat template, so it only continues texts: use {POSTS[1]}.", "messages"
        )
    try:
        if isinstance(request, ChatRequest):
            if request.tools:
                field_name = "tools"
                codec.require_tool_format()
                field_name = "messages"
            ids = encode_chat(codec, request.messages, request.tools)
        elif isinstance(request.prompt, str):
            ids = encode_text(codec, request.prompt)
        else:
            ids = request.prompt
    except TaskError as error:
        said = first_line(str(error)).replace(str(codec.directory), "the model")  # clients must not see local paths
        raise bad_request(f"{field_name}: {said}", field_name) from error
    if not ids:
        raise bad_request(f"{field_name}: the text has no tokens. Send at least one.", field_name)
    rows = codec.rows if codec.rows is not None else codec.tokenizer.get_vocab_size()
    if max(ids) >= rows:
        raise bad_request(f"prompt: token id {max(ids)} is beyond the model's {rows} ids.", "prompt")
    if len(ids) >= served.context:
        raise bad_request(
            f"{field_name}: {len(ids)} tokens, but the model can read and write only {served.context}. Shorten it.",
            field_name,
            "context_length_exceeded",
        )
    return ids


def _wishes(sampling: Sampling, prompt: tuple[int, ...], served: Served, label: str) -> list[Wish]:
    """Return the completions that a request asks for. Raises ApiError if they do not fit in the model's context."""
    room = served.context - len(prompt)
    if sampling.max_tokens is not None and sampling.max_tokens > room:
        raise bad_request(
            f"max_tokens: {sampling.max_tokens}, but after a prompt of {len(prompt)} tokens there is room for {room}.",
            "max_tokens",
            "context_length_exceeded",
        )
    seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
    return [
        Wish(
            prompt=prompt,
            max_tokens=min(DEFAULT_NEW_TOKENS, room) if sampling.max_tokens is None else sampling.max_tokens,
            temperature=sampling.temperature,
            seed=seed,
            choice=choice,
            stops=sampling.stops,
            label=label,
        )
        for choice in range(sampling.n)
    ]


def _digest(text: str) -> bytes:
    """Return a digest of fixed length, so that comparing takes the same time for any text."""
    return sha256(text.encode(errors="replace")).digest()
