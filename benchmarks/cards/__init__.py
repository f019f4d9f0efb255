"""Parts of the benchmarks of small cards: policies trained on quantised rollouts, and random models of a given size.

- `laboratory`: one training run whose rollouts come from a quantised engine
- `random_model`: a model directory of any size, with random weights
"""
