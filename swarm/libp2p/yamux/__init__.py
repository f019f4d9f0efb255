"""Yamux: many ordered streams over one secure connection. `frames` knows bytes, `connection` knows streams.

- `connection`: the streams of one connection, their windows, and what a peer may make us hold
- `frames`: bytes to frames and back
"""
