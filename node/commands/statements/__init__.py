"""`volery receipts`, `volery prove` and `volery reputation`: signed files for checking offline with the operator's key.

`format` and `verify` are pure.

- `command`: writes and checks statements
- `format`: the form of a statement, and which command wrote one
- `sources`: reads from a state directory what it can state
- `text`: prints statements and receipts
- `verify`: checks signatures and sums of a statement
"""
