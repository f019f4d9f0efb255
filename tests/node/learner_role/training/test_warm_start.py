"""When a small model has been taught enough to begin with."""

from __future__ import annotations

import pytest

from learner.monitoring.eval_scores import Scores
from node.learner_role.training.warm_start import WarmStartTerms

GREEDY = WarmStartTerms(low=0.4, high=0.55)
SAMPLED = WarmStartTerms(by="sampled", low=0.3, high=0.48)


@pytest.mark.parametrize(
    ("terms", "greedy", "sampled", "met", "over"),
    [
        (GREEDY, 0.39, 0.5, False, False),
        (GREEDY, 0.4, 0.0, True, False),
        (GREEDY, 0.56, 0.0, False, True),
        (SAMPLED, 0.0, 0.29, False, False),
        (SAMPLED, 0.0, 0.3, True, False),
        (SAMPLED, 0.5, 0.3, False, True),
        (SAMPLED, 0.5, 0.1, False, True),
        (SAMPLED, 0.0, 0.49, False, True),
    ],
)
def test_the_band_is_about_one_accuracy_and_bounds_both(
    terms: WarmStartTerms, greedy: float, sampled: float, met: bool, over: bool
) -> None:
    scores = Scores(greedy=greedy, sampled=sampled)
    assert (terms.is_met(scores), terms.is_over(scores)) == (met, over)
