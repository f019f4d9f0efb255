from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from node.tasks.adapters.openenv.messages import (
    Observed,
    Refused,
    ServerFault,
    ServerFull,
    read_episode,
    read_observed,
    read_tools,
    read_unasked,
    write_request,
)


def reply(kind: str, **data: object) -> str:
    return json.dumps({"type": kind, "data": data})


def observation(**data: object) -> str:
    return reply("observation", **{"observation": {"text": "hi"}, "reward": 0.5, "done": False, **data})


def test_requests() -> None:
    assert write_request("state") == '{"type": "state"}'
    assert json.loads(write_request("reset", {"seed": 3})) == {"type": "reset", "data": {"seed": 3}}


@pytest.mark.parametrize(("sent", "reward"), [(0.5, 0.5), (1, 1.0), (True, 1.0), (None, None)])
def test_an_observation(sent: object, reward: float | None) -> None:
    assert read_observed(observation(reward=sent)) == Observed(fields={"text": "hi"}, reward=reward, done=False)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not an OpenEnv reply"),
        ('{"type": 1, "data": {}}', "not an OpenEnv reply"),
        ('{"type": "observation"}', "not an OpenEnv reply"),
        (reply("state"), "'state' instead of 'observation'"),
        (reply("observation", observation=[], reward=0, done=False), "without `observation` or `done`"),
        (observation(done=1), "without `observation` or `done`"),
        (observation(reward="much"), "not a finite number"),
        (observation(reward=1e300), "not a finite number"),
        (observation().replace("0.5", "NaN"), "NaN is not a JSON number"),
        (observation().replace("0.5", "1e999"), "not a finite number"),
        (observation().replace("0.5", "-Infinity"), "-Infinity is not a JSON number"),
        (reply("error", message="boom", code="EXECUTION_ERROR"), r"the server failed: boom \(EXECUTION_ERROR\)"),
        (reply("error"), "it does not say why"),
        (reply("error", message="x" * 10_000), "xxx[.][.][.]"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_observation(raw: str | bytes, said: str) -> None:
    with pytest.raises(ServerFault, match=said):
        read_observed(raw)


def test_an_action_that_is_refused_says_why() -> None:
    errors = [{"loc": ["move"], "msg": "Field required"}, {"loc": [], "msg": "no"}, "odd"]
    raw = reply("error", message="Invalid message", code="VALIDATION_ERROR", errors=errors)
    assert read_observed(raw) == Refused(why="move: Field required; action: no")


@pytest.mark.parametrize("read", [read_observed, read_unasked], ids=["asked", "unasked"])
def test_a_full_server(read: Callable[[str], object]) -> None:
    with pytest.raises(ServerFull, match="limit of sessions, 2,"):
        read(reply("error", code="CAPACITY_REACHED", message="full", max_sessions=2))


def test_what_nobody_asked() -> None:
    with pytest.raises(ServerFault, match="something that was not requested"):
        read_unasked(observation())


def test_the_episode() -> None:
    assert read_episode(reply("state", episode_id="one", step_count=3)) == "one"
    assert read_episode(reply("state", episode_id=None)) is None
    assert read_episode(reply("error", message="no state", code="EXECUTION_ERROR")) is None
    with pytest.raises(ServerFault):
        read_episode(observation())


def test_tools() -> None:
    told = [{"name": "add", "inputSchema": {}}]
    assert read_tools(reply("mcp", id=1, result={"tools": told}), 1) == tuple(told)
    assert read_tools(reply("mcp", id=1, error={"message": "Environment does not support MCP"}), 1) is None
    assert read_tools(reply("error", code="UNKNOWN_TYPE"), 1) is None
    for wrong in (
        reply("mcp", id=2, result={"tools": told}),
        reply("mcp", id=1, result={"tools": "add"}),
        reply("mcp", id=1, result=None),
    ):
        with pytest.raises(ServerFault):
            read_tools(wrong, 1)
