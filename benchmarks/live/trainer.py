"""Run a trainer that sleeps instead of computing; it speaks as `learner.training.server` does, over the same pipe.

    python -m benchmarks.live.trainer TRAIN_S SIZE_BYTES BEGIN

It ignores the rewards that it gets.

Invariants:

- A step takes TRAIN_S.
- Every export is a model of SIZE_BYTES random bytes that all differ from those of the version before. So nothing
  compresses, no patch is smaller, and every version is sent whole.
- `load` is not answered before the file BEGIN exists.
"""

from __future__ import annotations

import sys

from learner.trainer_api.pipes import claim_pipes, requests_of

if __name__ == "__main__":
    PIPES = claim_pipes()

import json
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from benchmarks.network.payload import write_payload
from learner.trainer_api.requests import AnyRequest, Export, Load, Restore, Save, Step
from node.tasks.tokenizer import CHARACTER_VOCABULARY
from protocol.core.pipe import Header, encode_frame

POLL_S = 0.05
STATE = "trainer.json"


@dataclass(kw_only=True)
class SleepingTrainer:
    """A trainer whose steps only take time."""

    train_s: float
    size_bytes: int
    begin: Path
    steps: int = 0

    def answer(self, header: Header) -> Header:
        """Handle one request; return the reply's header."""
        began = time.monotonic()
        number = header.pop("id", None)
        try:
            reply = {"ok": True, **self._do(msgspec.convert(header, AnyRequest))}
        except (OSError, ValueError) as error:  # msgspec.ValidationError is a ValueError
            reply = {"ok": False, "kind": "bad_request", "error": str(error)}
        return {"id": number, "seconds": time.monotonic() - began, **reply}

    def _do(self, request: AnyRequest) -> Header:
        match request:
            case Load():
                while not self.begin.exists():
                    time.sleep(POLL_S)
                return {"parameters": self.size_bytes // 2, "vocab_size": CHARACTER_VOCABULARY, "fingerprint": ""}
            case Step():
                time.sleep(self.train_s)
                self.steps += 1
                return {"steps": self.steps, "loss": 0.0, "updates": 0}
            case Save(directory=directory):
                _directory(directory).joinpath(STATE).write_text(json.dumps(self.steps), encoding="ascii")
                return {"steps": self.steps}
            case Restore(directory=directory):
                self.steps = json.loads(Path(directory, STATE).read_text(encoding="ascii"))
                return {"steps": self.steps}
            case Export(directory=directory):
                made = _directory(directory)
                (made / "config.json").write_text("{}", encoding="ascii")
                weights = write_payload(made, self.size_bytes, seed=self.steps)
                return {"files": ["config.json", weights.name]}
            case _:
                raise ValueError(f"a trainer that sleeps does not know {type(request).__name__}")


def _directory(text: str) -> Path:
    path = Path(text)
    path.mkdir(parents=True)
    return path


def main(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until they end."""
    train_s, size_bytes, begin = sys.argv[1:]
    serve(SleepingTrainer(train_s=float(train_s), size_bytes=int(size_bytes), begin=Path(begin)), requests, replies)


def serve(trainer: SleepingTrainer, requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests with this trainer until they end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def send(header: Header) -> None:
        replies.write(encode_frame(header))
        replies.flush()

    send({"event": "ready"})
    for header, _ in requests_of(requests):
        saves, directory = header.get("op") == "save" and not header.get("wait", True), header.get("directory")
        reply = trainer.answer(header)
        send(reply)
        if saves and reply["ok"]:
            send({"event": "saved", "directory": directory, "bytes": 0})


if __name__ == "__main__":
    main(*PIPES)
