"""Collect what `volery tasks show` shows of a task, as values: prompts as the model reads them, and rewards of answers.

A text that cannot be encoded, or an answer that cannot be judged, becomes a value with the reason, so that one bad
prompt does not hide the others. A task that cannot be opened raises TaskError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from learner.rollouts.environment import EpisodeLimits
from learner.rollouts.reward_parts import Parts
from node.tasks.api.interface import Answer, Completion, Problem, TaskError, Turn
from node.tasks.checks.asking import answer_turn, reward
from node.tasks.composed_reward import parts_of
from node.tasks.first_reward import require_services
from node.tasks.gate import Gate, Place
from node.tasks.template_checks import check_template
from node.tasks.tokenizer import TextCodec


@dataclass(frozen=True, kw_only=True)
class Token:
    """One token of a prompt. `text`: its spelling. `is_special`: the tokenizer adds it to its vocabulary."""

    id: int
    text: str
    is_special: bool


@dataclass(frozen=True, kw_only=True)
class ShownReward:
    """The reward of an answer; None if it cannot be judged, with the reason `why`. `parts`: the named rewards."""

    reward: float | None
    why: str = ""
    parts: Parts = ()


@dataclass(frozen=True, kw_only=True)
class ShownProblem:
    """A problem as the model reads it.

    Args:
        text: the text of all `tokens`.
        trouble: why there are no tokens.
        has_room: whether a turn fits behind the prompt.
        answer: the reference answer; `reference` is its reward, and `empty` that of an empty answer.
        answer_trouble: why the model cannot write the reference answer; "" if it can, or if there is none.
        turns: the episode of a policy that gives the reference answer in every turn.
    """

    index: int
    held_out: bool
    tokens: tuple[Token, ...]
    text: str
    trouble: str
    has_room: bool
    answer: str | None
    reference: ShownReward | None
    empty: ShownReward
    turns: tuple[Turn, ...] = ()
    answer_trouble: str = ""

    @property
    def is_hopeless(self) -> bool:
        """Whether the model cannot read the prompt, or cannot write the reference answer."""
        return bool(self.trouble or self.answer_trouble)


@dataclass(frozen=True, kw_only=True)
class ShownTask:
    """A task with its first problems. `size` and `num_held_out` are None if they are unlimited. `lacks`: what its
    rewards need and this machine does not have."""

    spec: str
    name: str
    fingerprint: str
    levels: int
    size: int | None
    num_held_out: int | None
    notes: tuple[str, ...]
    has_turns: bool
    is_cheap: bool
    model: str
    stop_ids: tuple[Token, ...]
    limits: EpisodeLimits
    lacks: str
    problems: tuple[ShownProblem, ...]

    @property
    def is_hopeless(self) -> bool:
        """Whether no problem that is shown can be trained on."""
        return all(problem.is_hopeless for problem in self.problems)


def shown_task(
    gate: Gate, spec: str, *, codec: TextCodec, limits: EpisodeLimits, count: int, held_out: int
) -> ShownTask:
    """Return the task with its first `count` training problems and, if `held_out` is not 0, its first held-out one.

    Raises TaskError if the task does not describe itself.
    """
    lacks = reason(gate.require) or reason(partial(require_services, gate))
    finite = gate.finite
    left = held_out if finite is None else min(held_out, finite.num_held_out)
    places = [Place(index=index) for index in range(count)] + [Place(index=0, held_out=True)] * (left > 0)
    return ShownTask(
        spec=spec,
        name=gate.name,
        fingerprint=gate.fingerprint,
        levels=gate.levels,
        size=finite.size if finite else None,
        num_held_out=finite.num_held_out if finite else None,
        notes=(*(finite.notes if finite else ()), *_template_notes(gate, codec)),
        has_turns=gate.has_turns,
        is_cheap=gate.is_cheap,
        model=str(codec.directory),
        stop_ids=token_values(codec, sorted(codec.stop_ids)),
        limits=limits,
        lacks=lacks,
        problems=tuple(shown_problem(gate, place, codec, limits, lacks) for place in places),
    )


def _template_notes(gate: Gate, codec: TextCodec) -> Sequence[str]:
    """Return the remarks that the start of a run makes on the chat template; none if the first prompt fails itself."""
    try:
        problem = gate.problem(Place(index=0))
        codec.encode_prompt(problem)
    except TaskError:
        return ()
    try:
        return check_template(codec, problem, has_turns=gate.has_turns)
    except TaskError as error:
        return (f"a run with this task is refused: {error}",)


def shown_problem(gate: Gate, place: Place, codec: TextCodec, limits: EpisodeLimits, lacks: str) -> ShownProblem:
    """Return one problem. With `lacks`, nothing is judged."""
    try:
        problem = gate.problem(place)
    except TaskError as error:
        why = str(error)
        return ShownProblem(
            index=place.index, held_out=place.held_out, tokens=(), text="", trouble=why, has_room=True, answer=None,
            reference=None, empty=ShownReward(reward=None, why=why),
        )  # fmt: skip
    ids, trouble = _encoded(codec, problem)
    turns: list[Turn] = []
    answer = problem.answer
    reference = (
        None if answer is None else _reward_shown(gate, codec, place, problem, answer, limits.turns, lacks, turns)
    )
    return ShownProblem(
        index=place.index,
        held_out=place.held_out,
        tokens=token_values(codec, ids),
        text=codec.decode(ids) if ids else plain(problem.prompt),
        trouble=trouble,
        has_room=limits.allow(0, len(ids)),
        answer=answer,
        reference=reference,
        empty=_reward_shown(gate, codec, place, problem, "", limits.turns, lacks, []),
        turns=tuple(turns),
        answer_trouble="" if answer is None else reason(partial(codec.encode_answer, answer)),
    )


def token_values(codec: TextCodec, ids: Sequence[int]) -> tuple[Token, ...]:
    """Return token ids with their spelling. A part of a character is spelled as the vocabulary has it."""
    special = {number for number, one in codec.tokenizer.get_added_tokens_decoder().items() if one.special}
    spelled = ((number, codec.decode((number,)), codec.tokenizer.id_to_token(number) or "") for number in ids)
    return tuple(
        Token(id=number, text=name if "\ufffd" in text or not text else text, is_special=number in special)
        for number, text, name in spelled
    )


def plain(prompt: Answer) -> str:
    """Return a prompt or an answer as the task gives it, before any template."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{message.role}: {message.content}" for message in prompt)


def reason(ask: Callable[[], object]) -> str:
    """Return why `ask` raises a TaskError; "" if it raises none."""
    try:
        ask()
    except TaskError as error:
        return str(error)
    return ""


def _encoded(codec: TextCodec, problem: Problem) -> tuple[tuple[int, ...], str]:
    """Return the prompt's tokens, or why there are none."""
    try:
        return codec.encode_prompt(problem), ""
    except TaskError as error:
        return (), str(error)


def _reward_shown(
    gate: Gate,
    codec: TextCodec,
    place: Place,
    problem: Problem,
    said: str,
    most: int,
    lacks: str,
    turns: list[Turn],
) -> ShownReward:
    """Return the reward of an episode in which the policy says `said` in each of at most `most` turns; fill `turns`."""
    if lacks:
        return ShownReward(reward=None, why=lacks)
    try:
        while len(turns) + 1 < most:
            answered = answer_turn(gate, codec, place, problem, turns, said)
            if answered is None:
                break
            turns.append(Turn(said=said, answered=answered))
        completion = Completion(text=said, finished=True, turns=tuple(turns))
        found = reward(gate, codec, place, problem, completion)
        return ShownReward(reward=float(found), parts=parts_of(found))
    except TaskError as error:
        return ShownReward(reward=None, why=str(error))
