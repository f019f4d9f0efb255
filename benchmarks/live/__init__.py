"""A real swarm in an emulated network: a learner and rollout nodes, each a process of its own behind its own link.

`swarm` starts, watches and ends it; `learner` is `volery learn` with `trainer`, which sleeps instead of computing.
`leaving_node` is `volery join` with an account of what it generates. `loopback` is a swarm without emulated links,
whose learner can be killed and started again. `members` are many idle members of it; `besieger` are strangers that
attack it. `idle` counts the bytes that idle nodes exchange. `hour_of_run` writes the files of a learner for its page,
`page_day` serves the page of a day, and `browser` measures it in Chromium.
"""
