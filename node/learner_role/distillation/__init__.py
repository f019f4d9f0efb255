"""A teacher that scores what the swarm generates: a larger model of the same vocabulary, in an engine of its own.

- `teacher_model`: whether a model directory can teach this policy
- `teacher_scorer`: scores groups that wait for it, beside training
"""
