"""Play Sokoban: push every box onto a goal by letters, and read the board after each turn.

A board is one line, with "|" between its rows, in the usual letters: # wall, - floor, . goal, $ box, * box on a goal,
@ player, + player on a goal. Problems are drawn like those of `node.tasks.kinds.generated`. See Echo (arXiv 2508.05387)
for Sokoban as a task of a swarm.

Invariants:

- A board is made backwards, by pulls from a board with all boxes on goals. So each one can be solved, and the way back
  is its reference answer.
- The state of a board is computed from what was said, and never kept.
- A move that a wall or a box prevents changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from node.tasks.api.interface import Completion, Option, Problem, Task, TaskArguments, TaskError, TaskKind, Turn
from node.tasks.kinds.generated import Dice, GeneratedTask, generated

Cell = tuple[int, int]
"""(row, column)"""

STEPS: dict[str, Cell] = {"u": (-1, 0), "d": (1, 0), "l": (0, -1), "r": (0, 1)}
OPPOSITE = {"u": "d", "d": "u", "l": "r", "r": "l"}

MAX_SAID = 256
"""Letters of a turn to look at: more than any board here needs."""

PLAYED = 4096
"""Turns whose result is cached, some kilobytes each. An episode is replayed at each of its turns, and 64 turns of
MAX_SAID letters took the node a second."""

WALK = 24
"""Steps of the walk backwards for each box: about as many as move it across the larger boards."""

WALLS_ONE_IN = 8
"""One inner cell in so many is a wall, which gives corridors and still leaves room for boxes."""

MAX_BOARDS = 20
"""Maximum boards to try until one has no box left on a goal. If all have some, the board with the fewest is used."""


@dataclass(frozen=True, kw_only=True)
class Board:
    """A position. `walls` contains the border too."""

    rows: int
    columns: int
    walls: frozenset[Cell]
    goals: frozenset[Cell]
    boxes: frozenset[Cell]
    player: Cell

    @property
    def is_solved(self) -> bool:
        return self.boxes == self.goals

    def move(self, letter: str) -> Board:
        """Return the board after one step; the same board if it is not possible, or if `letter` is not in "udlr"."""
        if letter not in STEPS:
            return self
        to = _beside(self.player, letter)
        if to in self.walls:
            return self
        if to not in self.boxes:
            return replace(self, player=to)
        beyond = _beside(to, letter)
        if beyond in self.walls or beyond in self.boxes:
            return self
        return replace(self, boxes=self.boxes - {to} | {beyond}, player=to)

    def pull(self, letter: str) -> Board | None:
        """Return the board after a step backwards, which pulls the box behind, if any; None if it is not possible."""
        to, behind = _beside(self.player, letter), _beside(self.player, OPPOSITE[letter])
        if to in self.walls or to in self.boxes:
            return None
        boxes = self.boxes - {behind} | {self.player} if behind in self.boxes else self.boxes
        return replace(self, boxes=boxes, player=to)

    def text(self) -> str:
        return "|".join(
            "".join(self._letter((row, column)) for column in range(self.columns)) for row in range(self.rows)
        )

    def _letter(self, cell: Cell) -> str:
        if cell in self.walls:
            return "#"
        plain, on_goal = ("@", "+") if cell == self.player else ("$", "*") if cell in self.boxes else ("-", ".")
        return on_goal if cell in self.goals else plain


def _beside(cell: Cell, letter: str) -> Cell:
    down, right = STEPS[letter]
    return cell[0] + down, cell[1] + right


def read_board(text: str) -> Board:
    """Return the board that `Board.text` wrote."""
    cells = {(r, c): letter for r, row in enumerate(text.split("|")) for c, letter in enumerate(row)}

    def where(letters: str) -> frozenset[Cell]:
        return frozenset(cell for cell, letter in cells.items() if letter in letters)

    [player] = where("@+")
    return Board(
        rows=1 + max(row for row, _ in cells),
        columns=1 + max(column for _, column in cells),
        walls=where("#"),
        goals=where(".*+"),
        boxes=where("$*"),
        player=player,
    )


@lru_cache(maxsize=PLAYED)
def play(board: Board, said: str) -> Board:
    """Return the board after the letters of a turn, or after those that solve it."""
    for letter in said[:MAX_SAID].lower():
        if board.is_solved:
            break
        board = board.move(letter)
    return board


def draw_board(dice: Dice, *, rows: int, columns: int, boxes: int) -> tuple[Board, str]:
    """Return a board that is not solved, and letters that solve it."""
    best: tuple[Board, str] | None = None
    for _ in range(MAX_BOARDS):
        found = _walked_back(dice, _solved(dice, rows, columns, boxes))
        away = len(found[0].boxes - found[0].goals)
        if best is None or away > len(best[0].boxes - best[0].goals):
            best = found
        if away == boxes:
            break
    if best is None or best[0].is_solved:
        raise TaskError("task 'sokoban': no box can be moved on so small a board. Raise rows or columns.")
    return best


def _solved(dice: Dice, rows: int, columns: int, boxes: int) -> Board:
    """Return a board with some walls, the boxes on their goals, and the player beside them."""
    border = {(r, c) for r in range(rows) for c in range(columns) if r in (0, rows - 1) or c in (0, columns - 1)}
    inner = [(r, c) for r in range(1, rows - 1) for c in range(1, columns - 1)]
    taken = [inner.pop(dice.below(len(inner))) for _ in range(boxes + 1)]
    walls = border | {cell for cell in inner if dice.below(WALLS_ONE_IN) == 0}
    goals = frozenset(taken[1:])
    return Board(rows=rows, columns=columns, walls=frozenset(walls), goals=goals, boxes=goals, player=taken[0])


def _walked_back(dice: Dice, board: Board) -> tuple[Board, str]:
    """Return the board after a random walk of pulls without loops, and the walk backwards, which solves it."""
    path: list[Board] = [board]
    letters: list[str] = []
    for _ in range(WALK * len(board.boxes)):
        letter = "udlr"[dice.below(4)]
        if (after := path[-1].pull(letter)) is None:
            continue
        if after in path:
            place = path.index(after)
            del path[place + 1 :], letters[place:]
        else:
            path.append(after)
            letters.append(letter)
    return path[-1], "".join(OPPOSITE[letter] for letter in reversed(letters))


@dataclass(frozen=True, kw_only=True)
class SokobanTask(GeneratedTask):
    """Boards of Sokoban. `tries`: maximum turns. `shares`: the reward is the fraction of boxes on goals at the end."""

    tries: int
    shares: bool

    def answer_turn(self, problem: Problem, turns: Sequence[Turn], said: str) -> str | None:
        """Return the board as it is now; None if it is solved, or if no turn is left."""
        board = play(self._board(problem, turns), said)
        return None if board.is_solved or len(turns) + 1 >= self.tries else f"|{board.text()}="

    def in_form(self, problem: Problem, completion: Completion) -> bool:
        """Return whether the turn consists of steps and nothing else."""
        del problem
        return set(completion.text.strip().lower()) <= STEPS.keys()

    def reward(self, problem: Problem, completion: Completion) -> float:
        board = self._board(problem, completion.turns)
        if completion.finished:
            board = play(board, completion.text)
        if self.shares:
            return len(board.boxes & board.goals) / len(board.goals)
        return float(board.is_solved)

    def _board(self, problem: Problem, turns: Sequence[Turn]) -> Board:
        board = read_board(str(problem.prompt).removeprefix("sokoban:").removesuffix("="))
        for turn in turns:
            board = play(board, turn.said)
        return board


def _build_sokoban(arguments: TaskArguments) -> Task:
    rows, columns, boxes = (arguments.integer(key) for key in ("rows", "columns", "boxes"))

    def draw(dice: Dice, _level: int) -> tuple[str, str]:
        board, letters = draw_board(dice, rows=rows, columns=columns, boxes=boxes)
        return f"sokoban:{board.text()}=", letters

    tries, shares = arguments.integer("tries"), arguments.text("reward") == "boxes"
    return generated("sokoban", arguments, SokobanTask, draw=draw, tries=tries, shares=shares)


SOKOBAN = TaskKind(
    name="sokoban",
    summary='turns: push boxes onto goals by letters of "udlr": "sokoban:#####|#@$.#|#####=" "r" -> solved',
    build=_build_sokoban,
    options=(
        Option(key="rows", default=6, help="rows of the board, including its walls", minimum=4, maximum=12),
        Option(key="columns", default=6, help="columns of the board, including its walls", minimum=4, maximum=12),
        Option(key="boxes", default=1, help="boxes to push", minimum=1, maximum=3),
        Option(key="tries", default=8, help="maximum turns of an episode", minimum=1, maximum=64),
        Option(key="reward", default="solved", help="solved: 0 or 1; boxes: their share", choices=("solved", "boxes")),
    ),
)
