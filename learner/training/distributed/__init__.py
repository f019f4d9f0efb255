"""Run several processes that train one policy: how they start, meet, share its weights, and end. When one rank ends,
all end, and the node reads why.

- `launcher`: run the trainer on several ranks, by torchrun
- `machines`: several machines that train one policy
- `rank_output`: pass on each rank's stderr, and find in which order ranks end
- `ranks`: the ranks, and their communication besides tensors of the model
- `rendezvous`: wait until all ranks are here, and name a missing one
- `sharding`: cut a policy over ranks (FSDP2)
"""
