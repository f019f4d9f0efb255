"""Compute when the learner waits, what a staleness window needs, and which machines to pay for.

Formulas are cited; the differences from the paper are in `echo2`.

- `broadcast_time`: T_bcast of every machine, from bytes and bandwidths
- `capacity`: our capacity model: when does the learner wait?
- `echo2`: ECHO-2's capacity model as printed, and the machines that it would choose
- `expected_lag`: how old rollouts are when they are trained on
- `machine_selection`: the cheapest set of unequal machines with which the learner never waits
- `what_if`: what would change a plan
- `windows`: what each window S would need
"""
