"""Decide how many rollouts to lease to each peer, and of which version, so that no rollout is wasted and no peer idles.

Pure cores; the node acts on their decisions.

- `batch_speed`: how long a peer takes for a number of rollouts
- `capacity`: how many rollouts of which version may be leased, and until when they can be used
- `completion_lengths`: how long the completions of a prompt will be
- `lease_backoff`: how rarely a peer is leased to whose leases bring no record
- `lease_scheduler`: what a peer is leased when it asks
- `longest_first`: which of the prompts in the window a peer is leased
- `peer_load`: what the learner remembers of a working peer, and why its request waits
"""
