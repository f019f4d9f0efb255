"""Decide which peers are active and how often versions are published, again as rates, prices and peers change.

- `cheaper_set`: whether another set of peers is cheaper, and has been for a while
- `constants`: how soon a plan follows a change, each number with its reason
- `hysteresis`: for how long a condition, or a shortage, has held without a break
- `planner`: one review: situation in, plan out
- `pool`: the peers present at one review
- `publish_period`: how often versions are published (kappa)
- `reasons`: why a peer is active or on standby, in words
- `review`: the input and the result of a review
- `succession`: which peers take over from those whose owners' hours end
- `trials`: which peers are active since when, and which trials failed
"""
