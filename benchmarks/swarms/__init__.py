"""Random swarms, simulated, predicted and provisioned by two rules; and the distribution of chunks in virtual time.

- `bounds`: reference figures: ECHO-2's Table 2 in the simulator, and the time of a simulated hour
- `chunk_simulation`: a swarm in virtual time: the cores of `swarm/transfer`, over simulated links
- `draw`: random swarms
- `homes`: a hundred peers behind home routers, where some pairs cannot connect, in virtual time
- `table2`: ECHO-2's Table 2 as a test of two models
- `trial`: one swarm, simulated and predicted
- `virtual_links`: uplinks, downlinks and router queues in virtual time
"""
