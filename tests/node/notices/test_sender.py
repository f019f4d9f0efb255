"""Notices reach a real server, and no fault of the server holds up the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import trio

from node.config.swarm_config import LearnerNotifySection
from node.notices import retry_policy, sender
from node.notices.destination import Destination, Shape
from node.notices.flood_limit import BURST
from node.notices.learner_notices import LearnerNotices
from node.notices.sender import QUEUE, Client, NoticeSender, notifying
from node.runtime.errors import RunError
from node.runtime.events import EventLog
from swarm.transport.error_groups import first_cause
from tests.support.reward_servers import Answer, Heard, Reply, Server, nobody, serving

ALARM: dict[str, Any] = {"alarm": "clipped", "step": 5, "text": "half of the tokens"}
PATH = "/hook/Sec-ret_token"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_policy, "FIRST_PAUSE_S", 0.02)


@dataclass
class Run:
    """A run's event log, and what it says of notices."""

    url: str
    shape: Shape = "json"
    events: EventLog = field(default_factory=EventLog)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.events.listen(lambda name, fields: self._hear(name, dict(fields)))

    def _hear(self, name: str, fields: dict[str, Any]) -> None:
        if name == "notices_failed":
            self.failures.append(fields)

    def notifying(self) -> AbstractAsyncContextManager[Callable[[str, str], None]]:
        notices = LearnerNotices(source="words", kinds=LearnerNotifySection().events)
        return notifying(Destination(url=self.url, shape=self.shape), notices, self.events)


def accept(number: int, heard: Heard) -> Reply:
    return Reply(value={})


def failing(times: int, reply: Reply) -> Answer:
    """Answer the first requests with `reply`, and accept all that follow."""
    return lambda number, heard: reply if number < times else Reply(status=204, body=b"")


async def wait_heard(server: Server, number: int) -> None:
    with trio.fail_after(30):
        while len(server.heard) < number:
            await trio.sleep(0.005)


def titles(server: Server) -> list[str]:
    return [heard.value["title"] for heard in server.heard]


async def test_notices_are_posted_in_order_and_the_rest_at_the_end() -> None:
    with serving(accept) as server:
        run = Run(server.url + PATH)
        async with run.notifying():
            run.events.emit("alarm_raised", **ALARM)
            run.events.emit("heartbeat", peer="p")
            run.events.emit("finished", steps=8)
    assert titles(server) == ["words: ALARM clipped", "words: finished"]
    assert {heard.path for heard in server.heard} == {PATH}
    assert server.heard[0].headers["content-type"] == "application/json"
    assert run.failures == []


async def test_the_request_for_ntfy_goes_to_the_server_itself() -> None:
    with serving(accept) as server:
        run = Run(server.url + "/my-topic", shape="ntfy")
        async with run.notifying():
            run.events.emit("finished", steps=8)
    assert [(heard.path, heard.value["topic"]) for heard in server.heard] == [("/", "my-topic")]


@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=500, body=b"down " * 500_000),
        Reply(status=429, value={"message": "too many"}),
        Reply(status=503, body=b"", headers={"retry-after": "0"}),
        Reply(status=502, body=b"half of it", dies=True),
    ],
)
async def test_a_notice_is_posted_again_until_it_is_accepted_and_that_is_told_once(reply: Reply) -> None:
    with serving(failing(3, reply)) as server:
        run = Run(server.url + PATH)
        async with run.notifying():
            run.events.emit("alarm_raised", **ALARM)
            await wait_heard(server, 4)
            run.events.emit("finished", steps=8)
    assert titles(server) == ["words: ALARM clipped"] * 4 + ["words: finished"]
    (failure,) = run.failures
    assert failure["to"] == f"{server.url}/***"
    assert failure["retry_s"] is not None
    assert len(failure["reason"]) <= sender.MAX_DETAIL_CHARS


async def test_a_failure_is_told_again_after_a_success() -> None:
    def every_other(number: int, heard: Heard) -> Reply:
        return Reply(status=500, value=None) if number % 2 == 0 else Reply(value={})

    with serving(every_other) as server:
        run = Run(server.url + PATH)
        async with run.notifying():
            run.events.emit("alarm_raised", **ALARM)
            await wait_heard(server, 2)
            run.events.emit("alarm_cleared", **ALARM)
            await wait_heard(server, 4)
    assert [failure["reason"] for failure in run.failures] == ["HTTP 500: null"] * 2


async def test_what_the_server_will_never_accept_is_not_posted_again() -> None:
    with serving(failing(2, Reply(status=404, body=b"no hook " + PATH.encode()))) as server:
        run = Run(server.url + PATH)
        async with run.notifying():
            run.events.emit("alarm_raised", **ALARM)
            run.events.emit("alarm_cleared", **ALARM)
            run.events.emit("finished", steps=8)
    assert titles(server) == ["words: ALARM clipped", "words: clipped is over", "words: finished"]
    (failure,) = run.failures
    assert failure == {"to": f"{server.url}/***", "reason": "HTTP 404: no hook /hook/***", "retry_s": None, "lost": 1}


async def test_no_redirect_is_followed() -> None:
    with serving(accept) as other:
        moved = Reply(status=307, headers={"location": f"{other.url}/elsewhere"})
        with serving(failing(9, moved)) as server:
            run = Run(server.url + PATH)
            async with run.notifying():
                run.events.emit("finished", steps=8)
    assert len(server.heard) == 1
    assert other.heard == []
    assert run.failures[0]["reason"] == "HTTP 307: the address has moved. Set its new URL"


async def test_nobody_there_holds_up_nothing() -> None:
    run = Run(nobody() + PATH)
    async with run.notifying():
        run.events.emit("alarm_raised", **ALARM)
        with trio.fail_after(30):
            while not run.failures:
                await trio.sleep(0.005)
    (failure,) = run.failures
    assert failure["to"].endswith("/***")
    assert "Sec-ret" not in json.dumps(failure)


async def test_a_server_that_never_answers_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a request nor the end of the run waits for it longer than it may."""
    monkeypatch.setattr(sender, "TIMEOUT_S", 0.05)
    monkeypatch.setattr(sender, "CLOSE_S", 0.2)
    released = Event()

    def silent(number: int, heard: Heard) -> Reply:
        released.wait(60)
        return Reply(value={})

    try:
        with serving(silent) as server, trio.fail_after(30):
            run = Run(server.url + PATH)
            async with run.notifying():
                run.events.emit("alarm_raised", **ALARM)
                await wait_heard(server, 2)
        assert run.failures[0]["reason"] == "no answer within 0.05 s"
    finally:
        released.set()


async def test_an_error_that_ends_the_run_is_told_and_stays_what_it_is() -> None:
    with serving(accept) as server:
        run = Run(server.url + PATH)
        with pytest.raises(RunError, match="The disk is full"):
            async with run.notifying():
                raise RunError("The disk is full. Free space.")
    (heard,) = server.heard
    assert (heard.value["title"], heard.value["text"]) == (
        "words: ended with an error",
        "The disk is full. Free space.",
    )


async def test_a_run_that_is_stopped_still_posts_what_waits() -> None:
    with serving(accept) as server:
        run = Run(server.url + PATH)
        with trio.CancelScope() as scope:
            async with run.notifying():
                run.events.emit("alarm_raised", **ALARM)
                scope.cancel()
                await trio.sleep_forever()
        assert scope.cancelled_caught
    assert titles(server) == ["words: ALARM clipped", "words: stopped"]


async def test_a_stopped_run_leaves_a_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "CLOSE_STOPPED_S", 0.05)
    released = Event()

    def silent(number: int, heard: Heard) -> Reply:
        released.wait(60)
        return Reply(value={})

    try:
        with serving(silent) as server, trio.fail_after(30):
            run = Run(server.url + PATH)
            with trio.CancelScope() as scope:
                async with run.notifying():
                    run.events.emit("alarm_raised", **ALARM)
                    await wait_heard(server, 1)
                    scope.cancel()
                    await trio.sleep_forever()
    finally:
        released.set()


async def test_the_queue_is_bounded_and_the_oldest_are_lost() -> None:
    """Kinds are limited, but not the end, of which a program has one: so it stands for all here."""
    run = Run(nobody())
    to = Destination(url=run.url, shape="json")
    notices = LearnerNotices(source="words", kinds=LearnerNotifySection().events)
    one = NoticeSender(to=to, notices=notices, events=run.events, client=Client(to))
    for number in range(QUEUE + 5):
        one.note("finished", {"steps": number})
    assert [notice.fields["steps"] for notice in one._queue] == list(range(5, QUEUE + 5))
    for _ in range(2 * BURST):
        one.note("alarm_raised", ALARM)
    assert sum(notice.kind == "alarm" for notice in one._queue) == BURST
    with first_cause():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.run)
            one.close(30)
    (failure,) = run.failures
    assert failure["lost"] == 5 + BURST


async def test_without_a_destination_nothing_is_opened(tmp_path: Path) -> None:
    events = EventLog(tmp_path / "events.jsonl")
    async with notifying(None, LearnerNotices(source="", kinds=()), events) as notify:
        notify("ended", "over")
    assert not (tmp_path / "events.jsonl").exists()
