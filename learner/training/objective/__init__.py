"""The loss, in RLAX's form: three small named functions, each with its paper, chosen apart from one another.

    loss = aggregation over tokens of (importance correction x advantage term), and what is added to it

A mask over sequences may stand between the correction and the aggregation.

Invariants: an objective sees the generated tokens of one microbatch flat, [N], without padding and whole sequences
only. Losses of the microbatches of one batch add up to the loss of the batch, because every aggregation divides by
`Totals`, which counts the whole batch. A new objective is a function, a line in a table, and its name in
`learner.trainer_api.presets`; docs/objectives.md says more.

- `aggregations`: losses of tokens to the loss of a batch
- `corrections`: what a token weighs that another policy made
- `loss`: one correction, one aggregation, and what is added beside them
- `objective_inputs`: what an objective sees of a microbatch, and what it gives back
- `sequence_masks`: what is left out as a whole
- `statistics`: how far the policy in training is from those that generated
"""
