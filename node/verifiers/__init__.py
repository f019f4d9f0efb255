"""Write prompts and compute rewards: in the node's process, or in processes of their own, here or on other machines.

- `conversation`: problems and answers as JSON
- `dispatch`: whether the node or a verifier answers a question
- `pool`: the pool of verifier processes
- `seats`: which verifier is asked about an episode
- `episodes`: environments and `async` rewards in a verifier
- `remarks`: what a verifier reports about services
- `worker`: the program that a verifier runs
"""
