"""Run a teacher node, which scores completions with a teacher model, and generates nothing.

- `services`: builds the services of a teacher node, and connects them
- `teacher_engine`: loads the teacher into the engine
- `worker`: leases groups, scores them, signs and delivers
"""
