"""`volery demo`: run a learner and three rollout nodes on this machine.

- `command`: runs the demo
- `lessons`: the tasks that it can teach
- `node_process`: starts and ends nodes as processes
- `recipe`: how much it trains, and its configuration
"""
