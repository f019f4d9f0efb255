"""Choose the environment that answers: right answers in any order of questions, after any loss."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.tasks.api.interface import Answer
from node.tasks.environments.live_environments import (
    EnvironmentId,
    LiveEnvironments,
    Otherwise,
    Reply,
    Step,
    TellReward,
    Wait,
    Work,
)
from node.tasks.environments.question import EpisodeQuestion, digest_of_answer
from node.tasks.gate import Place

IDLE_S = 100.0


def asked(*said: str, answers: tuple[str, ...] = (), reward: bool = False, **changes: object) -> EpisodeQuestion:
    settings: dict[str, object] = {
        "task": "t",
        "place": Place(index=7),
        "said": said,
        "digests": tuple(map(digest_of_answer, answers)),
        "finished": True,
        "wants_reward": reward,
    }
    return EpisodeQuestion(**{**settings, **changes})  # type: ignore[arg-type]


def core(many: int = 4) -> LiveEnvironments:
    return LiveEnvironments(count=many, idle_s=IDLE_S)


def begun(live: LiveEnvironments, question: EpisodeQuestion, now_s: float = 0.0) -> Work:
    work = live.begin(question, now_s)
    assert isinstance(work, Work)
    return work


def test_an_episode_goes_on_with_the_environment_that_heard_it() -> None:
    live = core()
    first = begun(live, asked("p"))
    assert (first.is_new, first.first) == (True, Step(said="p"))
    assert live.answered(first.environment, "a", 0.0) == Reply(answer="a")
    second = begun(live, asked("p", "q", answers=("a",)))
    assert (second.environment, second.is_new, second.first) == (first.environment, False, Step(said="q"))
    assert live.answered(second.environment, None, 0.0) == Reply(answer=None)
    third = begun(live, asked("p", "q", answers=("a",), reward=True))
    assert (third.environment, third.first) == (first.environment, TellReward())
    assert live.rewarded(third.environment, 0.5) == Reply(answer=0.5)
    assert len(live) == 0
    assert live.begin(asked("p", "q", answers=("a",), reward=True), 0.0) == Reply(answer=0.5), "told again"


def test_of_two_that_said_the_same_the_first_to_go_on_takes_it_and_the_other_is_replayed() -> None:
    live = core()
    first = begun(live, asked("p"))
    live.answered(first.environment, "a", 0.0)
    assert live.begin(asked("p"), 0.0) == Reply(answer="a"), "the second shares what the first was answered"
    going = begun(live, asked("p", "q", answers=("a",)))
    assert going.environment == first.environment
    other = begun(live, asked("p", "r", answers=("a",)))
    assert (other.is_new, other.first) == (True, Step(said="p"))
    assert live.answered(other.environment, "a", 0.0) == Step(said="r")
    assert live.answered(other.environment, "b", 0.0) == Reply(answer="b")


def test_one_that_answers_otherwise_when_it_is_told_again_is_forgotten() -> None:
    live = core()
    work = begun(live, asked("p", "q", answers=("a",)))
    assert live.answered(work.environment, "other", 0.0) == Otherwise(turn=1)
    assert len(live) == 0


def test_one_that_ends_sooner_when_it_is_told_again_answers_otherwise() -> None:
    live = core()
    work = begun(live, asked("p", "q", answers=("a",)))
    assert live.answered(work.environment, None, 0.0) == Otherwise(turn=1)


def test_words_that_were_cut_off_are_not_told() -> None:
    live = core()
    work = begun(live, asked("p", "half a ca", answers=("a",), reward=True, finished=False))
    assert work.first == Step(said="p")
    assert live.answered(work.environment, "a", 0.0) == TellReward()
    assert begun(core(), asked("half", reward=True, finished=False)).first == TellReward()


def test_who_asks_the_same_at_the_same_time_waits_for_it_once() -> None:
    live = core()
    work = begun(live, asked("p"))
    assert live.begin(asked("p"), 0.0) == Wait(environment=work.environment)
    assert isinstance(live.begin(asked("p"), 0.0, may_wait=False), Work)
    assert isinstance(live.begin(asked("r"), 0.0), Work), "another word is another's"


def test_the_one_not_used_longest_is_closed_first_and_none_that_works() -> None:
    live = core(2)
    first, second = begun(live, asked("p")), begun(live, asked("q"))
    third = begun(live, asked("r"))
    assert third.closing == (), "all are at work"
    live.answered(second.environment, "b", 1.0)
    live.answered(first.environment, "a", 2.0)
    live.answered(third.environment, "c", 3.0)
    assert begun(live, asked("s")).closing == (second.environment, first.environment), "down to two with the new one"


def test_those_that_nobody_asks_are_closed() -> None:
    live = core()
    work = begun(live, asked("p"))
    assert live.expire(2 * IDLE_S) == (), "it is at work"
    live.answered(work.environment, "a", 10.0)
    assert live.expire(IDLE_S) == ()
    assert live.expire(10 + IDLE_S) == (work.environment,)
    assert len(live) == 0


def test_one_that_failed_is_made_anew() -> None:
    live = core()
    work = begun(live, asked("p"))
    live.lost(work.environment)
    assert begun(live, asked("p")).is_new


def test_a_question_without_the_digests_of_its_answers_is_none() -> None:
    with pytest.raises(ValueError, match="0 digests of earlier answers for 2 turns"):
        asked("p", "q")


# In any order, with any loss

WORDS = "ab"
LONGEST = 3


@dataclass(kw_only=True)
class World:
    """What an environment answers: the same to the same, or what nobody else would."""

    nonce: str
    heard: list[str] = field(default_factory=list)

    def step(self, said: str) -> Answer | None:
        self.heard.append(said)
        over = len(self.heard) >= LONGEST or self.heard == ["a", "b"]
        return None if over else f"{self.nonce}{''.join(self.heard)}"

    def reward(self) -> float:
        return len(self.heard) + (hash(self.nonce) % 1000 if self.nonce else 0) / 1000


@dataclass(kw_only=True)
class Verifier:
    """A process that holds environments. A question is worked through step by step, beside others."""

    many: int
    nonces: count[int] | None
    live: LiveEnvironments = field(init=False)
    worlds: dict[EnvironmentId, World] = field(default_factory=dict)
    at_work: set[EnvironmentId] = field(default_factory=set)
    most: int = 0

    def __post_init__(self) -> None:
        self.live = LiveEnvironments(count=self.many, idle_s=IDLE_S)

    def work(self, question: EpisodeQuestion) -> Generator[None, None, Reply | Otherwise]:
        plan = self.live.begin(question, 0.0)
        if isinstance(plan, Wait):
            while plan.environment in self.at_work:
                yield
            plan = self.live.begin(question, 0.0, may_wait=False)
        if isinstance(plan, Reply):
            return plan
        assert isinstance(plan, Work)
        for number in plan.closing:
            assert number not in self.at_work
            del self.worlds[number]
        number = plan.environment
        assert number not in self.at_work, "one question at a time"
        self.at_work.add(number)
        self.most = max(self.most, len(self.at_work))
        if plan.is_new:
            self.worlds[number] = World(nonce="" if self.nonces is None else f"{next(self.nonces)}/")
        following: object = plan.first
        while True:
            assert len(self.live) <= max(self.many, self.most)
            if isinstance(following, Step | TellReward):
                yield
            match following:
                case Step(said=said):
                    following = self.live.answered(number, self.worlds[number].step(said), 0.0)
                case TellReward():
                    following = self.live.rewarded(number, self.worlds.pop(number).reward())
                case Otherwise():
                    del self.worlds[number]
                    self.at_work.remove(number)
                    return following
                case Reply():
                    self.at_work.remove(number)
                    return following


@dataclass(kw_only=True)
class Episode:
    """One who says those words, and hears what comes back."""

    words: list[str]
    answers: list[str] = field(default_factory=list)
    ends: bool = False
    outcome: float | Otherwise | None = None
    working: tuple[int, Generator[None, None, Reply | Otherwise]] | None = None

    @property
    def question(self) -> EpisodeQuestion:
        turns = len(self.answers) + 1 - (self.ends and len(self.answers) == len(self.words))
        return asked(*self.words[:turns], answers=tuple(self.answers[: turns - 1]), reward=self.ends)

    def hear(self, reply: Reply | Otherwise) -> None:
        if isinstance(reply, Otherwise) or isinstance(reply.answer, float):
            self.outcome = reply if isinstance(reply, Otherwise) else reply.answer
        elif reply.answer is None:
            self.ends = True
        else:
            self.answers.append(str(reply.answer))
            self.ends = len(self.answers) == len(self.words)


events = st.lists(
    st.tuples(st.sampled_from(["go", "go", "go", "go", "kill", "expire"]), st.integers(0, 5), st.integers(0, 1)),
    max_size=120,
)
scripts = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=LONGEST), min_size=1, max_size=6)


def play(
    scripts: list[list[str]], events: list[tuple[str, int, int]], many: int, nonces: count[int] | None
) -> list[Episode]:
    """Let them all play on two verifiers in that order, and then to their ends."""
    verifiers = [Verifier(many=many, nonces=nonces) for _ in range(2)]
    episodes = [Episode(words=words) for words in scripts]

    def go(episode: Episode, place: int) -> None:
        if episode.outcome is not None:
            return
        if episode.working is None:
            episode.working = (place, verifiers[place].work(episode.question))
        try:
            next(episode.working[1])
        except StopIteration as end:
            episode.working = None
            episode.hear(end.value)

    for what, who, place in events:
        if what == "go":
            go(episodes[who % len(episodes)], place)
        elif what == "kill":
            verifiers[place] = Verifier(many=many, nonces=nonces)
            for episode in episodes:
                if episode.working is not None and episode.working[0] == place:
                    episode.working = None
        else:
            for number in verifiers[place].live.expire(2 * IDLE_S):
                del verifiers[place].worlds[number]
    while any(episode.outcome is None for episode in episodes):
        for who, episode in enumerate(episodes):
            go(episode, who % 2)
    for verifier in verifiers:
        assert set(verifier.worlds) == set(verifier.live._live), (
            "the verifier and the test must know the same live environments"
        )
        assert not verifier.at_work
    return episodes


@given(scripts, events, st.integers(1, 3))
def test_one_that_follows_from_what_was_said_is_as_if_nothing_was_ever_lost(
    scripts: list[list[str]], events: list[tuple[str, int, int]], many: int
) -> None:
    for episode in play(scripts, events, many, None):
        world, answers = World(nonce=""), list[str]()
        for word in episode.words:
            if (answer := world.step(word)) is None:
                break
            answers.append(str(answer))
        assert episode.answers == answers
        assert episode.outcome == world.reward()


@given(scripts, events, st.integers(1, 3))
def test_one_that_is_another_each_time_is_abandoned_and_never_changed_on_the_way(
    scripts: list[list[str]], events: list[tuple[str, int, int]], many: int
) -> None:
    for episode in play(scripts, events, many, count(1)):
        told = [answer.split("/")[0] for answer in episode.answers]
        assert len(set(told)) <= 1, "all that it read was one environment's"
        if isinstance(episode.outcome, Otherwise):
            assert 1 <= episode.outcome.turn <= len(told)
        elif len(told) > 1:
            assert episode.outcome is not None
            assert abs(episode.outcome % 1 - (hash(f"{told[0]}/") % 1000) / 1000) < 1e-9, "nor was it judged by another"
