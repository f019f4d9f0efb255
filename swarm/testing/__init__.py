"""Test doubles that pass the conformance checks of the real thing, shipped so that others can test against them.
Nothing in the program imports them.

- `memory_transport`: a network in memory, whose links can be cut, slowed, corrupted or frozen
- `transport_conformance`: what every transport must do
"""
