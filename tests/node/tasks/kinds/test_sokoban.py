"""Sokoban: every board can be solved, by its reference answer and by a solver that knows nothing of how it was made."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.tasks.api.interface import Completion, TaskError, Turn, TurnTask
from node.tasks.grading import Asked, grade
from node.tasks.kinds.generated import Dice, is_held_out
from node.tasks.kinds.sokoban import Board, draw_board, play, read_board
from node.tasks.registry import open_task
from tests.support.examples import examples

CORRIDOR = read_board("######|#@$-.#|######")


def solvable(board: Board) -> bool:
    """By looking at every position."""
    seen, waiting = {(board.boxes, board.player)}, deque([board])
    while waiting:
        now = waiting.popleft()
        if now.is_solved:
            return True
        for letter in "udlr":
            after = now.move(letter)
            if (after.boxes, after.player) not in seen:
                seen.add((after.boxes, after.player))
                waiting.append(after)
    return False


@settings(deadline=None, max_examples=examples(30))
@given(seed=st.integers(0, 1 << 32), rows=st.integers(5, 6), columns=st.integers(5, 6), boxes=st.integers(1, 2))
def test_every_board_can_be_solved_and_is_not_yet(seed: int, rows: int, columns: int, boxes: int) -> None:
    board, letters = draw_board(Dice("test", seed), rows=rows, columns=columns, boxes=boxes)
    assert not board.is_solved
    assert len(board.boxes) == len(board.goals) == boxes
    assert play(board, letters).is_solved
    assert solvable(board)
    assert read_board(board.text()) == board


def test_a_board_that_cannot_be_solved_is_known_to_the_solver() -> None:
    assert not solvable(read_board("#####|#$-@#|#--.#|#####"))


@pytest.mark.parametrize(
    ("said", "board"),
    [
        ("r", "######|#-@$.#|######"),
        ("rr", "######|#--@*#|######"),
        ("RR and more", "######|#--@*#|######"),
        ("lud?", "######|#@$-.#|######"),
    ],
)
def test_moves(said: str, board: str) -> None:
    assert play(CORRIDOR, said).text() == board


def test_a_box_is_pushed_neither_into_a_wall_nor_into_another() -> None:
    assert play(read_board("#####|#@$$#|#..-#|#####"), "r").text() == "#####|#@$$#|#..-#|#####"
    assert play(read_board("#####|#-@$#|#-.-#|#####"), "r").text() == "#####|#-@$#|#-.-#|#####"


def test_a_solved_board_stays_solved() -> None:
    assert play(CORRIDOR, "rrlll").is_solved


def test_an_episode_by_turns() -> None:
    task = open_task("sokoban:boxes=2,tries=3")
    assert isinstance(task, TurnTask)
    problem = task.problem(5)
    letters = str(problem.answer)
    first, rest = letters[:2], letters[2:]
    answered = task.answer_turn(problem, [], first)
    assert answered == f"|{play(read_board(str(problem.prompt)[8:-1]), first).text()}="
    turns = [Turn(said=first, answered=answered)]
    assert task.answer_turn(problem, turns, rest) is None
    assert task.reward(problem, Completion(text=rest, finished=True, turns=tuple(turns))) == 1.0
    assert task.reward(problem, Completion(text=rest, finished=False, turns=tuple(turns))) == 0.0
    assert task.answer_turn(problem, [*turns, Turn(said="", answered="")], "u") is None, "the last of its turns"
    asked = Asked(index=5, held_out=False, said=(first, rest), finished=True, wants_reward=True)
    assert grade(task, asked) == 1.0


def test_boxes_may_count_by_themselves() -> None:
    task = open_task("sokoban:boxes=2,reward=boxes")
    problem = task.problem(5)
    letters = str(problem.answer)
    worth = {task.reward(problem, Completion(text=letters[:end], finished=True)) for end in range(len(letters) + 1)}
    assert {0.0, 0.5, 1.0} >= worth >= {0.0, 1.0}


def test_sides_never_meet_and_too_small_a_board_is_told() -> None:
    task = open_task("sokoban")
    assert not any(is_held_out(str(task.problem(index).prompt)) for index in range(20))
    assert all(is_held_out(str(task.held_out(index).prompt)) for index in range(5))
    with pytest.raises(TaskError, match="no box can be moved on so small a board"):
        open_task("sokoban:rows=4,columns=4,boxes=3")
