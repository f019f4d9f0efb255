"""The loss, in RLAX's form: three small named functions, each with its paper, chosen apart from one another.

    loss = aggregation over tokens of (importance correction x advantage term), and what is added to it

What always holds: an objective sees the generated tokens of one microbatch flat, [N], without padding and whole
sequences only; losses of the microbatches of one batch add up to the loss of the batch, because every aggregation
divides by `Totals`, which counts the whole batch. Adding one is adding a function, a line to a table, and its name to
`learner.presets`; docs/objectives.md says more.
"""
