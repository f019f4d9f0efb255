"""Play heads-up poker: one hand of fixed-limit Texas hold'em against an opponent who follows a rule, with pokerkit.

See ECHO-2 (arXiv 2602.02192) for poker as a task of a swarm. pokerkit knows the rules of the game. It is imported when
such a task is opened.

Invariants:

- The deck is part of the problem, and the opponent's moves are a function of the deck and of the moves so far. So the
  transcript is enough to replay the hand.
- The opponent knows its own cards and the board, never the policy's cards.
- The reward is what the hand won, divided by the most that it could win.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from node.installation.extras import line_of_extra
from node.tasks.api.interface import Chat, Completion, Option, Problem, Task, TaskArguments, TaskError, TaskKind, Turn
from node.tasks.api.options import CHAT
from node.tasks.kinds.generated import MAX_DRAWS, Dice, DrawnTask, is_held_out, label_of

RANKS, SUITS = "23456789TJQKA", "cdhs"
CARDS = 9
"""Cards of a deck that a hand deals: two to each player, five to the board."""

SMALL, BIG = 2, 4
"""Bets on the first two streets, and on the last two. The small blind is half of the first, the big blind all of it."""

STACK = 48
"""Chips that a player can lose in a hand: four bets in each of four rounds."""

STREETS = ("Before the flop", "Flop", "Turn", "River")
_MOVE = re.compile(r"\b(fold|check|call|bet|raise)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class PokerProblem(Problem):
    """`deck`: in the order of dealing. `seat`: 0 if the policy has the big blind, 1 if it has the button and begins."""

    deck: tuple[str, ...]
    seat: int


@dataclass(frozen=True, kw_only=True)
class PokerTask(DrawnTask):
    """Hands of poker. The opponent bluffs in `bluffs` of 100 decisions."""

    bluffs: int
    chat: Chat

    def require(self) -> None:
        """Raise TaskError if pokerkit is not installed."""
        require_pokerkit()

    def answer_turn(self, problem: Problem, turns: Sequence[Turn], said: str) -> str | None:
        """Return the opponent's moves, the cards dealt and the amount to call; None if the hand is over."""
        hand = self._hand(problem, [*(turn.said for turn in turns), said])
        return None if hand.is_over else f"{hand.news()}\n"

    def reward(self, problem: Problem, completion: Completion) -> float:
        """Return the policy's win divided by STACK, from -1 to 1. A hand that is not finished is folded."""
        last = completion.text if completion.finished else "fold"
        hand = self._hand(problem, [*(turn.said for turn in completion.turns), last])
        if not hand.is_over:
            hand.leave()
        return hand.won / STACK

    def _hand(self, problem: Problem, said: Sequence[str]) -> Hand:
        assert isinstance(problem, PokerProblem), "a problem of this task"
        hand = Hand(problem, self.bluffs)
        for text in said:
            if not hand.is_over:
                hand.act(text)
        return hand

    def _draw_on_side(self, index: int, side: str, *, held_out: bool) -> PokerProblem:
        dice = Dice(self.label, side, index)
        for _ in range(MAX_DRAWS):
            cards = [rank + suit for rank in RANKS for suit in SUITS]
            deck = tuple(cards.pop(dice.below(len(cards))) for _ in range(CARDS))
            seat = dice.below(2)
            mine = " ".join(sorted(deck[2 * seat : 2 * seat + 2]))
            where = "the button: you begin" if seat == 1 else "the big blind: your opponent begins"
            opening = (
                "One hand of heads-up fixed-limit Texas hold'em, blinds 1 and 2, bets 2 and 4. Each turn, say fold, "
                f"call or raise (call also checks). You are {where}. Your cards: {mine}."
            )
            if is_held_out(opening) != held_out:
                continue
            shown = PokerProblem(prompt=opening, chat=self.chat, deck=deck, seat=seat)
            hand = Hand(shown, self.bluffs)
            if hand.is_over:
                continue  # the opponent has folded at once, so there is nothing to ask
            return PokerProblem(prompt=f"{opening}\n{hand.news()}\n", chat=self.chat, deck=deck, seat=seat)
        raise TaskError(f"task {self.label}: no hand could be dealt in {MAX_DRAWS} draws.")


class Hand:
    """One hand, until the policy must act or the hand is over."""

    def __init__(self, problem: PokerProblem, bluffs: int) -> None:
        from pokerkit import Automation, FixedLimitTexasHoldem

        self._problem, self._bluffs = problem, bluffs
        self._left = list(problem.deck)
        self._done: list[str] = []
        self._heard: list[str] = []
        by_itself = (
            Automation.ANTE_POSTING,
            Automation.BET_COLLECTION,
            Automation.BLIND_OR_STRADDLE_POSTING,
            Automation.HOLE_CARDS_SHOWING_OR_MUCKING,
            Automation.HAND_KILLING,
            Automation.CHIPS_PUSHING,
            Automation.CHIPS_PULLING,
        )
        self._state: Any = FixedLimitTexasHoldem.create_state(
            by_itself, True, 0, (SMALL // 2, SMALL), SMALL, BIG, STACK, 2
        )
        self._go_on()

    @property
    def is_over(self) -> bool:
        return not self._state.status

    @property
    def won(self) -> int:
        """Chips that the policy has won, once the hand is over; negative if it lost."""
        return int(self._state.stacks[self._problem.seat]) - STACK

    def act(self, text: str) -> None:
        """Make the policy's move, the last one that its text names, or fold if it names none. Then the opponent's."""
        moves = _MOVE.findall(text)
        self._heard = []
        self._move(moves[-1].lower() if moves else "fold")
        self._go_on()

    def leave(self) -> None:
        """Fold for the policy until the hand is over."""
        while not self.is_over:
            self.act("fold")

    def news(self) -> str:
        """Return the text that the policy reads."""
        state = self._state
        board = " ".join(repr(card) for [card] in state.board_cards)
        street = STREETS[state.street_index or 0] + (f": {board}" if board else "")
        to_call = int(state.checking_or_calling_amount or 0)
        heard = "".join(f"Your opponent {word}. " for word in self._heard)
        return f"{heard}{street}. Pot {int(state.total_pot_amount)}, {to_call} to call."

    def _go_on(self) -> None:
        """Deal, and let the opponent act, until it is the policy's turn or the hand is over."""
        state, seat = self._state, self._problem.seat
        while state.status:
            if state.can_deal_hole():
                state.deal_hole(self._next(2))
            elif state.can_burn_card():
                state.burn_card("??")
            elif state.can_deal_board():
                state.deal_board(self._next(state.board_dealing_count))
            elif state.actor_index == seat:
                return
            else:
                self._heard.append(self._move(self._opponents()))

    def _next(self, count: int) -> str:
        dealt, self._left = self._left[:count], self._left[count:]
        return "".join(dealt)

    def _move(self, move: str) -> str:
        """Make a move, or the nearest one that the rules allow. Return it in words."""
        state = self._state
        self._done.append(move)
        free = not state.checking_or_calling_amount
        if move in ("bet", "raise") and state.can_complete_bet_or_raise_to():
            state.complete_bet_or_raise_to()
            return "raises"
        if move == "fold" and not free:
            state.fold()
            return "folds"
        state.check_or_call()
        return "checks" if free else "calls"

    def _opponents(self) -> str:
        """Return the opponent's move: raise strong hands, call fair ones, fold others, and sometimes bluff."""
        seat = 1 - self._problem.seat
        mine = self._problem.deck[2 * seat : 2 * seat + 2]
        if Dice("opponent", *self._problem.deck, *self._done).below(100) < self._bluffs:
            return "raise"
        strength = self._strength(mine)
        return "raise" if strength >= STRONG else "call" if strength >= FAIR else "fold"

    def _strength(self, mine: Sequence[str]) -> float:
        """Return the strength of a hand, 0 to 1: by its two cards before the flop, later by the hand they make."""
        if not (board := "".join(repr(card) for [card] in self._state.board_cards)):
            high, low = sorted((RANKS.index(card[0]) for card in mine), reverse=True)
            if high == low:
                return 0.5 + high / 24
            return (high + low) / 32 + 0.1 * (mine[0][1] == mine[1][1]) + 0.1 * (high - low == 1)
        from pokerkit import StandardHighHand

        made = StandardHighHand.from_game("".join(mine), board)
        return MADE.get(made.entry.label.name, 1.0)


STRONG, FAIR = 0.65, 0.3
MADE = {"HIGH_CARD": 0.2, "ONE_PAIR": 0.5, "TWO_PAIR": 0.7}
"""The strength of a hand by its kind. All other kinds count as 1."""


def require_pokerkit() -> None:
    """Raise TaskError, with the command to type, if pokerkit is not installed."""
    if find_spec("pokerkit") is None:
        line = line_of_extra("tasks")
        raise TaskError(f"task 'poker' needs pokerkit, which is not installed here. Type: {line}")


def _build_poker(arguments: TaskArguments) -> Task:
    require_pokerkit()  # the node deals
    return PokerTask(
        name="poker",
        label=label_of("poker", arguments),
        seed=arguments.seed,
        bluffs=arguments.integer("bluffs"),
        chat=Chat(arguments.text("chat")),
    )


POKER = TaskKind(
    name="poker",
    summary="turns: one hand of heads-up fixed-limit Texas hold'em against a scripted opponent: fold, call or raise",
    build=_build_poker,
    options=(
        Option(key="bluffs", default=10, help="opponent's bluffs in 100 decisions", minimum=0, maximum=100),
        CHAT,
    ),
)
