"""A swarm in virtual time, made of the cores that a learner runs and of machines as they were recorded or described.
The same seed tells the same story.

- `event_queue`: what happens next in virtual time
- `machines`: machines, and when they come and go
- `plan_driver`: applies the plan as a learner does
- `rollout_node`: a rollout node that takes the time its machine takes
- `trace`: what a simulated run came to
- `uplink`: the source's uplink, by which versions leave
- `world`: the learner, its nodes and the time
"""
