"""An endpoint under requests of every kind: answers, streams, refusals, and clients that mean harm.

The engine is one of hashes, the connections are in memory, and the time is virtual.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, lockstep_stream_pair, wait_all_tasks_blocked

from node.commands.serve.limits import MAX_HEAD_BYTES, MAX_REQUEST_BYTES
from node.commands.serve.server import TOO_MANY
from tests.support.serving import CONTEXT, Endpoint, open_endpoint, read_reply, request, write_nominal_model

KEY = "0123456789abcdef"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_nominal_model(tmp_path / "model")


async def settled(endpoint: Endpoint) -> None:
    """Everything is given back."""
    await wait_all_tasks_blocked(0.01)
    assert (endpoint.admission.num_requests, endpoint.admission.num_completions) == (0, 0)
    assert endpoint.model._completions == endpoint.model._spans == 0


class TestAnswers:
    async def test_a_stream_says_what_an_answer_says(self, directory: Path, autojump_clock: MockClock) -> None:
        async with open_endpoint(directory) as endpoint:
            wanted: dict[str, Any] = {"n": 2, "seed": 5, "max_tokens": 200, "logprobs": True}
            whole = (await endpoint.chat(**wanted)).json
            stream = await endpoint.chat(**wanted, stream=True, stream_options={"include_usage": True})
            assert stream.headers["content-type"] == "text/event-stream"
            *events, usage, done = stream.events
            assert done == "[DONE]"
            assert (usage["choices"], usage["usage"]) == ([], whole["usage"])
            for index, choice in enumerate(whole["choices"]):
                mine = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
                assert mine[0]["delta"] == {"role": "assistant", "content": ""}
                assert "".join(one["delta"].get("content", "") for one in mine) == choice["message"]["content"]
                assert mine[-1]["finish_reason"] == choice["finish_reason"]
                told = [token for one in mine for token in (one["logprobs"] or {"content": []})["content"]]
                assert told == choice["logprobs"]["content"]
            assert whole["choices"][0]["message"] != whole["choices"][1]["message"]
            await settled(endpoint)

    async def test_lengths_stops_and_usage(self, directory: Path, autojump_clock: MockClock) -> None:
        async with open_endpoint(directory) as endpoint:
            long = (await endpoint.post(TEXT, prompt="abc", max_tokens=30, temperature=0)).json
            text, finish = long["choices"][0]["text"], long["choices"][0]["finish_reason"]
            assert finish == ("length" if long["usage"]["completion_tokens"] == 30 else "stop")
            stop = text[3:5]
            short = (await endpoint.post(TEXT, prompt="abc", max_tokens=30, temperature=0, stop=[stop])).json
            assert short["choices"][0]["text"] == text[: text.index(stop)]
            assert short["choices"][0]["finish_reason"] == "stop"
            ids = (await endpoint.post(TEXT, prompt=[4, 5, 6], max_tokens=30, temperature=0)).json
            assert ids["choices"][0]["text"] == text, "ids 4 to 6 are abc"
            assert ids["usage"]["prompt_tokens"] == 3

    async def test_models_and_health(self, directory: Path, autojump_clock: MockClock) -> None:
        async with open_endpoint(directory) as endpoint:
            (model,) = (await endpoint.ask("GET", "/v1/models")).json["data"]
            assert (model["id"], model["max_model_len"]) == ("model", CONTEXT)
            assert (await endpoint.ask("GET", "/v1/models/model")).json == model
            assert (await endpoint.ask("GET", "/health")).json["status"] == "ok"

    @pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "CONNECT"])
    async def test_other_methods_are_answered(self, directory: Path, autojump_clock: MockClock, method: str) -> None:
        async with open_endpoint(directory) as endpoint:
            for path in ("/v1/models", CHAT, "/x"):
                reply = await endpoint.ask(method, path)
                assert reply.status in (404, 405)
                assert bool(reply.body) == (method != "HEAD")
            assert endpoint.told == []

    async def test_one_connection_takes_request_after_request(self, directory: Path, autojump_clock: MockClock) -> None:
        async with open_endpoint(directory) as endpoint:
            stream = endpoint.connect()
            for _ in range(3):
                await stream.send_all(request("GET", "/health", connection="keep-alive"))
                assert (await read_reply(stream)).status == 200
            assert endpoint.server.num_connections == 1

    async def test_an_engine_that_ends_is_gone_on_with(self, directory: Path, autojump_clock: MockClock) -> None:
        async with open_endpoint(directory) as endpoint:
            replies = []

            async def ask() -> None:
                replies.append(await endpoint.post(TEXT, prompt="abc", max_tokens=100, seed=1))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await trio.sleep(0.3)
                endpoint.engine.crash()
            assert replies[0].status == 200


CALL = '{"name": "add", "arguments": {"a": 1}}'
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


class TestTools:
    """The engine says what is put into its mouth."""

    async def said(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch, text: str, **wanted: Any
    ) -> tuple[dict[str, Any], str]:
        async with open_endpoint(directory) as endpoint:
            tokens = endpoint.model.served.codec.encode_answer(text)

            async def say(requests: Any, on_tokens: Any) -> Any:
                for place, request in enumerate(requests):
                    made = len(request.prompt) - num_prompt
                    on_tokens(place, 0, tokens[made:], [-1.0] * len(tokens[made:]))
                return [Made(tokens=tokens[len(request.prompt) - num_prompt :]) for request in requests]

            num_prompt = (await endpoint.chat(max_tokens=1, tools=wanted.get("tools"))).json["usage"]["prompt_tokens"]
            monkeypatch.setattr(endpoint.engine, "generate_streaming", say)
            whole = (await endpoint.chat(**wanted)).json["choices"][0]
            stream = (await endpoint.chat(**wanted, stream=True)).events
            deltas = [event["choices"][0] for event in stream[:-1]]
            merged = "".join(one["delta"].get("content") or "" for one in deltas)
            calls = [call for one in deltas for call in one["delta"].get("tool_calls", [])]
            assert merged == (whole["message"]["content"] or "")
            assert [call | {"index": 0} for call in whole["message"].get("tool_calls", [])] == calls
            assert deltas[-1]["finish_reason"] == whole["finish_reason"]
            return whole["message"], whole["finish_reason"]

    async def test_a_call_is_told_as_one(
        self, directory: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        message, finish = await self.said(directory, monkeypatch, CALL, tools=[TOOL])
        assert (message["content"], finish) == (None, "tool_calls")
        assert message["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}

    @pytest.mark.parametrize(
        ("text", "tools"),
        [(CALL, []), ("plain words", [TOOL]), (CALL.replace("add", "sub"), [TOOL])],
        ids=["without tools", "words", "another tool"],
    )
    async def test_anything_else_is_text(
        self, directory: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, text: str, tools: list[Any]
    ) -> None:
        message, finish = await self.said(directory, monkeypatch, text, tools=tools)
        assert (message["content"], finish) == (text, "stop")
        assert "tool_calls" not in message


@dataclass
class Made:
    """What an engine made."""

    tokens: tuple[int, ...]

    @property
    def logprobs(self) -> list[float]:
        return [-1.0] * len(self.tokens)


REFUSED: dict[str, tuple[int, str, Callable[[Endpoint], Any]]] = {
    "path": (404, "GET /v1/models", lambda e: e.ask("GET", "/v2")),
    "method": (405, "is not supported", lambda e: e.ask("DELETE", CHAT)),
    "content": (415, "application/json", lambda e: e.ask("POST", CHAT, b"{}", content_type="text/plain")),
    "page": (403, "127.0.0.1", lambda e: e.ask("GET", "/v1/models", host="evil.example:8000")),
    "model": (404, "Served: model.", lambda e: e.post(CHAT, model="gpt-4", messages=[{"role": "user", "content": ""}])),
    "version": (404, "Served: model.", lambda e: e.ask("GET", "/v1/models/model@1.5")),
    "context": (400, "messages: ", lambda e: e.chat("a" * CONTEXT)),
    "room": (400, "max_tokens: ", lambda e: e.chat(max_tokens=CONTEXT)),
    "vocabulary": (400, "prompt: ", lambda e: e.post(TEXT, prompt=[64])),
    "role": (400, "messages[0].role: ", lambda e: e.post(CHAT, messages=[{"role": "x", "content": ""}])),
    "surrogate": (400, "The request is not JSON", lambda e: e.ask("POST", CHAT, b'{"model": "\\ud800"}')),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_cannot_be_done_is_said(directory: Path, autojump_clock: MockClock, name: str) -> None:
    status, words, ask = REFUSED[name]
    async with open_endpoint(directory) as endpoint:
        reply = await ask(endpoint)
        assert reply.status == status
        assert words in reply.error["message"]
        await settled(endpoint)
        assert (await endpoint.chat(max_tokens=3)).status == 200, "the next one is answered"


async def test_a_defect_of_ours_ends_one_request_alone(
    directory: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_endpoint(directory) as endpoint:

        async def fail(*_: object) -> tuple[int, ...]:
            raise ZeroDivisionError("a defect")

        with monkeypatch.context() as patch:
            patch.setattr(endpoint.server.api, "encode", fail)
            reply = await endpoint.chat()
        assert (reply.status, reply.error["type"]) == (500, "server_error")
        await settled(endpoint)
        assert (await endpoint.chat(max_tokens=3)).status == 200
        assert "a defect" in endpoint.told[0]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("127.0.0.1:8000", 200),
        ("127.8.8.8:80", 200),
        ("[::1]:8000", 200),
        ("[::1]", 200),
        ("LOCALHOST:1", 200),
        ("localhost.evil.example", 403),
        ("evil.example:8000", 403),
        ("127.0.0.1.evil.example", 403),
        ("10.0.0.1", 403),
    ],
)
async def test_without_a_key_only_local_names_are_answered(
    directory: Path, autojump_clock: MockClock, host: str, status: int
) -> None:
    async with open_endpoint(directory) as endpoint:
        assert (await endpoint.ask("GET", "/v1/models", host=host)).status == status


async def test_a_model_without_a_template_takes_texts_alone(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_endpoint(write_nominal_model(tmp_path / "model", template=None)) as endpoint:
        assert (await endpoint.post(TEXT, prompt="abc", max_tokens=3)).status == 200
        reply = await endpoint.chat()
        assert (reply.status, reply.error["param"]) == (400, "messages")
        assert "no chat template" in reply.error["message"]


async def test_only_the_key_opens_and_no_name_is_asked_for_then(directory: Path, autojump_clock: MockClock) -> None:
    async with open_endpoint(directory, key=KEY) as endpoint:
        for given in ("", "Bearer", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", "Basic x", "Bearer \xe4"):
            for path in ("/v1/models", "/health", "/x"):
                reply = await endpoint.ask("GET", path, authorization=given)
                assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
        reply = await endpoint.ask("GET", "/v1/models", authorization=f"Bearer {KEY}", host="example.org")
        assert reply.status == 200


class TestHarm:
    async def test_a_large_body_is_refused_before_it_is_sent(self, directory: Path, autojump_clock: MockClock) -> None:
        async with open_endpoint(directory) as endpoint:
            stream = endpoint.connect()
            await stream.send_all(request("POST", CHAT, b"", content_length="1000000"))
            assert (await read_reply(stream)).status == 413
            await settled(endpoint)

    async def test_a_body_of_unknown_length_is_counted(self, directory: Path, autojump_clock: MockClock) -> None:
        async with open_endpoint(directory) as endpoint:
            stream = endpoint.connect()
            await stream.send_all(request("POST", CHAT, b"", content_length="", transfer_encoding="chunked"))
            piece = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
            for _ in range(MAX_REQUEST_BYTES // 0x10000 + 1):
                await stream.send_all(piece)
            assert (await read_reply(stream)).status == 413
            await settled(endpoint)

    async def test_a_body_that_never_ends_is_given_up(self, directory: Path, autojump_clock: MockClock) -> None:
        async with open_endpoint(directory) as endpoint:
            stream = endpoint.connect()
            await stream.send_all(request("POST", CHAT, b"{", content_length="100"))
            assert (await read_reply(stream)).status == 408
            await settled(endpoint)

    async def test_a_head_that_never_ends_is_given_up(self, directory: Path, autojump_clock: MockClock) -> None:
        async with open_endpoint(directory) as endpoint:
            slow, long = endpoint.connect(), endpoint.connect()
            await slow.send_all(b"GET / HTTP/1.1\r\nhost:")
            await long.send_all(b"GET / HTTP/1.1\r\nhost: " + b"x" * MAX_HEAD_BYTES)
            assert (await read_reply(long)).status == 431
            assert await slow.receive_some() == b""
            assert endpoint.server.num_connections == 0

    @pytest.mark.parametrize(
        "sent", [b"\x16\x03\x01\x00", b"SSH-2.0-x\r\n\r\n", b"GET /\r\n\r\n"], ids=["TLS", "SSH", "0.9"]
    )
    async def test_what_is_no_http_is_refused(self, directory: Path, autojump_clock: MockClock, sent: bytes) -> None:
        async with open_endpoint(directory) as endpoint:
            stream = endpoint.connect()
            await stream.send_all(sent + b"\r\n\r\n")
            assert (await read_reply(stream)).status == 400

    async def test_a_stream_that_nobody_reads_is_given_up(self, directory: Path, autojump_clock: MockClock) -> None:
        async with open_endpoint(directory) as endpoint:
            ours, theirs = lockstep_stream_pair()  # nothing is buffered on the way
            endpoint.nursery.start_soon(endpoint.server.welcome, theirs)
            body = {"model": "model", "prompt": "abc", "max_tokens": 400, "stream": True, "temperature": 2}
            await ours.send_all(request("POST", TEXT, json.dumps(body).encode()))
            assert b"200" in await ours.receive_some()
            await trio.sleep(5)
            assert endpoint.admission.num_completions == 1
            await trio.sleep(30)
            await settled(endpoint)
            assert endpoint.server.num_connections == 0

    @pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
    async def test_a_client_that_leaves_ends_its_completions(
        self, directory: Path, autojump_clock: MockClock, stream: bool
    ) -> None:
        async with open_endpoint(directory, seconds_per_token=100) as endpoint:
            client = endpoint.connect()
            body = {"model": "model", "prompt": "abc", "max_tokens": 400, "stream": stream, "n": 3}
            await client.send_all(request("POST", TEXT, json.dumps(body).encode()))
            await trio.sleep(1)
            assert endpoint.admission.num_completions == 3
            await client.aclose()
            await settled(endpoint)

    async def test_requests_beyond_the_room_are_sent_away(self, directory: Path, autojump_clock: MockClock) -> None:
        async with open_endpoint(directory, most_requests=2, most_completions=1) as endpoint:
            replies = []

            async def ask() -> None:
                replies.append(await endpoint.post(TEXT, prompt="abc", max_tokens=100))

            async with trio.open_nursery() as nursery:
                for _ in range(50):
                    nursery.start_soon(ask)
            found = sorted(reply.status for reply in replies)
            assert found == [200] * 2 + [429] * 48
            assert all(reply.headers["retry-after"] == "2" for reply in replies if reply.status == 429)
            await settled(endpoint)

    async def test_connections_beyond_the_room_are_sent_away(self, directory: Path, autojump_clock: MockClock) -> None:
        async with open_endpoint(directory) as endpoint:
            endpoint.server.most_connections, endpoint.server.most_refusals = 2, 3
            streams = [endpoint.connect() for _ in range(8)]
            await wait_all_tasks_blocked()
            assert (endpoint.server.num_connections, endpoint.server.num_refusals) == (2, 3)
            await trio.sleep(5)  # those that are told why are closed by then
            assert (endpoint.server.num_connections, endpoint.server.num_refusals) == (2, 0)
            heard: list[bytes] = []
            for stream in streams:
                with trio.move_on_after(1):
                    heard.append(bytes(await stream.receive_some()))
            assert sorted(heard) == [b""] * 3 + [TOO_MANY] * 3
            assert (await read_reply_of(TOO_MANY)) == 429


async def read_reply_of(data: bytes) -> int:
    """The status of an answer in one piece."""
    ours, theirs = trio.testing.memory_stream_pair()
    await theirs.send_all(data)
    return (await read_reply(ours)).status
