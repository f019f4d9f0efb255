"""Provide test doubles that pass the same conformance checks as the real implementations.

They are shipped so that other programs can test with them. The program itself does not import them.

- `memory_transport`: a network in memory, whose links can be cut, slowed, corrupted or frozen
- `transport_conformance`: checks that every transport must pass
"""
