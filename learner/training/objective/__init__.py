"""Compute the loss, in RLAX's form: three small named functions, each from a paper, chosen independently.

    loss = aggregation over tokens of (importance correction x advantage term), and added terms

A mask over sequences may stand between the correction and the aggregation. A new objective is a function, a line in a
table, and its name in `learner.trainer_api.presets`; docs/explain/objectives.md says more.

Invariants:

- An objective sees the generated tokens of one microbatch flat, [N], without padding, and only whole sequences.
- The losses of the microbatches of one batch add up to the loss of the batch, because every aggregation divides by
  `Totals`, which counts the whole batch.

- `aggregations`: turn the losses of tokens into the loss of a batch
- `corrections`: weigh tokens that another policy made
- `loss`: combine one correction, one aggregation and added terms
- `objective_inputs`: what an objective gets of a microbatch, and what it returns
- `sequence_masks`: leave out whole sequences
- `statistics`: how far the policy in training is from the behaviour policies
"""
