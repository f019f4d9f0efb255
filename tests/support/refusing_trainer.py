"""Run a trainer that refuses one kind of request, in the conversation of `learner.training.server`, without torch.

    python -m tests.support.refusing_trainer OP KIND TEXT

Otherwise it loads anything, exports a directory that is no model, and resumes any checkpoint. OP alone is refused.
"""

from __future__ import annotations

from learner.trainer_api.pipes import claim_pipes, requests_of

if __name__ == "__main__":
    PIPES = claim_pipes()

import sys
from pathlib import Path
from typing import BinaryIO

from protocol.core.pipe import Header, encode_frame

LOADED = {"vocab_size": 64, "parameters": 8, "fingerprint": "", "compute_dtype": "float32", "device": "cpu"}


def answer(header: Header, op: str, kind: str, text: str) -> Header:
    if header["op"] == op:
        return {"ok": False, "kind": kind, "error": text}
    if header["op"] == "export":
        directory = Path(header["directory"])
        directory.mkdir(parents=True)
        (directory / "config.json").write_text("{}", encoding="ascii")
    return {"ok": True, "seconds": 0.0, **(LOADED if header["op"] == "load" else {"steps": 0})}


def main(requests: BinaryIO, replies: BinaryIO) -> None:
    def send(header: Header) -> None:
        replies.write(encode_frame(header))
        replies.flush()

    send({"event": "ready"})
    for header, _ in requests_of(requests):
        send({"id": header["id"], **answer(header, *sys.argv[1:])})


if __name__ == "__main__":
    main(*PIPES)
