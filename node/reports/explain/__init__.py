"""Explain why one record, peer or version was treated as it was.

- `name_lookup`: which record, peer or version a name means
- `meant_peer`: the peer that an order of the operator means
- `recount_text`: the result of repeating the test of a peer's audits
- `why`: the explanation
"""
