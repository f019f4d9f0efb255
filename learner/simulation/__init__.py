"""Simulate a swarm in virtual time, with the cores that a learner runs and with machines as recorded or described.

The same seed gives the same run.

- `event_queue`: what happens next in virtual time
- `machines`: machines, and when they come and go
- `plan_driver`: applies the plan as a learner does
- `rollout_node`: a rollout node that takes the time its machine takes
- `trace`: the settings and the results of a simulated run
- `uplink`: the source's uplink, by which versions leave
- `world`: the learner, its nodes and the time
"""
