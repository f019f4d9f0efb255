"""What a swarm takes, estimated from what it took of late. A single odd value hardly moves an estimate.

- `broadcasts`: how long a version travels until enough peers work with it
- `estimates`: the estimates, as values
- `estimator`: from the events of a run to estimates
- `learner_time`: kinds of a learner's time, which add up to the wall
- `peer_profile`: what one peer has shown of itself
- `recording`: what a swarm did and when, one JSON object a line
- `step_stats`: waits, lags and losses of training steps
"""
