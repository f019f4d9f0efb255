"""Generate problems of several turns without a download: guess a number, look up values.

Invariants:

- The environment's answer depends only on the problem and on what was said, so the transcript is enough to replay it.
- The prompt does not contain what the policy must find out.
- The reward is 1.0 if the last turn is the answer followed by a stop id, else 0.0.
- Problems are drawn like those of `node.tasks.kinds.generated`.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from node.tasks.api.interface import Option, Problem, Task, TaskArguments, TaskKind, Turn
from node.tasks.kinds.generated import Dice, GeneratedTask, generated

TAG_LETTERS = 4
"""Letters that tell one game of `guess` from another: half a million games, so that none is learnt by heart."""

LOOKUPS_PER_KEY = 2
"""Maximum questions for each key, on average, before `lookup` ends: one mistake for each needed question."""

Rule = Callable[[str, str, Sequence[Turn], str], str | None]
"""(prompt, reference answer, the turns before, what was said) -> the answer; None: the episode is over."""


@dataclass(frozen=True, kw_only=True)
class GeneratedTurnTask(GeneratedTask):
    """A generated task whose answers come from `rule`."""

    rule: Rule

    def answer_turn(self, problem: Problem, turns: Sequence[Turn], said: str) -> str | None:
        return self.rule(str(problem.prompt), str(problem.answer), turns, said)


def _build_guess(arguments: TaskArguments) -> Task:
    numbers, tries = arguments.integer("numbers"), arguments.integer("tries")

    def draw(dice: Dice, _level: int) -> tuple[str, str]:
        return f"guess:{dice.text(string.ascii_lowercase, TAG_LETTERS)}=", str(dice.below(numbers))

    def rule(_prompt: str, answer: str, turns: Sequence[Turn], said: str) -> str | None:
        if said == answer or len(turns) + 1 >= tries:
            return None
        if not (said.isascii() and said.isdigit() and len(said) <= len(str(numbers))):
            return "?"
        return "+" if int(said) < int(answer) else "-"

    return generated("guess", arguments, GeneratedTurnTask, draw=draw, rule=rule)


def _build_lookup(arguments: TaskArguments) -> Task:
    keys = arguments.integer("keys")

    def draw(dice: Dice, _level: int) -> tuple[str, str]:
        letters = list(string.ascii_lowercase)
        asked = [letters.pop(dice.below(len(letters))) for _ in range(keys)]
        return f"look:{''.join(asked)}=", dice.text(string.digits, keys)

    def rule(prompt: str, answer: str, turns: Sequence[Turn], said: str) -> str | None:
        if len(said) != 2 or said[1] != "?" or len(turns) >= LOOKUPS_PER_KEY * keys:
            return None
        place = prompt.removeprefix("look:").find(said[0])
        return answer[place] if 0 <= place < keys else "?"

    return generated("lookup", arguments, GeneratedTurnTask, draw=draw, rule=rule)


GUESS = TaskKind(
    name="guess",
    summary='turns: find a number by "+" (it is larger) and "-": "guess:kqab=" "4" -> "+" "7" -> "-" "6"',
    build=_build_guess,
    options=(
        Option(key="numbers", default=10, help="number of different numbers, from 0 on", minimum=2, maximum=1000),
        Option(key="tries", default=4, help="guesses in an episode", minimum=1, maximum=32),
    ),
)
LOOKUP = TaskKind(
    name="lookup",
    summary='turns: ask for the digits behind letters, then give them: "look:bd=" "b?" -> "3" "d?" -> "5" "35"',
    build=_build_lookup,
    options=(Option(key="keys", default=2, help="letters to look up", minimum=1, maximum=8),),
)
