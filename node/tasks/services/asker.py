"""Ask a service questions in batches, on asyncio. Each one gets an answer, or is `Unsaid`, within its time.

`node.tasks.services.retries` decides when to ask again, and whether the service is down.

Invariants:

- A question with a known answer is not asked again. A question that is being asked is asked once for all callers.
- At most `at_once` requests are open, each with at most `batch` questions.
- If one question may be the cause of a failure, its batch is asked again in halves. So one bad completion costs the
  others nothing.
- At most MAX_WAITING questions wait.
- A caller may leave. The answer is kept for the next one.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from random import Random

from node.tasks.api.interface import TaskError
from node.tasks.services.answer_cache import AnswerCache
from node.tasks.services.http_client import HttpClient, key_of
from node.tasks.services.remarks import remark
from node.tasks.services.retries import MAX_PAUSE_S, Health, RequestFailed, pause_s
from node.tasks.services.terms import ServiceReward, ServiceTerms, Speech, Unsaid, shortened

MAX_WAITING = 4096
"""Sixteen times the questions that a verifier gets at a time. Only a loop in an author's code could reach this."""

MAX_QUESTION_BYTES = 4 << 20
"""Maximum bytes of a question with its transcript: thirty times the longest that most services accept."""


class Asker:
    """Asks one service. It may be used on one loop after another, and starts from the beginning on each."""

    def __init__(self, terms: ServiceTerms, speech: Speech) -> None:
        self.terms = terms
        self._speech = speech
        self._desk: _Desk | None = None

    async def ask(self, question: bytes) -> ServiceReward | Unsaid:
        """Return the service's answer. Raises TaskError if its key is not in the environment."""
        return await self._here().ask(question)

    async def close(self) -> None:
        """Close the connections. A later question opens new ones."""
        desk, self._desk = self._desk, None
        if desk is not None and desk.loop is asyncio.get_running_loop():
            await desk.close()

    def require(self) -> None:
        """Raise TaskError if the key is not in the environment."""
        key_of(self.terms)

    def _here(self) -> _Desk:
        loop = asyncio.get_running_loop()
        if self._desk is None or self._desk.loop is not loop:
            self._desk = _Desk(terms=self.terms, speech=self._speech, loop=loop, client=HttpClient(self.terms))
        return self._desk


@dataclass(eq=False, kw_only=True)
class _Waiting:
    """One question. Its answer is wanted until `until_s`."""

    digest: bytes
    question: bytes
    until_s: float
    answer: asyncio.Future[ServiceReward | Unsaid]


@dataclass(eq=False, kw_only=True)
class _Desk:
    """The state that belongs to one loop."""

    terms: ServiceTerms
    speech: Speech
    loop: asyncio.AbstractEventLoop
    client: HttpClient
    chance: Random = field(default_factory=Random)
    health: Health = field(init=False)
    cache: AnswerCache = field(init=False)
    going: dict[bytes, _Waiting] = field(default_factory=dict)
    gathered: list[_Waiting] = field(default_factory=list)
    leaves: asyncio.TimerHandle | None = None
    """The timer that sends the gathered questions."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    seats: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self.health = Health(chance=self.chance, max_pause_s=min(MAX_PAUSE_S, self.terms.timeout_s / 4))
        self.cache = AnswerCache(entries=self.terms.cache_entries)
        self.seats = asyncio.Semaphore(self.terms.at_once)

    async def ask(self, question: bytes) -> ServiceReward | Unsaid:
        digest = hashlib.sha256(question).digest()
        if (known := self.cache.get(digest)) is not None:
            return known
        if (one := self.going.get(digest)) is None:
            if len(question) > MAX_QUESTION_BYTES:
                return self._unclear(f"a question has {len(question):,} bytes; the maximum is {MAX_QUESTION_BYTES:,}")
            if len(self.going) >= MAX_WAITING:
                return self._unclear(f"{MAX_WAITING:,} questions already wait")
            until_s, answer = self.loop.time() + self.terms.timeout_s, self.loop.create_future()
            one = _Waiting(digest=digest, question=question, until_s=until_s, answer=answer)
            self.going[digest] = one
            self._gather(one)
        return await asyncio.shield(one.answer)

    async def close(self) -> None:
        for task in list(self.tasks):
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)
        for one in list(self.going.values()):
            self._settle(one, Unsaid("the service is no longer asked"))
        await self.client.close()

    # Batches

    def _gather(self, one: _Waiting) -> None:
        self.gathered.append(one)
        if len(self.gathered) >= self.terms.batch:
            self._send_off()
        elif self.leaves is None:
            self.leaves = self.loop.call_later(self.terms.batch_wait_s, self._send_off)

    def _send_off(self) -> None:
        if self.leaves is not None:
            self.leaves.cancel()
            self.leaves = None
        batch, self.gathered = self.gathered, []
        task = self.loop.create_task(self._serve(batch))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _serve(self, batch: list[_Waiting]) -> None:
        try:
            await self._answer(batch, attempt=0, why="")
        finally:  # so that no caller waits for ever
            for one in batch:
                self._settle(one, Unsaid("the service is no longer asked"))

    async def _answer(self, batch: list[_Waiting], *, attempt: int, why: str) -> None:
        """Ask all questions of the batch until each has an answer or is given up."""
        tries = attempt
        while batch := self._still_wanted(batch, why):
            try:
                found = await self._request(batch)
            except RequestFailed as failed:
                if not (why and isinstance(failed, _OutOfTime)):  # a timeout says less than an earlier reason
                    why = failed.detail
                if len(batch) == 1 and failed.kind == "rejected":
                    return self._give_up(batch, why)
                tries += 1
                attempt += failed.kind != "busy"  # a busy service asked for patience, and gets it
                is_away = self.health.is_down and failed.kind in ("down", "denied")
                if attempt > self.terms.retries and not is_away:  # a service that is down is asked while time is left
                    return self._give_up(batch, why)
                if failed.kind != "rejected":
                    await self._pause(batch, tries - 1)
                if len(batch) > 1 and failed.may_be_one:
                    half = len(batch) // 2
                    halves = (batch[:half], batch[half:])
                    await asyncio.gather(*(self._answer(part, attempt=attempt, why=why) for part in halves))
                    return None
            else:
                return self._tell(batch, found)

    async def _pause(self, batch: list[_Waiting], attempt: int) -> None:
        left_s = min(one.until_s for one in batch) - self.loop.time()
        await asyncio.sleep(max(0.0, min(left_s, pause_s(attempt, self.chance.random()))))

    def _still_wanted(self, batch: list[_Waiting], why: str) -> list[_Waiting]:
        """Return the questions whose time is not over, and give up the others."""
        now_s, wanted = self.loop.time(), []
        for one in batch:
            if one.until_s > now_s:
                wanted.append(one)
            elif not one.answer.done():
                late = _OutOfTime(self.terms).detail
                self._give_up([one], late if why in ("", late) else f"{late} ({why})")
        return wanted

    # One request

    async def _request(self, batch: list[_Waiting]) -> list[ServiceReward | Unsaid]:
        """Ask one batch. Raises RequestFailed."""
        body = self.speech.write([one.question for one in batch])
        try:
            async with asyncio.timeout_at(min(one.until_s for one in batch)), self.seats:
                while wait_s := self.health.wait_s(self.loop.time()):
                    await asyncio.sleep(wait_s)
                self.health.began()
                reply = await self._sent(body)
        except TimeoutError:
            raise _OutOfTime(self.terms) from None
        try:
            return self.speech.read(reply, len(batch))
        except (ValueError, RecursionError) as error:
            raise RequestFailed("unreadable", f"its reply cannot be read: {shortened(str(error))}") from None

    async def _sent(self, body: bytes) -> bytes:
        """Send one request, and record its outcome in `health`. Raises RequestFailed."""
        try:
            reply = await self.client.post(self.terms.url, body)
        except RequestFailed as failed:
            self._went_wrong(failed)
            raise
        except asyncio.CancelledError:  # as far as is known, it took too long
            self._went_wrong(_OutOfTime(self.terms))
            raise
        if self.health.answered():
            remark(self.terms.name, "back", f"{self.terms.shown} answers again")
        return reply

    def _went_wrong(self, failed: RequestFailed) -> None:
        now_s = self.loop.time()
        if failed.kind in ("down", "broken", "denied"):
            if self.health.failed(now_s, at_once=failed.kind == "denied"):
                remark(self.terms.name, "down", f"{self.terms.shown}: {failed.detail}")
        elif self.health.answered():  # a refusal also shows that it is there
            remark(self.terms.name, "back", f"{self.terms.shown} answers again")
        if failed.retry_after_s is not None:
            self.health.busy(now_s, failed.retry_after_s)

    # Answers

    def _tell(self, batch: list[_Waiting], found: list[ServiceReward | Unsaid]) -> None:
        for one, answer in zip(batch, found, strict=True):
            if isinstance(answer, Unsaid):
                if answer.why:
                    remark(self.terms.name, "unclear", answer.why)
            else:
                self.cache.put(one.digest, answer)
            self._settle(one, answer)

    def _give_up(self, batch: list[_Waiting], why: str) -> None:
        for one in batch:
            self._settle(one, Unsaid(why) if self.health.is_down else self._unclear(why))

    def _unclear(self, why: str) -> Unsaid:
        remark(self.terms.name, "unclear", shortened(why))
        return Unsaid(why)

    def _settle(self, one: _Waiting, answer: ServiceReward | Unsaid) -> None:
        self.going.pop(one.digest, None)
        if not one.answer.done():
            one.answer.set_result(answer)


class _OutOfTime(RequestFailed):
    """The time of a question was over before its answer came."""

    def __init__(self, terms: ServiceTerms) -> None:
        super().__init__("down", f"no answer within {terms.timeout_s:g} s")


async def require_answer(asker: Asker, question: bytes) -> None:
    """Ask once, at a start. Raises TaskError, which says what failed, if there is no answer."""
    found = await asker.ask(question)
    if isinstance(found, Unsaid):
        raise TaskError(
            f"{asker.terms.name} {asker.terms.shown} was asked once and gave no reward: "
            f"{found.why or 'it cannot judge the first answer'}. Start it, or correct the section."
        )
