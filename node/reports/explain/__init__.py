"""Why one record, peer or version was treated as it was.

- `name_lookup`: which record, peer or version a name means
- `recount_text`: what the test of a peer's audits says when it is made once more
- `why`: the answer
"""
