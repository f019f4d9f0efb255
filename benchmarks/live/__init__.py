"""A real swarm in an emulated network: a learner and rollout nodes, each a process of its own behind a link of its own.

`swarm` starts, watches and ends it; `learner` is `volery learn` with `trainer`, which sleeps, in the place of a trainer
that computes. `loopback` is a swarm without emulated links, whose learner can be killed and started again; `members`
are many members of it that have nothing to do. `idle` counts what nodes say to each other that have nothing to do.
"""
