"""How many rollouts a second keep the learner busy, and which machines to ask for them. Pure; ECHO-2 (arXiv
2602.02192), with the differences said where they are.

- `planner`: which peers are active, and how often versions are published, decided again and again
- `estimation`: what a swarm takes, estimated from what it took of late
- `model`: when the learner waits, what a window S takes, which machines are cheapest
"""
