"""Write and read the messages between a client and a server of OpenEnv 0.3 on its WebSocket /ws.

A request is {"type": "reset" | "step" | "state" | "mcp" | "close", "data": ...}. A reply is {"type": "observation" |
"state" | "mcp" | "error", "data": ...}; the reply to a reset or a step has `observation`, `reward` and `done`. Requests
have no numbers, so a session has only one request open. HTTP's /reset and /step make another environment for each
request, so episodes need the WebSocket.

OpenEnv's own client would bring FastAPI, Gradio and an OpenAI client into the learner's environment. It also accepts
NaN as a number, and any reply as the one that it waits for. This module is short, and checks both.

Invariants:

- Every message of a server is either read as the expected reply, or raises ServerFault with a sentence.
- A reward is a finite number or None, and JSON contains no NaN.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from node.tasks.api.interface import MAX_REWARD, TaskError

MAX_MESSAGE_BYTES = 16 << 20
"""Maximum bytes of one reply: 16 times what a policy can read at once, as observations also hold what it does not."""

MAX_SHOWN = 200
"""Characters of a server's own text to show in an error."""


class ServerFault(TaskError):
    """The server failed, or sent something that is not a valid reply."""


class ServerFull(ServerFault):
    """The server already has as many sessions as it allows."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The reply to a reset or a step. `fields`: those of the observation."""

    fields: Mapping[str, Any]
    reward: float | None
    done: bool


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The server does not accept the action. `why`: the reason, in words that a policy may read."""

    why: str


def write_request(kind: str, data: Mapping[str, Any] | None = None) -> str:
    """Return a request of that type."""
    return json.dumps({"type": kind} if data is None else {"type": kind, "data": data}, allow_nan=False)


def read_observed(raw: str | bytes) -> Observed | Refused:
    """Read the reply to a reset or a step. Raises ServerFault."""
    kind, data = _read(raw)
    if kind == "error" and data.get("code") == "VALIDATION_ERROR":
        return Refused(why=_why(data))
    data = _expect("observation", kind, data)
    fields, reward, done = data.get("observation"), data.get("reward"), data.get("done")
    if not isinstance(fields, dict) or not isinstance(done, bool):
        raise ServerFault(f"the server sent an observation without `observation` or `done`: {short_form(data)}.")
    if reward is not None:
        if not isinstance(reward, int | float) or not math.isfinite(reward) or abs(reward) > MAX_REWARD:
            raise ServerFault(f"the server gave a step the reward {short_form(reward)}, which is not a finite number.")
        reward = float(reward)
    return Observed(fields=fields, reward=reward, done=done)


def read_episode(raw: str | bytes) -> str | None:
    """Return the id of the server's current episode, or None if the server does not name one."""
    kind, data = _read(raw)
    if kind == "error":
        return None  # not every environment can report its state
    found = _expect("state", kind, data).get("episode_id")
    return found if isinstance(found, str) else None


def read_tools(raw: str | bytes, number: int) -> tuple[Mapping[str, Any], ...] | None:
    """Return the server's MCP tools as it lists them, or None if it has no MCP. Raises ServerFault."""
    kind, data = _read(raw)
    if kind == "error" and data.get("code") == "UNKNOWN_TYPE":
        return None
    data = _expect("mcp", kind, data)
    if data.get("id") != number:
        raise ServerFault(f"the server answered request {short_form(data.get('id'))} instead of request {number}.")
    if "error" in data:
        return None
    result = data.get("result")
    tools = result.get("tools") if isinstance(result, dict) else None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ServerFault(f"the server sent no list of tools, but {short_form(result)}.")
    return tuple(tools)


def read_unasked(raw: str | bytes) -> NoReturn:
    """Raise what an unexpected message means: ServerFull, or another ServerFault."""
    kind, data = _read(raw)
    if kind == "error":
        _expect("", kind, data)
    raise ServerFault(f"the server sent something that was not requested: {short_form(raw)}.")


def _read(raw: str | bytes) -> tuple[str, dict[str, Any]]:
    """Return type and data of a reply. Raises ServerFault."""
    try:
        reply = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ServerFault(f"the server sent something that is not JSON ({error}): {short_form(raw)}.") from None
    kind, data = (reply.get("type"), reply.get("data")) if isinstance(reply, dict) else (None, None)
    if not isinstance(kind, str) or not isinstance(data, dict):
        raise ServerFault(f"the server sent something that is not an OpenEnv reply: {short_form(reply)}.")
    return kind, data


def _expect(wanted: str, kind: str, data: dict[str, Any]) -> dict[str, Any]:
    if kind == wanted:
        return data
    if kind != "error":
        raise ServerFault(f"the server replied with {kind!r} instead of {wanted!r}.")
    if data.get("code") == "CAPACITY_REACHED":
        raise ServerFull(
            f"the server's limit of sessions, {short_form(data.get('max_sessions'))}, is reached. Raise "
            "max_concurrent_envs of its create_app above [verifiers] environments times workers, or lower those."
        )
    raise ServerFault(f"the server failed: {_why(data)}.")


def _why(data: Mapping[str, Any]) -> str:
    errors = data.get("errors")
    told = [
        f"{'.'.join(map(str, one.get('loc') or ('action',)))}: {one.get('msg')}"
        for one in (errors if isinstance(errors, list) else ())
        if isinstance(one, dict)
    ]
    text = "; ".join(told) or str(data.get("message", "it does not say why"))
    code = data.get("code")
    return _cut(text if told or not code else f"{text} ({code})")


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def short_form(value: object) -> str:
    """Return a short form of a value that a server sent."""
    if isinstance(value, str | bytes):
        return repr(value[:MAX_SHOWN])
    return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
