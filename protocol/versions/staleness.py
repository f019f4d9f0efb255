"""Compute the lag of a rollout, and decide whether it may still be trained on.

lag = learner's version - behaviour version, in training steps (ECHO-2, section 3.2). If the tokens of a completion came
from several versions, the oldest one counts. A record is admissible while its lag is at most S and every version that
it names lies on the learner's surviving chain. After a crash the chain continues from the last durable version under a
higher incarnation. Later versions of the old incarnation are orphaned: no version descends from them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from protocol.core.errors import LocalProtocolError
from protocol.core.ids import PolicyVersion


class Admissibility(Enum):
    """Why a record may or may not be trained on now."""

    ADMISSIBLE = "admissible"
    STALE = "stale"
    ORPHANED = "orphaned"
    FROM_THE_FUTURE = "from_the_future"


@dataclass(frozen=True, kw_only=True)
class Chain:
    """The surviving sequence of versions: where each incarnation continued from the one before it.

    `bases[i]` is the training step at which incarnation i + 1 began; the first incarnation begins at 0. `head` is the
    learner's version. Each incarnation resumes from a step of the chain that survived until then. So a base may be
    lower than earlier ones, and then it cuts those incarnations off entirely. The bases alone define the chain; the
    incarnations from which they branch need not be named.
    """

    bases: tuple[int, ...]
    head: PolicyVersion

    def __post_init__(self) -> None:
        whole = len(self.bases) == self.head.incarnation >= 1 and self.bases[0] == 0
        if not (whole and min(self.bases) == 0 and self.head.version >= self.bases[-1]):
            raise LocalProtocolError(f"no chain: incarnations begin at {self.bases}, the head is {self.head}")

    def contains(self, version: PolicyVersion) -> bool:
        """Return whether `version` is an ancestor of the head, or the head itself."""
        if (
            not 1 <= version.incarnation <= self.head.incarnation
            or version.version < self.bases[version.incarnation - 1]
        ):
            return False
        later_bases = self.bases[version.incarnation :]
        return version.version <= min((*later_bases, self.head.version))

    def advance(self) -> Chain:
        """Return the chain after one more training step."""
        return Chain(bases=self.bases, head=PolicyVersion(self.head.incarnation, self.head.version + 1))

    def restart(self, at: int | None = None) -> Chain:
        """Return the chain after a restart that resumes from step `at` (the last durable one; by default the head).

        The step keeps its number under the next incarnation. Later steps are orphaned.
        """
        step = self.head.version if at is None else at
        if not 0 <= step <= self.head.version:
            raise LocalProtocolError(f"cannot resume from step {step}: the chain ends at {self.head}")
        return Chain(bases=(*self.bases, step), head=PolicyVersion(self.head.incarnation + 1, step))


def bases_of(begun: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Return the `bases` of a chain from pairs (incarnation, step at which it began), the last incarnation included.

    Numbers may be missing: a learner that resumes from an older copy of its ledger begins above all incarnations that
    it used since. A missing incarnation has no version in the chain, so its base lies above that of the next known one.
    The first always begins at 0.
    """
    known = dict(begun)
    bases: list[int] = []
    following = 0
    for number in range(max(known), 0, -1):
        following = known.get(number, following)
        bases.append(following if number in known else following + 1)
    bases[-1] = 0
    return tuple(reversed(bases))


def lag_of(head: PolicyVersion, behaviour: Iterable[PolicyVersion]) -> int:
    """Return the training steps between the oldest of `behaviour` (at least one) and `head`."""
    return head.version - min(version.version for version in behaviour)


def judge(chain: Chain, behaviour: Iterable[PolicyVersion], window: int) -> Admissibility:
    """Decide whether a completion of the versions `behaviour` may be trained on at the head of `chain`.

    `window` is S, in training steps.
    """
    versions = tuple(behaviour)
    if any(version > chain.head for version in versions):
        return Admissibility.FROM_THE_FUTURE
    if not all(chain.contains(version) for version in versions):
        return Admissibility.ORPHANED
    return Admissibility.STALE if lag_of(chain.head, versions) > window else Admissibility.ADMISSIBLE
