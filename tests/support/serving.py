"""Run an endpoint in this process: a model of hashes behind it, and streams in memory before it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import h11
import trio
from trio.testing import memory_stream_pair

from node.commands.serve.admission import Admission
from node.commands.serve.api import Api, encode
from node.commands.serve.connection import Timeouts
from node.commands.serve.server import Server
from node.engine.fake import FakeConfig, FakeEngine, open_fake_engine
from node.serving.kept_versions import KeptVersions
from node.serving.served_model import ServedModel
from node.serving.sources import Candidate, DirectorySource, Source
from node.tasks.tokenizer import write_character_tokenizer
from protocol.core.ids import ManifestHash

CONTEXT = 512

TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% for tool in tools or [] %}{{ tool.function.name }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_nominal_model(directory: Path, *, template: str | None = TEMPLATE) -> Path:
    """Write a model directory that the fake engine loads: a tokenizer of characters, a config.json, and no weights."""
    write_character_tokenizer(directory, chat_template=template)
    (directory / "config.json").write_text(json.dumps({"vocab_size": 64, "max_position_embeddings": CONTEXT}))
    (directory / "model.safetensors").touch()
    return directory


def write_random_model(directory: Path, *, seed: int, context: int = CONTEXT, is_endless: bool = False) -> Path:
    """Write a small Qwen3 of random weights with a tokenizer of characters, unless it is there already. With
    `is_endless` it never ends a text at temperature 0.
    """
    import torch
    import transformers

    if not directory.exists():
        write_character_tokenizer(directory, chat_template=TEMPLATE)
        transformers.utils.logging.disable_progress_bar()
        torch.manual_seed(seed)
        config = transformers.Qwen3Config(
            hidden_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
            intermediate_size=128, vocab_size=64, max_position_embeddings=context, tie_word_embeddings=True,
            bos_token_id=None, eos_token_id=2, initializer_range=0.2,
        )  # fmt: skip
        model = transformers.Qwen3ForCausalLM(config)
        if is_endless:
            model.get_input_embeddings().weight.data[2] = 0.0  # tied, so its logit is 0, which is never the largest
        model.save_pretrained(directory)
    return directory


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A client's reply; `events` are those of a stream."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        lines = [line.removeprefix("data: ") for line in self.body.decode().split("\n\n") if line]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]

    @property
    def error(self) -> Any:
        return self.json["error"]


@dataclass(kw_only=True)
class Endpoint:
    """A server and its clients."""

    server: Server
    engine: FakeEngine
    nursery: trio.Nursery
    told: list[str] = field(default_factory=list)

    @property
    def model(self) -> ServedModel:
        return self.server.api.model

    @property
    def admission(self) -> Admission:
        return self.server.api.admission

    def connect(self) -> trio.abc.HalfCloseableStream:
        """Return a new connection."""
        ours, theirs = memory_stream_pair()
        self.nursery.start_soon(self.server.welcome, theirs)
        return ours

    async def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        """Send one request on a connection of its own."""
        stream = self.connect()
        await stream.send_all(request(method, path, body, **headers))
        return await read_reply(stream, method)

    async def post(self, path: str, **fields: Any) -> Reply:
        """Send a request in JSON, for the model called "model"."""
        return await self.ask("POST", path, json.dumps({"model": "model", **fields}).encode())

    async def chat(self, words: str = "hello", **fields: Any) -> Reply:
        """Send a conversation of one message."""
        return await self.post("/v1/chat/completions", messages=[{"role": "user", "content": words}], **fields)


def request(method: str, path: str, body: bytes | None = None, **headers: str) -> bytes:
    """Return the bytes of a request. Names of `headers` have "_" for "-"."""
    told = {"host": "localhost:8000", "connection": "close"}
    if body is not None:
        told |= {"content-type": "application/json", "content-length": str(len(body))}
    told |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in told.items() if value), "", ""]
    return "\r\n".join(lines).encode() + (body or b"")


async def read_reply(stream: trio.abc.ReceiveStream, method: str = "GET") -> Reply:
    """Read one answer."""
    http = h11.Connection(h11.CLIENT)
    http.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
    http.send(h11.EndOfMessage())
    status, headers, body = 0, dict[str, str](), b""
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(bytes(await stream.receive_some()))
        elif isinstance(event, h11.Response):
            status, headers = event.status_code, {name.decode(): value.decode() for name, value in event.headers}
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            return Reply(status=status, headers=headers, body=body)
        elif isinstance(event, h11.ConnectionClosed):
            raise EOFError("no answer")


async def _encode_here(served: Any, request: Any) -> tuple[int, ...]:
    """Encode without a thread, since virtual time does not wait for threads."""
    return encode(served, request)


class SameSource(DirectorySource):
    """A directory whose version is the same wherever it lies, so that a fake engine draws the same in every run."""

    def newest(self) -> Candidate | None:
        found = super().newest()
        return found and replace(found, version=replace(found.version, manifest=ManifestHash(bytes(32))))


@asynccontextmanager
async def open_endpoint(
    source: Path | Source,
    *,
    key: str | None = None,
    seconds_per_token: float = 0.01,
    timeouts: Timeouts = Timeouts(),  # noqa: B008
    **admission: Any,
) -> AsyncIterator[Endpoint]:
    """Run an endpoint of the model in a directory, or of a source, until the scope is left."""
    found = SameSource(directory=source, name="model") if isinstance(source, Path) else source
    told: list[str] = []
    async with (
        open_fake_engine(FakeConfig(seconds_per_token=seconds_per_token)) as engine,
        trio.open_nursery() as nursery,
    ):
        model = ServedModel(engine=engine, source=found, kept=KeptVersions(root=None), tell=told.append)
        newest = found.newest()
        assert newest is not None
        await model.begin(newest)
        nursery.start_soon(model.run_rounds)
        server = Server(
            api=Api(model=model, key=key, encode=_encode_here, admission=Admission(**admission)), timeouts=timeouts
        )
        yield Endpoint(server=server, engine=engine, nursery=nursery, told=told)
        nursery.cancel_scope.cancel()
