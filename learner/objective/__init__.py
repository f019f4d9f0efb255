"""The loss, in RLAX's form: aggregation x importance correction x advantage term, each a small named function with its
paper.

    loss = aggregation(sg[weight] * -(advantage * log pi) ...)        docs/objectives.md

What always holds: an objective sees the generated tokens of one microbatch flat, [N], without padding and whole
sequences only; losses of the microbatches of one batch add up to the loss of the batch, because every aggregation
divides by `Totals`, which counts the whole batch. Adding one is adding a function, a line to a table, and its name to
`learner.presets`.
"""
