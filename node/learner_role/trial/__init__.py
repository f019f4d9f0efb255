"""Test a run before anybody joins: the learner's own engine plays a node.

- `isolated_trial`: a trial with children of its own, for a dry run
- `trial_run`: engine, audit and trainer must agree
"""
