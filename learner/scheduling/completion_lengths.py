"""How long the completions of a prompt will be, by what was admitted before: of the same problem, else of such as it.

A pure core. What counts of a group is its longest completion, since a lease is delivered when that is done. Of a
problem that comes again, epoch after epoch, it is what it was before, the newest group for half of it; of one that is
new, what it is of prompts of its task, its level and about its size, else of its task and level, else of all. What
always holds: nothing is known but what was admitted, so that who is refused tells nothing; what is remembered is
bounded, and those problems are forgotten that were not seen for longest; each group is foretold before it is learnt
from, so that one knows whether foretelling is better than taking all for alike, and as long as it is not, they are
taken for alike. A wrong guess makes work slower, and changes nothing of what is trained on.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

PROBLEMS = 1 << 16
"""Problems remembered, some 200 bytes each."""

CLASSES = 1 << 12
"""Classes of prompts remembered: of a task, a level and a size."""

NEWEST = 0.5
"""Weight of a problem's newest group: a policy that changes makes what is old wrong, and one group is much chance."""

MEMORY = 1 / 64
"""Weight of one group among all, and among those of its class, once there were so many."""

CLASS_GROUPS = 4
"""Groups of a class below which a larger one is asked."""

KNOWN_GROUPS = 32
"""Groups that were foretold before it is known how well."""

GOOD = 0.9
"""Foretelling is of use if it errs by so much of what taking all for alike errs by, at most."""

DIFFERENT = 0.1
"""All are alike that differ from what is usual by less than so much of it."""

SIZES_PER_OCTAVE = 4
"""Prompts are of one size that differ by less than a fifth."""


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
    """See the module's paragraph. `alike` tells of a prompt's index which problem it is, and of which kind: its task
    and level. `problems`: so many are remembered."""

    alike: Callable[[int], tuple[int, int]]
    problems: int = PROBLEMS
    _problems: OrderedDict[Hashable, _Mean] = field(default_factory=OrderedDict)
    _classes: OrderedDict[Hashable, _Mean] = field(default_factory=OrderedDict)
    _all: _Mean = field(default_factory=_Mean)
    _error: _Mean = field(default_factory=_Mean)
    _spread: _Mean = field(default_factory=_Mean)

    def observe(self, index: int, lengths: Sequence[int], prompt_tokens: int | None = None) -> None:
        """A group of that prompt was admitted, with completions of so many tokens; `prompt_tokens` has the prompt, if
        that is known still."""
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
        """Begin with these: (a prompt's index, tokens of each completion), those that were admitted first first."""
        self._problems.clear()
        self._classes.clear()
        self._all, self._error, self._spread = _Mean(), _Mean(), _Mean()
        for index, lengths in groups:
            self.observe(index, lengths)

    @property
    def usual(self) -> float:
        """Tokens of a group's longest completion, in the mean."""
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
        """The longest completion of a group of that prompt over what is usual; 1 while nobody can tell."""
        return self.foretold(index, prompt_tokens) / self.usual if self.can_tell and self.usual > 0 else 1.0

    def foretold(self, index: int, prompt_tokens: int | None) -> float:
        """Tokens of the longest completion of a group of that prompt, by the best that is known; 0 if nothing is."""
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
    """What is known under that name, which was seen now."""
    found = means.setdefault(name, _Mean())
    means.move_to_end(name)
    if len(means) > most:
        means.popitem(last=False)
    return found
