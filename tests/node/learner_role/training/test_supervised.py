"""Examples as arrays, and how fast a warm-up goes on."""

from __future__ import annotations

from learner.training.batches.sequences import supervised_batch
from node.learner_role.training.supervised import Pace, arrays_of, example_of


def test_what_is_said_is_learnt_and_nothing_else() -> None:
    talk = example_of([((5, 6), False), ((7, 2), True), ((8,), False), ((9, 2), True)])
    short = example_of([((5,), False), ((2,), True)])
    batch = supervised_batch(arrays_of([talk, short]), 10)
    assert batch.tokens.tolist() == [5, 6, 7, 2, 8, 9, 2, 5, 2]
    assert batch.lengths.tolist() == [7, 2]
    assert batch.tokens[batch.targets].tolist() == [7, 2, 9, 2, 2]
    assert (len(talk), talk.targets) == (7, 4)


def test_an_overshoot_makes_blocks_shorter_and_the_rate_lower() -> None:
    pace = Pace(block=20, rate=1.0)
    assert pace.after_overshoot() == Pace(block=10, rate=0.5)
    assert Pace(block=1, rate=0.5).after_overshoot() == Pace(block=1, rate=0.25)


def test_blocks_become_fine_once_the_score_has_moved_and_stay_so() -> None:
    still = Pace(block=20, rate=1.0).after_block(0.02, moving=0.03, fine_block=3)
    assert still == Pace(block=20, rate=1.0, best=0.02)
    moved = still.after_block(0.2, moving=0.03, fine_block=3)
    assert moved == Pace(block=3, rate=1.0, best=0.2)
    assert moved.after_block(0.0, moving=0.03, fine_block=3) == moved
