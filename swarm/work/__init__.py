"""The streams on which rollout nodes and the learner speak about work. What a lease or a verdict is worth is decided
elsewhere; here is who is connected, and how both ends speak.

- `client`: a rollout node's end: leases come in, deliveries and heartbeats go out
- `duplicate_keys`: tells a peer that came back from a second process with a copy of its key
- `membership`: the learner's table of rollout nodes: present, away, timed out
- `neighbour_graph`: which peers are neighbours of which
- `server`: the learner's end: greet, hand on, answer
"""
