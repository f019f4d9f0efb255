"""Sequences of different lengths, laid out for a device. Nothing here knows a model.

- `minibatches`: a training batch cut for several updates, between groups
- `packing`: sequences in, rectangular token batches under a memory budget out
- `sequences`: sequences laid end to end, as a node sends them
"""
