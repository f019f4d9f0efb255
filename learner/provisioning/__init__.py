"""Decide how many rollouts a second keep the learner busy, and which machines should generate them.

Pure; after ECHO-2 (arXiv 2602.02192). The differences from it are stated where they are.

- `planner`: decides at every review which peers are active, and how often versions are published
- `estimation`: estimates rates and times from what the swarm did recently
- `model`: when the learner waits, what a window S needs, which machines are cheapest
"""
