"""Estimate the rates and times of a swarm from what it did recently. A single odd value hardly moves an estimate.

- `broadcasts`: how long a version travels until enough peers use it
- `estimates`: the estimates, as values
- `estimator`: from the events of a run to estimates
- `learner_time`: kinds of the learner's time, which add up to the wall clock
- `peer_profile`: the measured rate, delays and presence of one peer
- `recording`: what a swarm did and when, one JSON object a line
- `step_stats`: waits, lags and losses of training steps
"""
