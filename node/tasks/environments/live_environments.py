"""Decide which environment answers a question: one that is alive and has heard the same episode so far, or a new one.

A new environment receives the earlier turns again. This is a pure core: `begin` takes a question and returns the first
call to make. The caller then reports what the environment returned, and gets the next call.

Invariants:

- An environment works on one question at a time.
- Its answers are remembered with it, so a question that it has answered before needs no call. The same holds for a
  question that branches off from an earlier turn.
- If two episodes have said the same so far, the first one to go on keeps the live environment. A new environment is
  made for the second.
- Only an environment that gave all earlier answers as the question's digests say gives the next one. If its answers
  differ, the result is `Otherwise`, a value and not an exception.
- At most `count` environments are alive. The least recently used one is closed first. One that got no question for
  `idle_s` seconds is closed as well.
- Nothing is stored elsewhere. An environment that is lost is made again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NewType

from node.tasks.api.interface import Answer
from node.tasks.environments.question import EpisodeQuestion, digest_of_answer
from node.tasks.gate import Place

EnvironmentId = NewType("EnvironmentId", int)


@dataclass(frozen=True, kw_only=True)
class Step:
    """Call the environment's `step` with what the policy said."""

    said: str


@dataclass(frozen=True, kw_only=True)
class TellReward:
    """Call the environment's `reward`."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The question is answered. `answer`: the reward, or what the policy reads next; None if the episode is over."""

    answer: float | Answer | None


@dataclass(frozen=True, kw_only=True)
class Otherwise:
    """The environment received the earlier turns again, and answered differently in turn `turn`, counted from 1. It is
    forgotten here, and the caller must close it."""

    turn: int


Next = Step | TellReward | Reply | Otherwise


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Another question already makes that environment find the same answer. Ask again when it is done."""

    environment: EnvironmentId


@dataclass(frozen=True, kw_only=True)
class Work:
    """Make the call `first`. If `is_new`, make the environment first, and before that close those in `closing`."""

    environment: EnvironmentId
    is_new: bool
    first: Step | TellReward
    closing: tuple[EnvironmentId, ...] = ()


@dataclass(kw_only=True, slots=True)
class _Episode:
    """The turns that an environment has heard, and its answers. `asked`: the question that it works on now."""

    task: str
    place: Place
    said: list[str] = field(default_factory=list)
    answers: list[Answer | None] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    asked: EpisodeQuestion | None = None
    reward: float | None = None
    used_s: float = 0.0

    @property
    def is_over(self) -> bool:
        return bool(self.answers) and self.answers[-1] is None

    def knows(self, question: EpisodeQuestion, turns: int) -> bool:
        """Return whether it has heard the first `turns` turns of the question, and gave the answers that the question's
        digests name. It may have heard more."""
        return (
            self.task == question.task
            and self.place == question.place
            and len(self.said) >= turns
            and tuple(self.said[:turns]) == question.heard[:turns]
            and tuple(self.digests[: min(turns, len(question.digests))]) == question.digests[:turns]
        )

    def leads_to(self, question: EpisodeQuestion) -> bool:
        """Return whether the question that it works on will also give the answer to this one, if the digests of both
        are right."""
        if (asked := self.asked) is None or (asked.task, asked.place) != (question.task, question.place):
            return False
        turns = len(question.heard)
        if question.wants_reward and not (asked.wants_reward and len(asked.heard) == turns):
            return False
        digests = question.digests
        return asked.heard[:turns] == question.heard and asked.digests[: len(digests)] == digests


@dataclass(kw_only=True)
class LiveEnvironments:
    """The environments that are alive, at most `count`, with what each has heard and answered."""

    count: int
    idle_s: float
    _live: OrderedDict[EnvironmentId, _Episode] = field(default_factory=OrderedDict)
    """In order of last use; the most recent one is last."""
    _past: OrderedDict[EnvironmentId, _Episode] = field(default_factory=OrderedDict)
    """Episodes whose reward is known, at most `count`. An episode that said the same may still ask."""
    _made: int = 0

    def __len__(self) -> int:
        return len(self._live)

    # Events

    def begin(self, question: EpisodeQuestion, now_s: float, *, may_wait: bool = True) -> Reply | Wait | Work:
        """Return the first thing to do. After a Work, report the environment's results until one call returns Reply or
        Otherwise, or report `lost`."""
        if (known := self._recalled(question)) is not None:
            return known
        if may_wait:
            for number, episode in self._live.items():
                if episode.leads_to(question):
                    return Wait(environment=number)
        if (found := self._nearest(question)) is not None:
            return self._work(found, question, is_new=False, now_s=now_s)
        closing = self._make_room()
        self._made += 1
        number = EnvironmentId(self._made)
        self._live[number] = _Episode(task=question.task, place=question.place)
        return self._work(number, question, is_new=True, now_s=now_s, closing=closing)

    def answered(self, number: EnvironmentId, answer: Answer | None, now_s: float) -> Next:
        """Record the environment's answer to its last call (None: the episode is over), and return what to do next."""
        episode, question = self._at_work(number)
        episode.said.append(question.heard[len(episode.said)])
        episode.answers.append(answer)
        episode.digests.append(digest_of_answer(answer))
        turn = len(episode.said)
        if turn <= len(question.digests) and episode.digests[-1] != question.digests[turn - 1]:
            del self._live[number]
            return Otherwise(turn=turn)
        return self._next(number, now_s)

    def rewarded(self, number: EnvironmentId, reward: float) -> Reply:
        """Record the reward of the environment's episode. The environment is forgotten, and the caller must close
        it."""
        episode, _ = self._at_work(number)
        del self._live[number]
        episode.reward, episode.asked = reward, None
        self._past[number] = episode
        if len(self._past) > self.count:
            self._past.popitem(last=False)
        return Reply(answer=reward)

    def lost(self, number: EnvironmentId) -> None:
        """Forget an environment that failed or is gone."""
        self._live.pop(number, None)

    def expire(self, now_s: float) -> tuple[EnvironmentId, ...]:
        """Forget the environments that got no question for `idle_s`, and return them, so that they can be closed."""
        idle = [number for number, episode in self._idle() if now_s - episode.used_s >= self.idle_s]
        for number in idle:
            del self._live[number]
        return tuple(idle)

    # Known answers

    def _recalled(self, question: EpisodeQuestion) -> Reply | None:
        turns = len(question.heard)
        if question.wants_reward:
            for episode in self._past.values():
                if len(episode.said) == turns and episode.knows(question, turns):
                    return Reply(answer=episode.reward)
            return None
        for episode in [*self._live.values(), *self._past.values()]:
            if episode.knows(question, turns):
                return Reply(answer=episode.answers[turns - 1])
        return None

    def _nearest(self, question: EpisodeQuestion) -> EnvironmentId | None:
        """Return the idle environment that has heard most of the question and nothing else; of several, the one used
        last."""
        turns, nearest = -1, None
        for number, episode in self._idle():
            heard = len(episode.said)
            if heard < max(turns, 1) or heard > len(question.heard):
                continue
            ends_there = question.wants_reward and heard == len(question.heard)
            if (ends_there or not episode.is_over) and episode.knows(question, heard):
                turns, nearest = heard, number
        return nearest

    def _idle(self) -> Iterator[tuple[EnvironmentId, _Episode]]:
        return ((number, episode) for number, episode in self._live.items() if episode.asked is None)

    def _make_room(self) -> tuple[EnvironmentId, ...]:
        """Forget idle environments until there is room for one more, and return them."""
        over = len(self._live) + 1 - self.count
        closing = tuple(number for number, _ in islice(self._idle(), max(over, 0)))
        for number in closing:
            del self._live[number]
        return closing

    # The next call

    def _work(
        self,
        number: EnvironmentId,
        question: EpisodeQuestion,
        *,
        is_new: bool,
        now_s: float,
        closing: tuple[EnvironmentId, ...] = (),
    ) -> Work:
        self._live[number].asked = question
        first = self._next(number, now_s)
        assert isinstance(first, Step | TellReward), "a known answer was returned earlier"
        return Work(environment=number, is_new=is_new, first=first, closing=closing)

    def _next(self, number: EnvironmentId, now_s: float) -> Step | TellReward | Reply:
        episode, question = self._at_work(number)
        if len(episode.said) < len(question.heard):
            return Step(said=question.heard[len(episode.said)])
        if question.wants_reward:
            return TellReward()
        episode.asked, episode.used_s = None, now_s
        self._live.move_to_end(number)
        return Reply(answer=episode.answers[-1])

    def _at_work(self, number: EnvironmentId) -> tuple[_Episode, EpisodeQuestion]:
        episode = self._live[number]
        assert episode.asked is not None, "it works on a question"
        return episode, episode.asked
