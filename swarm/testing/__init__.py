"""Test doubles that pass the conformance checks of the real thing, shipped so that others can test against them.
Nothing in the program imports them.

- `chunk_simulation`: a swarm in virtual time: the very cores that nodes run, over simulated links
- `memory_transport`: a network in memory, whose links can be cut, slowed, corrupted or frozen
- `transport_conformance`: what every transport must do
- `virtual_links`: uplinks, downlinks and router queues in virtual time
"""
