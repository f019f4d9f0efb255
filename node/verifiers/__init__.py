"""Where prompts are written and rewards computed: in the node, or in processes of their own, here or on other machines.

- `conversation`: problems and answers as JSON
- `dispatch`: which of both it is
- `pool`: the pool of verifier processes
- `seats`: which verifier is asked about an episode
- `episodes`: a verifier's side of environments, and of rewards that are waited for
- `remarks`: what a verifier has heard of services
- `worker`: the program that each of them is
"""
