"""Heads-up poker: hands end, chips are neither made nor lost, and the opponent knows only what it may."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.tasks.api.interface import Completion, Turn
from node.tasks.kinds.generated import is_held_out
from node.tasks.kinds.poker import RANKS, STACK, SUITS, Hand, PokerProblem, PokerTask
from node.tasks.registry import open_task
from tests.support.examples import examples

DECK = [rank + suit for rank in RANKS for suit in SUITS]


def opened(**options: int) -> PokerTask:
    spec = ",".join(f"{key}={value}" for key, value in options.items())
    task = open_task(f"poker:{spec}" if spec else "poker")
    assert isinstance(task, PokerTask)
    return task


def hand(cards: str, seat: int, bluffs: int = 0) -> Hand:
    return Hand(PokerProblem(prompt="", deck=tuple(cards.split()), seat=seat), bluffs)


@settings(deadline=None, max_examples=examples(25))
@given(seed=st.integers(0, 1 << 32), seat=st.integers(0, 1), moves=st.lists(st.sampled_from(["fold", "call", "raise"])))
def test_every_hand_ends_with_as_many_chips_as_it_began(seed: int, seat: int, moves: list[str]) -> None:
    deck = tuple(random.Random(seed).sample(DECK, 9))
    game = Hand(PokerProblem(prompt="", deck=deck, seat=seat), 20)
    for number in range(40):
        if game.is_over:
            break
        game.act(moves[number] if number < len(moves) else "call")
    assert game.is_over
    assert sum(game._state.stacks) == 2 * STACK
    assert -STACK <= game.won <= STACK


def test_the_better_hand_wins_what_was_bet() -> None:
    game = hand("As Ah 7c 2d Ad Ac 3h 9s 4c", seat=0)
    while not game.is_over:
        game.act("raise")
    assert game.won > 0
    game = hand("7c 2d As Ah Ad Ac 3h 9s 4c", seat=0)
    while not game.is_over:
        game.act("call")
    assert game.won < 0


def test_a_fold_ends_the_hand_and_a_text_without_a_move_is_one() -> None:
    for said in ("fold", "I do not know", ""):
        game = hand("7c 2d As Ah Kd Qc 3h 9s 4c", seat=1)
        game.act(said)
        assert (game.is_over, game.won) == (True, -1), "the small blind"


def test_the_last_move_that_is_named_counts_and_what_is_not_allowed_is_the_nearest() -> None:
    game = hand("9c 9d As Ah Kd Qc 3h 2s 4c", seat=1)
    game.act("I could fold, but I raise")
    assert "call" in game.news()
    assert game._done[0] == "raise"
    for _ in range(8):
        if not game.is_over:
            game.act("raise")
    assert -STACK <= game.won <= STACK


def test_the_opponent_plays_by_its_own_cards_and_the_board() -> None:
    """With another hand of ours it does the same, as long as we do."""
    for other in ("7c 2d", "Kh Kc", "3c 4d"):
        told = []
        for mine in ("8c 8h", other):
            game = hand(f"{mine} As Ah Td 5c 6h 9s Jc", seat=0)
            told.append(game.news())
        assert told[0] == told[1]


def test_an_episode_is_replayed_from_what_was_said() -> None:
    task = opened(bluffs=30)
    problem = task.problem(3)
    turns: list[Turn] = []
    for move in ("call", "raise", *["call"] * 20):
        answered = task.answer_turn(problem, turns, move)
        if answered is None:
            break
        assert answered == task.answer_turn(problem, turns, move)
        turns.append(Turn(said=move, answered=answered))
    reward = task.reward(problem, Completion(text="call", finished=True, turns=tuple(turns)))
    assert -1 <= reward <= 1
    assert reward == task.reward(problem, Completion(text="call", finished=True, turns=tuple(turns)))


def test_leaving_a_hand_folds_it() -> None:
    task = opened(bluffs=0)
    problem = next(one for one in map(task.problem, range(50)) if one.seat == 1)
    assert task.reward(problem, Completion(text="raise", finished=False)) == -1 / STACK


def test_the_deck_stays_with_the_learner_and_sides_never_meet() -> None:
    task = opened()
    for index in range(20):
        problem = task.problem(index)
        theirs = problem.deck[2 * (1 - problem.seat) : 2 * (1 - problem.seat) + 2]
        assert not any(card in str(problem.prompt) for card in (*theirs, *problem.deck[4:]))
        assert not is_held_out(str(problem.prompt).split("\n")[0])
    assert is_held_out(str(task.held_out(0).prompt).split("\n")[0])
    assert replace(task, seed=1).held_out(0) == task.held_out(0)
    assert replace(task, seed=1).problem(0) != task.problem(0)


@pytest.mark.parametrize("seat", [0, 1])
def test_what_is_read_names_the_board_and_what_there_is_to_call(seat: int) -> None:
    game = hand("9c 9d Ts Th Kd Qc 3h 2s 4c", seat=seat)
    assert game.news().endswith(("to call.",))
    game.act("call")
    assert "Flop: Kd Qc 3h" in game.news() or "Before the flop" in game.news()
