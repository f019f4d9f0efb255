"""Score the swarm's completions with a teacher, a larger model of the same vocabulary, here and on teacher nodes.

- `teacher_audits`: compares scores that a node delivered with those of the learner's own copy
- `teacher_leases`: leases groups to teacher nodes, and judges their deliveries
- `teacher_model`: whether a model can be the teacher of this policy
- `teacher_nodes`: builds the services for teacher nodes
- `teacher_scorer`: scores waiting groups on this machine, beside training
- `teacher_sessions`: the teacher nodes that are here
"""
