"""Why one record, peer or version was treated as it was.

- `audit_replay`: an audit once more
- `name_lookup`: which record, peer or version a name means
- `why`: the answer
"""
