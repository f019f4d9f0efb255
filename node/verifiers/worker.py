"""A verifier: a program that holds tasks, writes their problems and says what transcripts are worth, on standard input
and output.

    python -m node.verifiers.worker     frames of protocol/core/pipe.py: requests on stdin, replies on stdout

    {"op": "open", "tasks": {title: {"spec", "directory", "seed"}}, "timeout_s", "memory_gb"}
                                         -> {"fingerprints": {title: text}}
    {"op": "judge", "task": title, "index", "held_out", "said": [text], "finished", "wants_reward"}
                                         -> {"reward": number} | {"answer": text | [[role, content]] | null}
    {"op": "pose", "task": title, "index", "held_out"}
                                         -> {"prompt": text | [[role, content]], "chat": how}

It works through its requests one at a time. What always holds: it is told texts and numbers, never code, and opens a
task by its spec; no question takes longer than `timeout_s`, since a watchdog that needs neither Python nor its lock
ends the process then, wherever it is, and says on stderr where that was; it ends when its stdin does. So whatever
command carries the two streams will do, `ssh` to another machine among them.
"""

from __future__ import annotations

import faulthandler
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from learner.trainer_api.last_resort_exit import tell_deaths
from learner.trainer_api.pipes import claim_pipes, requests_of
from protocol.core.pipe import Header, encode_frame

if TYPE_CHECKING:
    from node.tasks.api.interface import Answer
    from node.tasks.gate import Gate

GB = 1_000_000_000


def main() -> None:
    """Serve until stdin ends."""
    requests, replies = claim_pipes()
    tell_deaths()
    # Only now, since some tasks' packages print while they are imported.
    from node.runtime.errors import NodeError

    tasks: dict[str, Gate] = {}
    timeout_s = 0.0
    _write(replies, {"event": "ready"})
    for header, _ in requests_of(requests):
        try:
            if header["op"] == "open":
                timeout_s = float(header["timeout_s"])
                reply = _open(tasks, header)
            else:
                faulthandler.dump_traceback_later(timeout_s, exit=True, file=sys.stderr)
                answer = _pose if header["op"] == "pose" else _judge
                reply = answer(tasks[header["task"]], header)
                faulthandler.cancel_dump_traceback_later()
        except NodeError as error:
            faulthandler.cancel_dump_traceback_later()
            reply = {"ok": False, "kind": "task", "error": str(error)}
        _write(replies, {"ok": True, **reply, "id": header["id"]})


def _open(tasks: dict[str, Gate], header: Header) -> dict[str, Any]:
    """Raises TaskError."""
    from node.tasks.gate import Gate
    from node.tasks.registry import open_task

    if sys.platform == "linux":  # others do not keep to it, or refuse it
        limit = round(float(header["memory_gb"]) * GB)
        # The soft limit alone: a program that a task runs has limits of its own, which may be wider.
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    asked: Mapping[str, Any] = header["tasks"]
    for title, one in asked.items():
        tasks[title] = Gate(open_task(one["spec"], directory=Path(one["directory"]), seed=one["seed"]))
        tasks[title].require()
    return {"fingerprints": {title: task.fingerprint for title, task in tasks.items()}}


def _pose(task: Gate, header: Header) -> dict[str, Any]:
    """Raises TaskError."""
    from node.tasks.gate import Place

    problem = task.problem(Place(index=header["index"], held_out=header["held_out"]))
    return {"prompt": _told(problem.prompt), "chat": problem.chat.value}


def _judge(task: Gate, header: Header) -> dict[str, Any]:
    """Raises TaskError."""
    from node.tasks.grading import Asked, grade

    wants_reward = bool(header["wants_reward"])
    judgement = grade(
        task,
        Asked(
            index=header["index"],
            held_out=header["held_out"],
            said=tuple(header["said"]),
            finished=header["finished"],
            wants_reward=wants_reward,
        ),
    )
    if wants_reward:
        return {"reward": judgement}
    assert not isinstance(judgement, float), "an answer was asked"
    return {"answer": None if judgement is None else _told(judgement)}


def _told(conversation: Answer) -> str | list[list[str]]:
    if isinstance(conversation, str):
        return conversation
    return [[message.role, message.content] for message in conversation]


def _write(replies: BinaryIO, header: Mapping[str, Any]) -> None:
    replies.write(encode_frame(header))
    replies.flush()


if __name__ == "__main__":
    main()
