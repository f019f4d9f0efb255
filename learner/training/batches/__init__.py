"""Lay out sequences of different lengths for a device. Nothing here knows a model.

- `packing`: cut mini-batches between groups, and make rectangular token batches under a memory budget
- `routes`: the experts of a batch's tokens, and their positions in a microbatch
- `sequences`: sequences laid end to end, as a node sends them
"""
