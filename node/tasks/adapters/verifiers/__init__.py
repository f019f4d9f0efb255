"""Environments of the package `verifiers`.

- `data`: their problems, on both sides
- `episode`: one rollout, which asks the policy through a client of ours
- `messages`: messages and tools of the package, read and written
- `package`: the package, and environments that it loads
- `rubric`: what a rubric rewards, by name
- `task`: the task kind
"""
