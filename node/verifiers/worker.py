"""Run a verifier: a program that opens tasks, writes their problems and rewards transcripts, on stdin and stdout.

    python -m node.verifiers.worker     frames of protocol/core/pipe.py: requests on stdin, replies on stdout

    {"op": "open", "tasks": {title: {"spec", "directory", "seed", "services"}}, "timeout_s", "memory_gb",
     "environments", "idle_s", "at_once"}
                                         -> {"fingerprints": {title: text}}
    {"op": "judge", "task": title, "index", "held_out", "said": [text], "finished", "wants_reward"}
                                         -> {"reward": number} | {"answer": conversation | null}
    {"op": "pose", "task": title, "index", "held_out"}
                                         -> {"prompt": conversation, "chat": how, "tools": tools}

    {"op": "play", "task": title, "index", "held_out", "said": [text], "digests": [text], "finished", "wants_reward",
     "tool_format", "in_thinking"}
        -> {"of": key of the question, "reward": number, "remarks": [[service, how, detail]]}
           | {"of", "answer": conversation | null, "remarks"} | {"of", "otherwise": turn, from 1 on, "remarks"}
    A refusal of kind "time" means that a method took too long, one of kind "task" any other failure. If the task cannot
    say the reward, the reply has "unsaid", a text, in place of "reward".

Conversations and tools have the form of `node.verifiers.conversation`.

A verifier answers its requests one at a time, except "play", which concerns environments and `async` rewards. Up to
`at_once` of those are answered beside the others, in any order (`node.verifiers.episodes`). Any command that carries
the two streams can run a verifier, also `ssh` to another machine.

Invariants:

- It receives texts and numbers, never code, and opens a task by its spec.
- No question, and no call of an environment, takes longer than `timeout_s`. A watchdog then ends the process, and says
  on stderr where each thread was. It needs neither Python nor its lock.
- It ends when its stdin does.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from learner.trainer_api.last_resort_exit import tell_deaths
from learner.trainer_api.pipes import claim_pipes, requests_of
from protocol.core.pipe import Header, encode_frame

if TYPE_CHECKING:
    from node.tasks.gate import Gate
    from node.verifiers.episodes import EpisodeDesk, Watchdog

GB = 1_000_000_000


def main() -> None:
    """Serve until stdin ends."""
    requests, replies = claim_pipes()
    tell_deaths()
    # Imported only now, because some tasks' packages print while they are imported.
    from node.runtime.errors import NodeError
    from node.tasks.gate import NobodyCanSay
    from node.verifiers.episodes import Watchdog

    lock = Lock()

    def write(header: Mapping[str, Any]) -> None:
        with lock:
            replies.write(encode_frame(header))
            replies.flush()

    tasks: dict[str, Gate] = {}
    timeout_s, watchdog = 0.0, Watchdog()
    desk: EpisodeDesk | None = None
    write({"event": "ready"})
    for header, _ in requests_of(requests):
        if header["op"] == "play":
            assert desk is not None, "only tasks that wait are played"
            desk.ask(header)
            continue
        try:
            if header["op"] == "open":
                timeout_s = float(header["timeout_s"])
                reply = _open(tasks, header)
                desk = _open_desk(tasks, header, write, watchdog)
            else:
                answer = _pose if header["op"] == "pose" else _judge
                with watchdog.within(timeout_s):
                    reply = answer(tasks[header["task"]], header)
        except NobodyCanSay as error:
            reply = {"unsaid": str(error)}
        except NodeError as error:
            reply = {"ok": False, "kind": "task", "error": str(error)}
        write({"ok": True, **reply, "id": header["id"]})
    if desk is not None:
        desk.close()
        os._exit(0)  # Python would wait for a thread in which an environment hangs


def _open_desk(
    tasks: dict[str, Gate], header: Header, write: Callable[[Mapping[str, Any]], None], watchdog: Watchdog
) -> EpisodeDesk | None:
    """Return the desk for environments and `async` rewards, if a task needs it."""
    if not any(gate.has_environments or gate.has_async_reward for gate in tasks.values()):
        return None
    from node.tasks.environments.environment_host import HostLimits
    from node.verifiers.episodes import EpisodeDesk

    limits = HostLimits(
        count=header["environments"],
        idle_s=header["idle_s"],
        at_once=header["at_once"],
        step_s=header["timeout_s"],
    )
    return EpisodeDesk(tasks, limits, write, watchdog.within)


def _open(tasks: dict[str, Gate], header: Header) -> dict[str, Any]:
    """Open the tasks, and return the reply. Raises TaskError."""
    from node.tasks.gate import Gate
    from node.tasks.registry import open_task

    if sys.platform == "linux":  # other systems do not keep to the limit, or refuse it
        limit = round(float(header["memory_gb"]) * GB)
        # Only the soft limit: a program that a task runs has limits of its own, which may be wider.
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    asked: Mapping[str, Any] = header["tasks"]
    for title, one in asked.items():
        tasks[title] = Gate(
            open_task(one["spec"], directory=Path(one["directory"]), seed=one["seed"], services=one.get("services", {}))
        )
        tasks[title].require()
    return {"fingerprints": {title: task.fingerprint for title, task in tasks.items()}}


def _pose(task: Gate, header: Header) -> dict[str, Any]:
    """Return a problem as a reply. Raises TaskError."""
    from node.tasks.gate import Place
    from node.verifiers.conversation import write_conversation, write_tools

    problem = task.problem(Place(index=header["index"], held_out=header["held_out"]))
    return {
        "prompt": write_conversation(problem.prompt),
        "chat": problem.chat.value,
        "tools": write_tools(problem.tools),
    }


def _judge(task: Gate, header: Header) -> dict[str, Any]:
    """Return the judgement on a transcript as a reply. Raises TaskError."""
    from node.tasks.composed_reward import write_reward
    from node.tasks.grading import Asked, grade
    from node.verifiers.conversation import write_conversation

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
        assert isinstance(judgement, float), "a reward was asked"
        return write_reward(judgement)
    assert not isinstance(judgement, float), "an answer was asked"
    return {"answer": None if judgement is None else write_conversation(judgement)}


if __name__ == "__main__":
    main()
