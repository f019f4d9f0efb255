"""Describe a task, so that two processes can be compared: `python -m node.tasks.checks.description_program`.

It reads one JSON object from standard input and writes one, after MARK.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from node.tasks.api.interface import TaskError
from node.tasks.gate import Gate, Place
from node.tasks.registry import open_task

MARK = "volery-task: "
"""Begins our line of the output, because a task's libraries may print anything."""


@dataclass(frozen=True, kw_only=True)
class Answered:
    """The description of a task by one process: its fingerprint, and a digest of each of the first problems."""

    fingerprint: str
    problems: Sequence[str]


def describe(gate: Gate, count: int) -> Answered:
    """Return this process's description of the task's first `count` problems. Raises TaskError."""
    digests = [_digest(gate, index) for index in range(count)]
    return Answered(fingerprint=gate.fingerprint, problems=digests)


def _digest(gate: Gate, index: int) -> str:
    problem = gate.problem(Place(index=index))
    return hashlib.blake2b(repr((problem.prompt, problem.answer)).encode(), digest_size=16).hexdigest()


def main() -> None:
    """Answer the request on standard input."""
    asked = json.load(sys.stdin)
    try:
        gate = Gate(
            open_task(
                asked["spec"],
                directory=Path(asked["directory"]),
                seed=asked["seed"],
                services=asked["services"],
            )
        )
        answered = describe(gate, asked["count"])
    except TaskError as error:
        raise SystemExit(str(error)) from None
    print(MARK + json.dumps({"fingerprint": answered.fingerprint, "problems": list(answered.problems)}), flush=True)


if __name__ == "__main__":
    main()
