"""Define the interface through which all other code reaches peers, and small helpers for its users.

The implementations lie elsewhere.

- `connection_events`: connection events for all subscribers
- `error_groups`: the exception that ended a nursery, instead of the group around it
- `event_rate`: a limit on how often something may happen: a burst, and then a number per second
- `flood`: broadcast by flooding to all neighbours
- `framing`: messages on a stream, each after its length
- `interface`: the transport interface, and `Report`, which reports a peer's faults
- `reach_evidence`: the evidence of how a node can be reached
- `receive_buffer`: bytes of one stream that have arrived and were not read yet
"""
