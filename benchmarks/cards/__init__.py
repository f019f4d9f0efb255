"""What is measured of small cards: policies trained on quantised rollouts, and models whose size says something.

- `laboratory`: one run of training whose rollouts a quantised engine makes
- `random_model`: a model directory of any size, with weights that nobody trained
"""
