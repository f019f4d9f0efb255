"""Which environment answers a question: one that is alive and has heard just that, one that is made anew and told again
what was said, or none.

A pure core. `begin` takes a question and says what to do first; what environments give back is handed in, and says what
comes next. What always holds: an environment is worked with for one question at a time; what it answered is remembered
with it, so whoever asks the same again, or goes another way from there, is answered without it; of two episodes that
said the same so far the first to go on takes the live environment with it, and another is made for the second; an
answer is given only by an environment that answered all before as the question's digests say, and a question that finds
none is `Otherwise`, a value. At most `count` are alive; the one that was not used longest is closed first, and one that
nobody asked anything for `idle_s` as well. What is lost is made anew: nothing here is remembered anywhere else.
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
    """Tell the environment that the policy said this."""

    said: str


@dataclass(frozen=True, kw_only=True)
class TellReward:
    """Ask the environment what its episode is worth."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The question is answered: with a reward, or what the policy reads next, None where the episode is over."""

    answer: float | Answer | None


@dataclass(frozen=True, kw_only=True)
class Otherwise:
    """The environment was told again what was said, and answered otherwise in that turn, from 1 on. It is forgotten,
    and so is to be closed."""

    turn: int


Next = Step | TellReward | Reply | Otherwise


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Another question has that environment on its way to the same answer: ask again when it is done with it."""

    environment: EnvironmentId


@dataclass(frozen=True, kw_only=True)
class Work:
    """Do `first` with that environment, which is to be made if `is_new`, after those of `closing` were let go of."""

    environment: EnvironmentId
    is_new: bool
    first: Step | TellReward
    closing: tuple[EnvironmentId, ...] = ()


@dataclass(kw_only=True, slots=True)
class _Episode:
    """What an environment has heard and answered. `asked`: the question that works with it now."""

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
        """Whether it has heard the first so many turns of the question, and answered as that says, as far as it does.
        It may have heard more."""
        return (
            self.task == question.task
            and self.place == question.place
            and len(self.said) >= turns
            and tuple(self.said[:turns]) == question.heard[:turns]
            and tuple(self.digests[: min(turns, len(question.digests))]) == question.digests[:turns]
        )

    def leads_to(self, question: EpisodeQuestion) -> bool:
        """Whether the question that works with it passes the answer of this one, if all answers are as both say."""
        if (asked := self.asked) is None or (asked.task, asked.place) != (question.task, question.place):
            return False
        turns = len(question.heard)
        if question.wants_reward and not (asked.wants_reward and len(asked.heard) == turns):
            return False
        digests = question.digests
        return asked.heard[:turns] == question.heard and asked.digests[: len(digests)] == digests


@dataclass(kw_only=True)
class LiveEnvironments:
    """See the module's paragraph."""

    count: int
    idle_s: float
    _live: OrderedDict[EnvironmentId, _Episode] = field(default_factory=OrderedDict)
    """Those that were used last come last."""
    _past: OrderedDict[EnvironmentId, _Episode] = field(default_factory=OrderedDict)
    """Episodes whose reward is known, at most `count`: one that said the same may still ask."""
    _made: int = 0

    def __len__(self) -> int:
        return len(self._live)

    # Events

    def begin(self, question: EpisodeQuestion, now_s: float, *, may_wait: bool = True) -> Reply | Wait | Work:
        """What to do first. Every Work is followed by events of its environment until one returns Reply or Otherwise,
        or by `lost`."""
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
        """It answered so to what it was told last; None: the episode is over."""
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
        """That is what its episode is worth. It is forgotten, and so is to be closed."""
        episode, _ = self._at_work(number)
        del self._live[number]
        episode.reward, episode.asked = reward, None
        self._past[number] = episode
        if len(self._past) > self.count:
            self._past.popitem(last=False)
        return Reply(answer=reward)

    def lost(self, number: EnvironmentId) -> None:
        """It failed, or is gone."""
        self._live.pop(number, None)

    def expire(self, now_s: float) -> tuple[EnvironmentId, ...]:
        """Forget those that nobody asked anything for `idle_s`, and return them, to be closed."""
        idle = [number for number, episode in self._idle() if now_s - episode.used_s >= self.idle_s]
        for number in idle:
            del self._live[number]
        return tuple(idle)

    # What is known

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
        """The one at rest that has heard most of the question, and nothing else; of several the one used last."""
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
        """Forget as many as it takes to make one more, as far as they are not at work, and return them."""
        over = len(self._live) + 1 - self.count
        closing = tuple(number for number, _ in islice(self._idle(), max(over, 0)))
        for number in closing:
            del self._live[number]
        return closing

    # What comes next

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
        assert isinstance(first, Step | TellReward), "what is known is recalled"
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
        assert episode.asked is not None, "it is worked with"
        return episode, episode.asked
