"""Heads-up poker: one hand of fixed-limit Texas hold'em against an opponent who plays by a rule, on pokerkit.

What always holds: the deck is part of the problem, and the opponent's mind a function of the deck and of what was done
so far, so whoever holds the transcript can replay the hand; the opponent knows its own cards and the board, and never
the policy's; the reward is what the hand won, in the most that it could have. See ECHO-2 (arXiv 2602.02192) for poker
as a task of a swarm. pokerkit knows the rules and is imported when such a task is opened.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from node.tasks.api.interface import Chat, Completion, Option, Problem, Task, TaskArguments, TaskError, TaskKind, Turn
from node.tasks.api.options import CHAT
from node.tasks.kinds.generated import MAX_DRAWS, Dice, DrawnTask, is_held_out, label_of

RANKS, SUITS = "23456789TJQKA", "cdhs"
CARDS = 9
"""Of a deck, dealt in a hand: two to each, five to the board."""

SMALL, BIG = 2, 4
"""Bets before and after the turn; the blinds are half of the first, and the first."""

STACK = 48
"""What a player can lose in a hand: four bets in each of four rounds."""

STREETS = ("Before the flop", "Flop", "Turn", "River")
_MOVE = re.compile(r"\b(fold|check|call|bet|raise)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class PokerProblem(Problem):
    """`deck` in the order of dealing; the policy sits at `seat` 0, the big blind, or 1, the button, who begins."""

    deck: tuple[str, ...]
    seat: int


@dataclass(frozen=True, kw_only=True)
class PokerTask(DrawnTask):
    """See the module's paragraph. The opponent bluffs in `bluffs` of 100 cases."""

    bluffs: int
    chat: Chat

    def require(self) -> None:
        """Raises TaskError where pokerkit is not installed."""
        require_pokerkit()

    def answer_turn(self, problem: Problem, turns: Sequence[Turn], said: str) -> str | None:
        """What the opponent did, what was dealt, what there is to call; None when the hand is over."""
        hand = self._hand(problem, [*(turn.said for turn in turns), said])
        return None if hand.is_over else f"{hand.news()}\n"

    def reward(self, problem: Problem, completion: Completion) -> float:
        """What the policy won, over STACK: from -1 to 1. A hand that is left is folded."""
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
                continue  # the opponent has folded at once: there is nothing to ask
            return PokerProblem(prompt=f"{opening}\n{hand.news()}\n", chat=self.chat, deck=deck, seat=seat)
        raise TaskError(f"task {self.label}: no hand could be dealt in {MAX_DRAWS} draws.")


class Hand:
    """One hand, up to where the policy is to act, or to its end."""

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
        """Chips of the policy above what it began with, once the hand is over."""
        return int(self._state.stacks[self._problem.seat]) - STACK

    def act(self, text: str) -> None:
        """The policy's move, the last that its text names; a text without one folds. Then the opponent's."""
        moves = _MOVE.findall(text)
        self._heard = []
        self._move(moves[-1].lower() if moves else "fold")
        self._go_on()

    def leave(self) -> None:
        """The policy is gone: it folds until the hand is over."""
        while not self.is_over:
            self.act("fold")

    def news(self) -> str:
        """What the policy reads."""
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
        """Make a move, or the nearest that the rules allow; return it in words."""
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
        """Its rule: raise what is strong, call what is fair, else fold; and bluff now and then."""
        seat = 1 - self._problem.seat
        mine = self._problem.deck[2 * seat : 2 * seat + 2]
        if Dice("opponent", *self._problem.deck, *self._done).below(100) < self._bluffs:
            return "raise"
        strength = self._strength(mine)
        return "raise" if strength >= STRONG else "call" if strength >= FAIR else "fold"

    def _strength(self, mine: Sequence[str]) -> float:
        """From 0 to 1: by the two cards before the flop, by what they make with the board after it."""
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
"""What a hand is worth by its kind; any other is worth all."""


def require_pokerkit() -> None:
    """Raises TaskError, with what to type, where pokerkit is not installed."""
    if find_spec("pokerkit") is None:
        raise TaskError("task 'poker' needs pokerkit, which is not installed here. Run: pip install 'volery[tasks]'.")


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
        Option(key="bluffs", default=10, help="of 100 decisions of the opponent's, bluffs", minimum=0, maximum=100),
        CHAT,
    ),
)
