"""Sequences of different lengths, laid out for a device. Nothing here knows a model.

- `packing`: mini-batches between groups, and rectangular token batches under a memory budget
- `routes`: the experts of a batch's tokens, and where they stand in a microbatch
- `sequences`: sequences laid end to end, as a node sends them
"""
