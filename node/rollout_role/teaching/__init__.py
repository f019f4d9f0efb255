"""A node that scores with a teacher, and generates nothing.

- `services`: such a node's services, built: who is given what
- `teacher_engine`: the teacher in its engine: loaded, and asked for scores of what fits the device
- `worker`: asks for groups to score, scores, signs and delivers
"""
