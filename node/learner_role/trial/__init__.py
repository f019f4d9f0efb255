"""A run tried out before anybody joins: the learner's own engine plays a node.

- `isolated_trial`: the same beside everything, for a dry run
- `trial_run`: engine, audit and trainer must agree
"""
