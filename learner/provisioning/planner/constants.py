"""How soon a plan follows what changes, how little changes it: the numbers of `planner`, each with its reason.

Pure. What always holds: what is counted in reviews scales with the time between two (`Settings.review_s`); a share is
of what the learner takes, as in `pool`. The reaction times that follow from them are in `docs/provisioning.md`.
"""

from __future__ import annotations

from learner.provisioning.model.machine_selection import MARGIN

REVIEW_S = 30.0
"""From one review to the next. A peer's rate is that of its last minutes, so more often would see the same."""

SOON_S = 1.0
"""Who comes or goes is a reason to look at once; those who do so together are looked at together: a thousand peers
whose line broke must not be a thousand reviews."""

SEVERE = 0.9
"""Less of what the learner takes, and it visibly waits: a tenth of the dearest machine's time."""

SEVERE_REVIEWS = 1
"""For so many reviews, to be sure that it is not one odd value. Who left is a fact, and replaced at once."""

SHORT = 1.0
"""Below what the learner takes it waits, above it does not: between SHORT and MARGIN lies the dead band. A rate over 32
batches that vary by 10 % has an error of 1.8 %, a pool of four such peers one of 0.9 %, a fifth of the band."""

SHORT_REVIEWS = 4
"""Two minutes: noise that is new at every review does not stay on one side so often, what is real does."""

BETTER_REVIEWS = 10
"""Five minutes. What a set that is a few per cent cheaper would have saved meanwhile is less than one start."""

HELD = (SHORT + MARGIN) / 2
"""Below that half of the reserve is gone: a better set that supplies less is given up, and after BETTER_REVIEWS the
present one is added to. Nothing waits yet, so there is time to be sure."""

SAVING = 0.01
"""Share of the present price that moving must save, beyond its own costs. Lower would follow the noise of rates."""

PAYS = 1.5
"""So many times its costs must moving save over PLAN_STANDS_S: plans stand for less, sometimes."""

SURPLUS = 1.1
"""So many times its margin is more than a pool needs: even those that cost nothing stand by then, the slowest first."""

RELEASED = 0.1
"""Share of those on that is released at a review, at least one: if estimates were wrong, little is lost by then."""

ENDING_REVIEWS = 2
"""So many before its owner's hours end, and the start of who takes over, is somebody taken for gone: an end can fall
just after a review, and a first lease takes a moment."""

STAYS_REVIEWS = 20
"""Ten minutes at least stays on who was switched on, so that nobody goes on and off more than six times an hour."""

STAYS_STARTS = 4.0
"""And four times as long as it took to start: a fifth of what it is paid for may be starts."""

TRIAL_REVIEWS = 20
"""Ten minutes, beside its start, a training step, a version's journey and two rollouts, has a newcomer to deliver
something."""

TRIED_AGAIN_S = 3600.0
"""After a trial without a delivery. It costs a sixth of its price to learn that it still does nothing."""

LOOK_REVIEWS = 4
"""Prices or peers that changed are looked into no more often: a search of a thousand peers takes half a second."""

PATIENCE_MOST = 12.0
"""So many times BETTER_REVIEWS at most, an hour: a quieter swarm must be able to become cheaper again."""

EXACT_ADDITIONS = 300
"""In larger pools what is missing is added greedily: every departure asks for it, and the search improves it later."""
