"""Decides again and again which peers are active and how often versions are published, while rates, prices and peers
change.

- `cheaper_set`: whether another set of peers is cheaper, and has been for a while
- `constants`: how soon a plan follows what changes, each number with its reason
- `hysteresis`: for how long a condition, or a shortage, has held without a break
- `planner`: one review: situation in, plan out
- `pool`: the peers present at one review
- `publish_period`: how often versions are published (kappa)
- `reasons`: why a peer is active or not, in words
- `review`: what a review is given, and what it answers
- `succession`: which peers take over from those whose owners' hours end
- `trials`: which peers are active since when, and whose trial came to nothing
"""
