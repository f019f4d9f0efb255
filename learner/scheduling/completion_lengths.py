"""Predict how long the completions of a prompt will be, from what was admitted before.

A pure core. The longest completion of a group counts, since a lease is delivered when that is done. For a problem that
comes again, epoch after epoch, the prediction is what it was before, with the newest group as half of it. For a new
problem, it is the mean over prompts of its task and level and about its size, else over its task and level, else over
all. A wrong prediction makes work slower, and changes nothing in what is trained on.

Invariants:

- Only admitted groups are learned from, so a peer whose records are rejected cannot influence the predictions.
- Memory is bounded; the problems that were not seen for longest are forgotten.
- Each group is predicted before it is learned from, which shows whether predictions are better than treating all
  prompts alike. As long as they are not, all are treated alike.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

PROBLEMS = 1 << 16
"""Problems remembered, about 200 bytes each."""

CLASSES = 1 << 12
"""Classes of prompts remembered: each is a task, a level and a size."""

NEWEST = 0.5
"""Weight of a problem's newest group: a policy that changes makes old lengths wrong, and one group is mostly chance."""

MEMORY = 1 / 64
"""Least weight of a new group among all, and among those of its class."""

CLASS_GROUPS = 4
"""Groups of a class below which a larger class is used."""

KNOWN_GROUPS = 32
"""Predicted groups before it is known how good predictions are."""

GOOD = 0.9
"""Predictions are used if their error is at most this share of the error of treating all prompts alike."""

DIFFERENT = 0.1
"""All prompts are alike if they differ from the mean by less than this share of it."""

SIZES_PER_OCTAVE = 4
"""Prompts that differ by less than a fifth have one size."""


@dataclass(kw_only=True, slots=True)
class _Mean:
    """A moving mean."""

    value: float = 0.0
    count: int = 0

    def add(self, value: float, memory: float) -> None:
        self.count += 1
        self.value += max(memory, 1 / self.count) * (value - self.value)


@dataclass(kw_only=True)
class CompletionLengths:
    """The known lengths. `alike` returns, for a prompt's index, its problem and its kind (task and level). `problems`
    is how many are remembered."""

    alike: Callable[[int], tuple[int, int]]
    problems: int = PROBLEMS
    _problems: OrderedDict[Hashable, _Mean] = field(default_factory=OrderedDict)
    _classes: OrderedDict[Hashable, _Mean] = field(default_factory=OrderedDict)
    _all: _Mean = field(default_factory=_Mean)
    _error: _Mean = field(default_factory=_Mean)
    _spread: _Mean = field(default_factory=_Mean)

    def observe(self, index: int, lengths: Sequence[int], prompt_tokens: int | None = None) -> None:
        """Learn from an admitted group of that prompt, with the tokens of its completions, and the tokens of the
        prompt, if these are still known."""
        if not lengths:
            return
        longest = float(max(lengths))
        if self._all.count:
            self._error.add(abs(longest - self.foretold(index, prompt_tokens)), MEMORY)
            self._spread.add(abs(longest - self.usual), MEMORY)
        problem, kind = self.alike(index)
        _of(self._problems, problem, self.problems).add(longest, NEWEST)
        _of(self._classes, kind, CLASSES).add(longest, MEMORY)
        if prompt_tokens is not None:
            _of(self._classes, (kind, _size(prompt_tokens)), CLASSES).add(longest, MEMORY)
        self._all.add(longest, MEMORY)

    def recover(self, groups: Iterable[tuple[int, Sequence[int]]]) -> None:
        """Start from these groups, as (a prompt's index, tokens of each completion), the first admitted first."""
        self._problems.clear()
        self._classes.clear()
        self._all, self._error, self._spread = _Mean(), _Mean(), _Mean()
        for index, lengths in groups:
            self.observe(index, lengths)

    @property
    def usual(self) -> float:
        """The mean number of tokens of a group's longest completion."""
        return self._all.value

    @property
    def can_tell(self) -> bool:
        """Whether lengths differ, and it is known which prompts have the long ones."""
        spread = self._spread.value
        return (
            self._error.count >= KNOWN_GROUPS
            and spread >= DIFFERENT * self.usual
            and self._error.value <= GOOD * spread
        )

    def relative(self, index: int, prompt_tokens: int) -> float:
        """Return the longest completion of a group of that prompt relative to the mean; 1 while that cannot be
        predicted."""
        return self.foretold(index, prompt_tokens) / self.usual if self.can_tell and self.usual > 0 else 1.0

    def foretold(self, index: int, prompt_tokens: int | None) -> float:
        """Return the predicted tokens of the longest completion of a group of that prompt; 0 if nothing is known."""
        problem, kind = self.alike(index)
        if (known := self._problems.get(problem)) is not None:
            return known.value
        names: tuple[Hashable, ...] = (kind,) if prompt_tokens is None else ((kind, _size(prompt_tokens)), kind)
        for name in names:
            if (known := self._classes.get(name)) is not None and known.count >= CLASS_GROUPS:
                return known.value
        return self.usual


def _size(tokens: int) -> int:
    return round(SIZES_PER_OCTAVE * math.log2(max(1, tokens)))


def _of(means: OrderedDict[Hashable, _Mean], name: Hashable, most: int) -> _Mean:
    """Return what is known under that name, and mark it as seen now."""
    found = means.setdefault(name, _Mean())
    means.move_to_end(name)
    if len(means) > most:
        means.popitem(last=False)
    return found
