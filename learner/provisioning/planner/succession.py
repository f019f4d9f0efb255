"""Choose successors for peers whose owners' hours end soon, as long before the end as they take to start.

Pure.

Invariants:

- The successors supply by the announced end, if they start within their known start time.
- No peer becomes a successor that will be gone itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from learner.provisioning.model.machine_selection import MARGIN, Candidate, Choice
from learner.provisioning.planner.constants import ENDING_REVIEWS
from learner.provisioning.planner.pool import Pool


@dataclass(frozen=True, kw_only=True)
class Succession:
    """`names` are to be activated now: the hours of `num_ending` active peers end in `in_s`, and without these the pool
    would supply `share` of what the learner takes."""

    names: frozenset[str]
    num_ending: int
    in_s: float
    share: float


def is_brief(one: Candidate, review_s: float) -> bool:
    """Return whether its owner's hours end before activating it would pay off."""
    return one.remaining_s <= one.start_s + ENDING_REVIEWS * review_s


def succession(pool: Pool, active: frozenset[str], review_s: float) -> Succession | None:
    """Return which peers to activate now, for the active ones whose hours end next and who would be missed; None if
    there are none yet."""
    lead_s = ENDING_REVIEWS * review_s
    slowest_s = max((one.start_s for one in pool.candidates if one.name not in active), default=0.0)
    for in_s in sorted({pool[name].remaining_s for name in active if pool[name].remaining_s <= lead_s + slowest_s}):
        rest = pool.without({one.name for one in pool.candidates if one.remaining_s <= in_s + lead_s})
        share = rest.share(active & rest.names)
        if share < MARGIN:
            choice = rest.additions(active & rest.names)
            wanted = {one.name for one in choice.chosen} if isinstance(choice, Choice) else rest.names
            names = {name for name in wanted - active if in_s <= rest[name].start_s + lead_s}
            found = Succession(names=frozenset(names), num_ending=len(active - rest.names), in_s=in_s, share=share)
            return found if names else None
    return None
