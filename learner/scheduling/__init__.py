"""How many rollouts each peer is leased and of which version, so that no rollout is wasted and no peer idles. Pure
cores; the node performs.

- `batch_speed`: how long a peer takes for how many rollouts
- `capacity`: how many rollouts of which version may be leased, and until when they are of use
- `completion_lengths`: how long the completions of a prompt will be
- `lease_backoff`: how seldom a peer is leased to whose leases bring no record
- `lease_scheduler`: what a peer that asks is leased
- `longest_first`: which of the prompts in the window a peer is leased
- `peer_load`: what the learner remembers of a peer that works, and why its request waits
"""
