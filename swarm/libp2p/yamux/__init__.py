"""Run many ordered streams over one secure connection (yamux). `frames` knows bytes, `connection` knows streams.

- `connection`: the streams of one connection, and which of them writes next
- `driving`: carries bytes between a muxer and the secure connection below it
- `frames`: turns bytes into frames and back
- `stream`: one stream, its windows, and the limits on what a peer may make us hold
"""
