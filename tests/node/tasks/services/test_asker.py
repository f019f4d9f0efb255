"""Ask real servers on this machine that are down, slow, broken or busy, or send unreadable answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from threading import Event, Lock
from typing import Any, TypeVar

import pytest

from node.tasks.api.interface import CANNOT_SAY, Completion, Problem, TaskError, Turn
from node.tasks.services.asker import MAX_QUESTION_BYTES
from node.tasks.services.http_client import MAX_REPLY_BYTES
from node.tasks.services.remarks import Remark, take_remarks
from node.tasks.services.reward_service import RewardService
from tests.support.reward_servers import Heard, Reply, nobody, rewards, serving

T = TypeVar("T")


def run(asked: Coroutine[Any, Any, T]) -> T:
    take_remarks()
    return asyncio.run(asked)


async def reward(service: RewardService, text: str) -> Any:
    return await service.reward(Problem(prompt="?"), Completion(text=text, finished=True))


async def all_of(service: RewardService, texts: list[str]) -> list[Any]:
    try:
        return await asyncio.gather(*(reward(service, text) for text in texts))
    finally:
        await service.close()


def said(heard: Heard) -> list[str]:
    return [item["completion"] for item in heard.value["items"]]


def lengths(number: int, heard: Heard) -> Reply:
    return rewards(*(len(text) for text in said(heard)))


def test_questions_are_gathered_and_each_gets_its_own_answer() -> None:
    texts = ["a" * length for length in range(1, 41)]
    with serving(lengths) as server:
        service = RewardService(url=server.url, batch=16, batch_wait_s=0.01)
        assert run(all_of(service, texts)) == [float(len(text)) for text in texts]
        assert sorted(len(said(heard)) for heard in server.heard) == [8, 16, 16]


def test_an_item_tells_the_whole_of_it() -> None:
    problem = Problem(prompt="6 * 7?", answer="42")
    completion = Completion(text="42\ud800", finished=False, turns=(Turn(said="hm", answered="well?"),))
    with serving(lengths) as server:
        service = RewardService(url=server.url)
        assert run(service.reward(problem, completion, index=3)) == 3.0
        assert server.heard[0].value == {
            "items": [
                {
                    "prompt": "6 * 7?",
                    "completion": "42\ud800",
                    "turns": [{"said": "hm", "answered": "well?"}],
                    "answer": "42",
                    "index": 3,
                    "finished": False,
                }
            ]
        }


def test_the_same_is_asked_once_at_a_time_and_once_ever() -> None:
    with serving(lengths) as server:
        service = RewardService(url=server.url, batch=4)

        async def twice() -> list[Any]:
            first = await asyncio.gather(*(reward(service, "same") for _ in range(32)))
            return [*first, await reward(service, "same")]

        assert run(twice()) == [4.0] * 33
        assert len(server.heard) == 1


def test_no_more_than_so_many_requests_are_under_way() -> None:
    together, lock, count = Event(), Lock(), 0

    def answer(number: int, heard: Heard) -> Reply:
        nonlocal count
        with lock:
            count += 1
            if count >= 3:
                together.set()
        together.wait(10)
        return lengths(number, heard)

    with serving(answer) as server:
        service = RewardService(url=server.url, batch=1, at_once=3)
        assert run(all_of(service, [str(number) for number in range(12)])) == [1.0] * 10 + [2.0] * 2
        assert server.most_at_once == 3


def test_null_and_names_are_answers() -> None:
    with serving(lambda number, heard: rewards(None, {"correct": 1, "format": None}, 0)) as server:
        service = RewardService(url=server.url, batch=3)
        found = run(all_of(service, ["a", "b", "c"]))
    assert found == [CANNOT_SAY, {"correct": 1.0, "format": CANNOT_SAY}, 0.0]
    assert take_remarks() == []


def test_a_service_that_is_down_costs_its_time_and_is_told_once() -> None:
    service = RewardService(url=nobody(), batch=1, timeout_s=3.0)
    assert run(all_of(service, [str(number) for number in range(8)])) == [CANNOT_SAY] * 8
    [remark] = take_remarks()
    assert (remark.service, remark.how) == ("reward service", "down")
    assert "ConnectError" in remark.detail


def test_one_that_comes_back_is_asked_again_and_that_is_told() -> None:
    def answer(number: int, heard: Heard) -> Reply:
        return Reply(status=500, value="out of memory") if number < 4 else lengths(number, heard)

    with serving(answer) as server:
        service = RewardService(url=server.url, batch=1, at_once=1, timeout_s=20.0, retries=10)
        assert run(all_of(service, ["a", "bb"])) == [1.0, 2.0]
    assert [remark.how for remark in take_remarks()] == ["down", "back"]


def test_a_slow_one_costs_no_more_than_its_time_and_nobody_else_anything() -> None:
    released = Event()

    def answer(number: int, heard: Heard) -> Reply:
        if said(heard) == ["slow"]:
            released.wait(10)
        return lengths(number, heard)

    with serving(answer) as server:
        service = RewardService(url=server.url, batch=1, timeout_s=3.0)
        assert run(all_of(service, ["slow", "a", "bb", "ccc"])) == [CANNOT_SAY, 1.0, 2.0, 3.0]
        released.set()
    [remark] = take_remarks()
    assert (remark.how, "no answer within 3 s" in remark.detail) == ("unclear", True)


def test_what_was_wrong_is_told_though_time_ran_out_at_something_else() -> None:
    released = Event()

    def answer(number: int, heard: Heard) -> Reply:
        if number > 0:
            released.wait(10)
        return Reply(status=500, value="out of memory")

    with serving(answer) as server:
        with pytest.raises(TaskError, match=r"no answer within 3 s \(HTTP 500.*out of memory"):
            run(RewardService(url=server.url, timeout_s=3.0).try_out())
        released.set()


def test_whoever_leaves_loses_nothing_for_the_others() -> None:
    begun, released = Event(), Event()

    def answer(number: int, heard: Heard) -> Reply:
        begun.set()
        released.wait(10)
        return lengths(number, heard)

    async def leave(service: RewardService) -> Any:
        first = asyncio.create_task(reward(service, "abc"))
        await asyncio.to_thread(begun.wait, 10)
        second = asyncio.create_task(reward(service, "abc"))
        first.cancel()
        await asyncio.sleep(0)
        released.set()
        return await second

    with serving(answer) as server:
        assert run(leave(RewardService(url=server.url))) == 3.0
        assert len(server.heard) == 1


def test_what_is_asked_for_with_retry_after_is_waited() -> None:
    with serving(lambda number, heard: _busy() if number == 0 else lengths(number, heard)) as server:
        service = RewardService(url=server.url, retries=0)  # which time is not taken from

        async def timed() -> tuple[Any, float]:
            loop = asyncio.get_running_loop()
            began = loop.time()
            return await reward(service, "abc"), loop.time() - began

        found, seconds = run(timed())
    assert found == 3.0
    assert seconds >= 1.0
    assert take_remarks() == []


def _busy() -> Reply:
    return Reply(status=429, headers={"retry-after": "1"}, value={"error": "too many requests"})


@pytest.mark.parametrize("fault", ["dies", "500", "400", "not JSON"])
def test_one_bad_completion_of_a_batch_costs_the_others_nothing(fault: str) -> None:
    broken = {
        "dies": Reply(value={"rewards": [1.0] * 8}, dies=True),
        "500": Reply(status=500, value="KeyError"),
        "400": Reply(status=400, value="too long"),
        "not JSON": Reply(body=b"<html>"),
    }

    def answer(number: int, heard: Heard) -> Reply:
        return broken[fault] if "poison" in said(heard) else lengths(number, heard)

    texts = ["a", "bb", "poison", "cccc", "ddddd", "eeeeee", "f" * 7, "g" * 8]
    with serving(answer) as server:
        service = RewardService(url=server.url, batch=8, timeout_s=20.0)
        found = run(all_of(service, texts))
    assert found == [CANNOT_SAY if text == "poison" else float(len(text)) for text in texts]
    assert "unclear" in [remark.how for remark in take_remarks()] or fault in ("dies", "500")


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (rewards(1.0, 2.0), "2 rewards for 1 items"),
        (rewards(), "0 rewards for 1 items"),
        (Reply(value=[1.0]), "it is no"),
        (Reply(body=b'{"rewards": [NaN]}'), "NaN is not a JSON number"),
        (Reply(body=b'{"rewards": [1e999]}'), "too large"),
        (rewards(1e30), "too large"),
        (rewards("1"), "not a number, null or an object"),
        (rewards(True), "not a number, null or an object"),
        (rewards({}), "a reward has 0 names"),
        (rewards({"a": "b"}), "not a number, null or an object"),
        (rewards({"a\nb": 1}), "a reward named"),
        (rewards({str(number): 1 for number in range(33)}), "a reward has 33 names"),
        (Reply(body=b"not JSON"), "its reply cannot be read"),
        (Reply(body=b"\xff\xfe"), "its reply cannot be read"),
        (Reply(body=b"[" * 100_000), "its reply cannot be read"),
        (Reply(body=b" " * (50 << 20)), f"more than {MAX_REPLY_BYTES:,} bytes"),
        (Reply(body=b"x", headers={"content-encoding": "gzip"}), "a compressed reply"),
        (Reply(status=422, value={"detail": "no such field"}), "HTTP 422"),
    ],
    ids=lambda value: None if isinstance(value, Reply) else value[:24],
)
def test_what_is_no_answer_is_bounded_and_nobody_can_say(reply: Reply, why: str) -> None:
    with serving(lambda number, heard: reply) as server:
        service = RewardService(url=server.url, retries=1, timeout_s=20.0)
        assert run(all_of(service, ["a"])) == [CANNOT_SAY]
        assert len(server.heard) == (1 if reply.status == 422 else 2)
    [remark] = take_remarks()
    assert remark.how == "unclear"
    assert why in remark.detail
    assert len(remark.detail) < 1000


@pytest.mark.parametrize("status", [401, 403, 404, 307])
def test_an_address_or_a_key_that_is_wrong_is_an_outage_and_told_without_the_key(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-secret")
    headers = {"location": "http://elsewhere.example/?key=sk-secret"}
    with serving(lambda number, heard: Reply(status=status, value="bad key sk-secret", headers=headers)) as server:
        service = RewardService(url=server.url, api_key_env="JUDGE_KEY", timeout_s=3.0)
        assert run(all_of(service, ["a"])) == [CANNOT_SAY]
        assert server.heard[0].headers["authorization"] == "Bearer sk-secret"
    [remark] = take_remarks()
    assert remark.how == "down"
    assert f"HTTP {status}" in remark.detail
    assert "sk-secret" not in remark.detail


def test_a_key_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    service = RewardService(url="http://127.0.0.1:9", api_key_env="JUDGE_KEY")
    with pytest.raises(TaskError, match="JUDGE_KEY is not set"):
        service.require()
    with pytest.raises(TaskError, match="JUDGE_KEY is not set"):
        run(reward(service, "a"))


def test_proxies_of_the_environment_are_not_used_and_one_that_is_named_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", nobody())
    monkeypatch.setenv("http_proxy", nobody())
    with serving(lengths) as server, serving(lengths) as proxy:
        assert run(reward(RewardService(url=server.url), "abc")) == 3.0
        assert run(reward(RewardService(url="http://no.such.host.example/r", proxy=proxy.url), "abc")) == 3.0
        assert [heard.path for heard in proxy.heard] == ["http://no.such.host.example/r"]


def test_a_question_that_is_too_large_is_not_asked() -> None:
    with serving(lengths) as server:
        assert run(reward(RewardService(url=server.url), "a" * MAX_QUESTION_BYTES)) is CANNOT_SAY
        assert server.heard == []


def test_it_goes_on_in_another_loop() -> None:
    with serving(lengths) as server:
        service = RewardService(url=server.url)
        assert [run(all_of(service, [text])) for text in ("a", "bb")] == [[1.0], [2.0]]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"url": "127.0.0.1:9000"}, "begins with http"),
        ({"url": "ftp://host/"}, "begins with http"),
        ({"url": "http://a b/"}, "begins with http"),
        ({"url": "http://[::1/"}, "begins with http"),
        ({"url": "http://user:secret@host/"}, "contains a name or a password"),
        ({"url": "http://host/", "batch": 0}, "batch = 0"),
        ({"url": "http://host/", "timeout_s": 0}, "timeout_s = 0"),
        ({"url": "http://host/", "colour": "red"}, "does not have this argument"),
    ],
)
def test_terms_that_cannot_be_are_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(TaskError, match=why) as caught:
        RewardService(**given)
    assert "secret" not in str(caught.value)


def test_asked_once_at_a_start_it_says_what_failed() -> None:
    with pytest.raises(TaskError, match="ConnectError"):
        run(RewardService(url=nobody(), retries=0).try_out())
    with (
        serving(lambda number, heard: Reply(body=json.dumps({"reward": 1}).encode())) as server,
        pytest.raises(TaskError, match="its reply cannot be read"),
    ):
        run(RewardService(url=server.url, retries=0).try_out())
    with serving(lengths) as server:
        run(RewardService(url=server.url).try_out())


def test_remarks_are_bounded() -> None:
    with serving(lambda number, heard: Reply(status=400, value="no")) as server:
        run(all_of(RewardService(url=server.url, batch=1), [str(number) for number in range(100)]))
    found = take_remarks()
    assert len(found) == 64
    assert isinstance(found[0], Remark)
