"""Train without torch, in the conversation of `learner.training.server`: weights are a hash of all training data.

Invariants:

- A checkpoint also lists what every step was trained on, as a digest for each sequence. So a chain of steps can be
  judged without the ledger.
- Threads write checkpoints and exports beside training, first one half of them, then the other.
"""

from __future__ import annotations

from learner.trainer_api.pipes import claim_pipes, requests_of

if __name__ == "__main__":
    PIPES = claim_pipes()

import json
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from learner.trainer_api.requests import AnyRequest, Export, Load, Restore, Save, Step
from node.tasks.tokenizer import CHARACTER_VOCABULARY, write_character_tokenizer
from protocol.core.pipe import Arrays, Header, encode_frame
from tests.e2e.doom import Doom
from tests.support.store_fixture import safetensors_file

STATE = "trainer.json"
NOT_LOADED = 'no model is loaded; send "load" first'
"""The real trainer says the same when it was killed, started again, and has no model."""
STEP_S = "VOLERY_TEST_STEP_S"
"""Environment variable: the seconds that a step takes, as the fake engine's `token_s` is what a token takes."""
EMBEDDING_BYTES = 200_000
"""Bytes of weights that never change: enough for a version to have several chunks."""


@dataclass
class HashingTrainer:
    """A trainer that hashes what it is trained on."""

    replies: BinaryIO
    doom: Doom = field(default_factory=Doom)
    step_s: float = float(os.environ.get(STEP_S, "0"))
    weights: bytes = b""
    """Empty before a model is loaded."""
    history: list[list[str]] = field(default_factory=list)
    _saving: threading.Thread | None = None
    _writing: threading.Lock = field(default_factory=threading.Lock)

    def send(self, header: Header) -> None:
        with self._writing:
            self.replies.write(encode_frame(header))
            self.replies.flush()

    def answer(self, header: Header, arrays: Arrays) -> None:
        fields = {key: value for key, value in header.items() if key != "id"}
        try:
            request = msgspec.convert(fields, AnyRequest)
            reply: Header = {"ok": True, **self._do(request, arrays)}
        except (OSError, ValueError) as error:
            kind = "bad_checkpoint" if header["op"] == "restore" else "bad_request"
            reply = {"ok": False, "kind": kind, "error": f"{error}; restore an older one"}
        seconds = self.step_s if header["op"] == "step" else 0.0
        self.send({"id": header["id"], "seconds": max(seconds, 0.01), **reply})

    def _do(self, request: AnyRequest, arrays: Arrays) -> Header:
        if not self.weights and not isinstance(request, Load):
            raise ValueError(NOT_LOADED)
        match request:
            case Load():
                self.weights, self.history = sha256(b"initial").digest(), []
                return {"vocab_size": CHARACTER_VOCABULARY, "parameters": 8, "fingerprint": ""}
            case Step():
                self.doom.pass_by("trainer.step", "before")
                time.sleep(self.step_s)
                self.history.append(digests(arrays))
                self.weights = sha256(self.weights + "".join(self.history[-1]).encode()).digest()
                self.doom.pass_by("trainer.step", "after")
                return {"steps": len(self.history), "loss": 0.0, "updates": 1}
            case Save(directory=directory):
                self._wait_saved()
                text = json.dumps({"weights": self.weights.hex(), "history": self.history})
                self._saving = threading.Thread(target=self._save, args=(Path(directory), text))
                self._saving.start()
                return {"steps": len(self.history)}
            case Restore(directory=directory):
                self._wait_saved()
                state = json.loads(Path(directory, STATE).read_text(encoding="ascii"))
                self.weights, self.history = bytes.fromhex(state["weights"]), state["history"]
                self.doom.pass_by("trainer.restore", "after")
                return {"steps": len(self.history)}
            case Export(directory=directory, wait=True):
                return {"files": self._export(Path(directory), self.weights)}
            case Export(directory=directory):
                threading.Thread(target=self._export_beside, args=(Path(directory), self.weights), daemon=True).start()
                return {}
            case _:
                raise ValueError(f"a trainer that hashes does not know {type(request).__name__}")

    def _save(self, directory: Path, text: str) -> None:
        partial = directory.with_name(f".{directory.name}.partial")
        partial.mkdir(parents=True)
        (partial / STATE).write_text(text[: len(text) // 2], encoding="ascii")
        self.doom.pass_by("trainer.save", "half")
        (partial / STATE).write_text(text, encoding="ascii")
        partial.rename(directory)
        self.doom.pass_by("trainer.save", "after")
        self.send({"event": "saved", "directory": str(directory), "bytes": len(text)})

    def _wait_saved(self) -> None:
        if self._saving is not None:
            self._saving.join()

    def _export_beside(self, directory: Path, weights: bytes) -> None:
        self.send({"event": "exported", "directory": str(directory), "files": self._export(directory, weights)})

    def _export(self, directory: Path, weights: bytes) -> list[str]:
        directory.mkdir(parents=True)
        (directory / "config.json").write_text("{}", encoding="ascii")
        self.doom.pass_by("trainer.export", "half")
        tensors = {"embed": ("U8", (EMBEDDING_BYTES,), bytes(EMBEDDING_BYTES)), "layer": ("U8", (32,), weights)}
        (directory / "model.safetensors").write_bytes(safetensors_file(tensors))
        write_character_tokenizer(directory)
        return sorted(path.name for path in directory.iterdir())


def digests(arrays: Arrays) -> list[str]:
    """Return one digest for each sequence of a batch, of its tokens and behaviour log probabilities."""
    ends = np.cumsum(arrays["lengths"])
    generated = np.cumsum([part.sum() for part in np.split(arrays["mask"], ends[:-1])])
    rows = np.split(arrays["tokens"], ends[:-1])
    logprobs = np.split(arrays["behaviour_logprobs"], generated[:-1].astype(np.int64))
    return [sha256(a.tobytes() + b.tobytes()).hexdigest()[:16] for a, b in zip(rows, logprobs, strict=True)]


def main(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until their stream ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    trainer = HashingTrainer(replies)
    trainer.send({"event": "ready"})
    for header, arrays in requests_of(requests):
        trainer.answer(header, arrays)
    os._exit(0)  # files that are being written stay unfinished, as after a kill


if __name__ == "__main__":
    main(*PIPES)
