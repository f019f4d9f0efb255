"""Act as an engine worker that refuses every version, without torch.

Run in a worker's place by `[engine] python` (`refusing_python`).
"""

from __future__ import annotations

import sys
from pathlib import Path

from learner.trainer_api.pipes import claim_pipes, requests_of
from protocol.core.pipe import Header, encode_frame

REASON = "attention 'x' is not supported\x1b[2J"
"""The reason of the refusal, with a control sequence that would clear a terminal."""


def refusing_python(directory: Path) -> Path:
    """Write a program that behaves like Python, but replaces an engine's worker by this module."""
    script = directory / "refusing-python"
    script.write_text(
        f'#!/bin/sh\n[ "$1" = "-I" ] && exec "{sys.executable}" -m tests.e2e.refusing_engine\n'
        f'exec "{sys.executable}" "$@"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)
    return script


def main() -> None:
    requests, replies = claim_pipes()

    def send(header: Header) -> None:
        replies.write(encode_frame(header))
        replies.flush()

    send({"event": "ready"})
    for header, _ in requests_of(requests):
        send({"id": header["id"], "ok": False, "kind": "unsupported", "error": REASON})


if __name__ == "__main__":
    main()
