"""Several processes that train one policy: how they start, meet, share its weights, and end. When one rank ends, all
end, and the node reads why.

- `launcher`: the trainer on several ranks, by torchrun
- `machines`: several machines that train one policy
- `rank_output`: what each rank says on stderr, and in which order they end
- `ranks`: who the ranks are, and what they tell each other beside tensors
- `rendezvous`: ranks come together, and a missing one is named
- `sharding`: a policy cut over ranks (FSDP2)
"""
