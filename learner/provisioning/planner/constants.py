"""Define how soon a plan follows what changes, and how little changes it: the numbers of `planner`, with their reasons.

Pure. The reaction times that follow from them are in `docs/explain/provisioning.md`.

Invariants:

- A time in reviews scales with the time between two reviews (`Settings.review_s`).
- A share is of what the learner takes, as in `pool`.
"""

from __future__ import annotations

from learner.provisioning.model.machine_selection import MARGIN

REVIEW_S = 30.0
"""Seconds from one review to the next. A peer's rate is that of its last minutes, so more frequent reviews would see
the same."""

SOON_S = 1.0
"""Seconds from a peer's coming or leaving to a review. Peers that do so together share one review: if a thousand peers
lose their connection, there must not be a thousand reviews."""

SEVERE = 0.9
"""Share below which the learner visibly waits: a tenth of the most expensive machine's time."""

SEVERE_REVIEWS = 1
"""Reviews that a severe shortage must last, to be sure that it is not one odd value. A peer that left is a fact, and is
replaced at once."""

SHORT = 1.0
"""Share below which the learner waits, and above which it does not. Between SHORT and MARGIN is the dead band. A rate
over 32 batches that vary by 10 % has an error of 1.8 %; a pool of four such peers has one of 0.9 %, a fifth of the
band."""

SHORT_REVIEWS = 4
"""Reviews that a shortage must last: two minutes. Noise that is new at every review does not stay on one side so often;
a real shortage does."""

BETTER_REVIEWS = 10
"""Reviews that a better set must last: five minutes. A set that is a few per cent cheaper would have saved less than
one start in that time."""

HELD = (SHORT + MARGIN) / 2
"""Share below which half of the reserve is gone. A better set that supplies less is given up, and after BETTER_REVIEWS
the present set gets an addition. Nothing waits yet, so there is time to be sure."""

SAVING = 0.01
"""Share of the present price that moving must save, beyond its own costs. A lower one would follow the noise of
rates."""

PAYS = 1.5
"""Moving must save this many times its costs over PLAN_STANDS_S, since plans sometimes stand for less."""

SURPLUS = 1.1
"""A pool with this many times its margin has more than it needs. Then even peers that cost nothing go on standby, the
slowest first."""

RELEASED = 0.1
"""Share of the active peers that is deactivated at one review, at least one: little is lost if estimates were wrong."""

ENDING_REVIEWS = 2
"""A peer counts as gone this many reviews, and the start of its successor, before its owner's hours end: an end can
fall just after a review, and a first lease takes a moment."""

KEPT_REVIEWS = 20
"""Reviews for which an activated peer stays active: ten minutes at least, so that no peer is activated more than six
times an hour."""

KEPT_STARTS = 4.0
"""It also stays active four times as long as it took to start: at most a fifth of what it is paid for may be starts."""

TRIAL_REVIEWS = 20
"""Reviews, ten minutes, that a newcomer has to deliver something, in addition to its start, a training step, a
version's broadcast and two rollouts."""

TRIED_AGAIN_S = 3600.0
"""Seconds until a peer whose trial failed is tried again. It costs a sixth of its price to learn that it still delivers
nothing."""

LOOK_REVIEWS = 4
"""Least reviews between two searches after prices or peers changed: a search of a thousand peers takes half a
second."""

CAUTION_MOST = 12.0
"""Largest multiple of BETTER_REVIEWS, an hour: a quieter swarm must be able to become cheaper again."""

EXACT_ADDITIONS = 300
"""In larger pools an addition is chosen greedily, since every departure asks for one; the search improves it later."""
