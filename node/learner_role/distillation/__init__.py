"""A teacher that scores what the swarm generates: a larger model of the same vocabulary, here and on teacher nodes.

- `teacher_audits`: what the learner's own copy says of scores that a node delivered
- `teacher_leases`: what teacher nodes are leased, and what becomes of what they deliver
- `teacher_model`: whether a model directory can teach this policy
- `teacher_nodes`: teacher nodes of a run, built
- `teacher_scorer`: scores groups that wait for it, beside training
- `teacher_sessions`: teacher nodes that are here
"""
