"""A node that scores with a teacher, and generates nothing.

- `services`: such a node's services, built: who is given what
- `teacher_engine`: loads the teacher into its engine
- `worker`: asks for groups to score, scores, signs and delivers
"""
