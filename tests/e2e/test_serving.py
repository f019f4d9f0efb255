"""Run `volery serve` as people do, with OpenAI's own client.

The tests cover answers, streams, versions that come and go, an engine that is killed, and clients that mean harm.
"""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from protocol.versions.manifest import SignedManifest
from swarm.store import ChunkStore
from tests.e2e.programs import Machine, Program, free_port, wait_for
from tests.support.serving import CONTEXT, write_random_model
from tests.support.store_fixture import SmallSwarm, small_swarm

WORKER = "transformers_worker"


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Return a function that gives a small Qwen3 of random weights for a seed."""
    root = tmp_path_factory.mktemp("served")

    def make(seed: int) -> Path:
        return write_random_model(root / f"model-{seed}", seed=seed)

    return make


@dataclass(kw_only=True)
class Learner:
    """The state directory of a learner that has published some versions."""

    state: Path
    swarm: SmallSwarm

    def publish(self, model: Path, version: int) -> SignedManifest:
        """Put a version into the store."""
        files = {path.name: path.read_bytes() for path in sorted(model.iterdir())}
        signed = self.swarm.publish(files, version=version, chunk_bytes=1 << 16)
        with ChunkStore.open(self.state / "store", self.swarm.authority) as store:
            store.remember_genesis(self.swarm.genesis)
            store.adopt(signed, model)
        return signed

    def evict_all_but(self, signed: SignedManifest) -> None:
        """Remove the other versions, as a learner does for room."""
        with ChunkStore.open(self.state / "store", self.swarm.authority) as store:
            store.evict({signed.hash})


@pytest.fixture
def learner(tmp_path: Path) -> Learner:
    state = tmp_path / "run"
    state.mkdir()
    (state / "learner.key").touch()
    return Learner(state=state, swarm=small_swarm())


@dataclass(kw_only=True)
class Served:
    """A program that serves, and a client of it."""

    program: Program
    port: int

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0, timeout=120)

    def said(self, words: str) -> None:
        """Wait until the program has printed this."""
        told = (self.program.out, self.program.err)
        wait_for(words, lambda: any(words in path.read_text() for path in told) or None, self.program)


@pytest.fixture
def serve(machine: Machine) -> Callable[..., Served]:
    def start(*arguments: object) -> Served:
        port = free_port()
        program = machine.start("serve", "serve", *arguments, "--port", port, "--device", "cpu")
        served = Served(program=program, port=port)
        served.said("Ctrl-C ends")
        return served

    return start


def words(client: openai.OpenAI, model: str, **wanted: Any) -> tuple[str, str]:
    """Return an answer, and the version that made it."""
    settings: dict[str, Any] = {"temperature": 0, "max_tokens": 40} | wanted
    made = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hello"}], **settings)
    return made.choices[0].message.content or "", (made.system_fingerprint or "").partition("-")[0]


def test_a_directory_is_served_to_openais_client(serve: Callable[..., Served], weights: Callable[[int], Path]) -> None:
    served = serve(weights(1))
    client = served.client
    assert [model.id for model in client.models.list()] == ["model-1"]
    wanted: dict[str, Any] = {
        "model": "model-1",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 200,
        "seed": 3,
        "n": 2,
    }
    whole = client.chat.completions.create(**wanted, logprobs=True)
    assert whole.usage is not None
    assert len(whole.choices) == 2
    assert whole.choices[0].message.content != whole.choices[1].message.content

    said, chunks, usage = {0: "", 1: ""}, 0, None
    for chunk in client.chat.completions.create(**wanted, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            said[choice.index] += choice.delta.content or ""
            chunks += bool(choice.delta.content)
    assert said == {choice.index: choice.message.content for choice in whole.choices}
    assert usage == whole.usage
    assert chunks > 10, "tokens must come as they are drawn, one chunk each"

    text = client.completions.create(model="model-1", prompt="hello", max_tokens=8, temperature=0)
    assert text.usage is not None
    assert text.usage.prompt_tokens == 5

    with pytest.raises(openai.NotFoundError, match="not served"):
        words(client, "gpt-4")
    with pytest.raises(openai.BadRequestError, match="top_p"):
        words(client, "model-1", top_p=0.5)
    with pytest.raises(openai.BadRequestError, match="room"):
        words(client, "model-1", max_tokens=CONTEXT)
    with pytest.raises(openai.APIStatusError) as large:
        client.chat.completions.create(model="model-1", messages=[{"role": "user", "content": "x" * 1_000_000}])
    assert large.value.status_code == 413

    family = served.program.family()
    served.program.interrupt()
    assert served.program.wait() == 0
    assert "Stopped." in served.program.out.read_text()
    assert not any(psutil.pid_exists(one.pid) for one in family[1:])


def test_an_engine_that_is_killed_comes_back(serve: Callable[..., Served], weights: Callable[[int], Path]) -> None:
    served = serve(weights(1))
    before = words(served.client, "model-1")
    stream = served.client.completions.create(model="model-1", prompt="abc", max_tokens=400, seed=5, stream=True)
    said = next(iter(stream)).choices[0].text
    served.program.child(WORKER).kill()
    for chunk in stream:
        said += chunk.choices[0].text if chunk.choices else ""
    assert said
    assert words(served.client, "model-1") == before
    served.said("is being restarted")


def test_newer_versions_are_served_and_older_ones_are_not_there(
    serve: Callable[..., Served], weights: Callable[[int], Path], learner: Learner
) -> None:
    first = learner.publish(weights(1), 1)
    served = serve(learner.state)
    client = served.client
    assert [model.id for model in client.models.list()] == ["run", "run@1.1"]
    old, version = words(client, "run")
    assert version == "1.1"
    assert words(client, "run@1.1")[0] == old

    second = learner.publish(weights(2), 2)
    served.said("Now serving version 1.2")
    assert words(client, "run")[1] == "1.2"
    assert words(client, "run")[0] != old
    with pytest.raises(openai.NotFoundError, match=r"run@1\.2"):
        words(client, "run@1.1")

    # The served version stays, also after the store evicted it and the engine must load it again.
    third = learner.publish(weights(3), 3)
    served.said("Now serving version 1.3")
    kept = words(client, "run@1.3")
    shutil.rmtree(learner.state / "store" / "versions" / third.hash.hex())
    served.program.child(WORKER).kill()
    assert words(client, "run@1.3") == kept
    served.program.interrupt()
    assert served.program.wait() == 0
    assert not (learner.state / "serving").exists()
    assert {first.hash, second.hash, third.hash}


def test_a_version_that_was_named_is_stayed_on(
    serve: Callable[..., Served], weights: Callable[[int], Path], learner: Learner, machine: Machine
) -> None:
    learner.publish(weights(1), 1)
    newest = learner.publish(weights(2), 2)
    served = serve(learner.state, "--version", "1", "--name", "mine")
    kept = words(served.client, "mine@1.1")
    learner.evict_all_but(newest)
    served.program.child(WORKER).kill()
    assert words(served.client, "mine@1.1") == kept
    told = machine.call("serve", learner.state, "--version", "1", "--dry-run")
    assert told.code == 2
    assert "Held: 1.2" in told.err


def test_what_cannot_be_served_is_said(machine: Machine, weights: Callable[[int], Path], learner: Learner) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        program = machine.start("taken", "serve", weights(1), "--port", port, "--device", "cpu")
        assert program.wait() == 2
        assert f"--port {port}: cannot listen there" in program.err.read_text()
    for arguments, code, said in (
        ((learner.state,), 1, "holds no complete version yet"),
        ((learner.state / "nowhere",), 2, "no such file"),
        ((weights(1), "--version", "3"), 2, "is a model directory"),
        ((weights(1), "--device", "gpu"), 2, "--device gpu"),
        ((weights(1), "--host", "0.0.0.0"), 2, "--key-file"),
        ((weights(1), "--host", "0.0.0.0", "--key", "short"), 2, "can be guessed"),
        ((weights(1), "--key-file", "none"), 2, "none"),
    ):
        told = machine.call("serve", *arguments, "--dry-run")
        assert (told.code, said in told.err) == (code, True), told
        assert re.search(r"[.?]$|serve|openssl", told.err.strip()), told.err
    told = machine.call("serve", weights(1), "--dry-run")
    assert (told.code, "512 tokens" in told.out) == (0, True)


@pytest.mark.slow
def test_thousands_of_clients_and_bodies_do_no_harm(
    serve: Callable[..., Served], weights: Callable[[int], Path]
) -> None:
    """Most of ten thousand requests are refused: nothing grows, and the next one is answered."""
    served = serve(weights(1))
    words(served.client, "model-1")
    process = psutil.Process(served.program.pid)
    before = process.memory_info().rss
    body = b'{"model": "model-1", "prompt": "abc", "max_tokens": 500, "temperature": 2, "stream": true}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
    message = head + str(len(body)).encode() + b"\r\n\r\n" + body
    for _ in range(20):
        crowd = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(500)]
        for one in crowd:
            with suppress(OSError):  # it was refused already
                one.sendall(message)
        for one in crowd:
            one.close()
    grown = process.memory_info().rss - before
    assert grown < 100 * 2**20, f"{grown >> 20} MiB more"
    slow = socket.create_connection(("127.0.0.1", served.port))
    slow.sendall(b"GET / HT")
    reply = httpx.get(f"http://127.0.0.1:{served.port}/health", timeout=60)
    assert reply.status_code in (200, 429)

    def answered() -> bool | None:
        return httpx.get(f"http://127.0.0.1:{served.port}/health", timeout=60).status_code == 200 or None

    wait_for("an answer", answered, served.program)
    assert words(served.client, "model-1")[0]
    slow.close()
