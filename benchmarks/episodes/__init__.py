"""Parts of `benchmarks/turns.py`: a swarm whose policy calls a tool, and the same swarm without.

- `chain_model`: a model directory whose policy generates a fixed number of tokens, and then stops
- `chain_task`: the tasks of both sides, copied beside swarm.toml
- `learner`: `volery learn`, with an account of its event loop's processor time
- `trainer`: a trainer that computes nothing
- `swarm`: one run of a learner and its nodes, and its measurements
"""
