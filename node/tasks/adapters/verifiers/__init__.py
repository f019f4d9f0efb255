"""Use environments of the package `verifiers` as tasks.

- `data`: their problems, for training and held out
- `episode`: one rollout, which asks the policy through a client of ours
- `messages`: convert messages and tools of the package
- `package`: import the package, and load its environments
- `rubric`: the named rewards of a rubric
- `task`: the kind of task
"""
