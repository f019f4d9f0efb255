"""The loss, in RLAX's form: three small named functions, each with its paper, chosen apart from one another.

- `aggregations`: losses of tokens to the loss of a batch
- `corrections`: what a token weighs that another policy made
- `loss`: one correction, one aggregation, and what is added beside them
- `statistics`: how far the policy in training is from those that generated
- `terms`: what an objective sees of a microbatch, and what it gives back
"""
