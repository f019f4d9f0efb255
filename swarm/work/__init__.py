"""Run the streams on which rollout nodes and the learner exchange leases, deliveries and heartbeats.

Other packages decide which leases to grant and which records to admit. This one knows which peers are connected, and
how both ends exchange messages.

- `client`: a rollout node's end: it receives leases, and sends deliveries and heartbeats
- `duplicate_keys`: distinguishes a peer that came back from a second process with a copy of its key
- `membership`: the learner's table of rollout nodes: present, away, timed out
- `neighbour_graph`: which peers are neighbours of each other
- `server`: the learner's end: it greets peers, passes their messages on, and sends the answers
"""
