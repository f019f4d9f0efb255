"""Where prompts are written and rewards computed: in the node, or in processes of their own, here or on other machines.

- `dispatch`: which of both it is
- `pool`: the pool of verifier processes
- `worker`: the program that each of them is
"""
