"""The port through which everything else reaches other peers, and small things that each user of the port needs. No
implementation lies here.

- `connection_events`: who is connected, told to everybody who asked
- `error_groups`: what ended a nursery, instead of the group around it
- `event_rate`: how often something may happen: so many at once, and then so many a second
- `flood`: broadcast by flooding to all neighbours
- `framing`: messages on a stream, each behind its length
- `interface`: the port, and `Report`, by which it is said that a peer did something wrong
- `reach_evidence`: what a node knows of how it is reached, piece by piece
- `receive_buffer`: bytes of one stream that have arrived and were not read yet
"""
