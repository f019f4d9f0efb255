"""Yamux: many ordered streams over one secure connection. `frames` knows bytes, `connection` knows streams.

- `connection`: the streams of one connection, and whose turn it is to write
- `driving`: bytes between a muxer and the secure connection below it
- `frames`: bytes to frames and back
- `stream`: one stream, its windows, and what a peer may make us hold
"""
