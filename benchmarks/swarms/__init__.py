"""Random swarms, simulated and predicted, and provisioned by either rule; and chunks that travel in virtual time.

- `bounds`: what no plan can beat
- `chunk_simulation`: a swarm in virtual time: the very cores of `swarm/transfer`, over simulated links
- `draw`: random swarms
- `homes`: a hundred peers behind home routers that cannot all meet, in virtual time
- `trial`: one swarm, simulated and predicted
- `virtual_links`: uplinks, downlinks and router queues in virtual time
"""
