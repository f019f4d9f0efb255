"""`volery demo`: a learner and three rollout nodes on this machine.

- `command`: runs it
- `lessons`: what it can teach
- `node_process`: other nodes as processes
- `recipe`: how much it trains, and its configuration
"""
