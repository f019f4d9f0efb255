"""`volery demo`: a learner and three rollout nodes on this machine.

- `command`: runs it
- `node_process`: other nodes as processes
- `recipe`: what it learns, and its configuration
"""
