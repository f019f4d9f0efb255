"""`volery receipts`, `volery prove` and `volery reputation`: files that anybody can check offline who knows the
operator's key. `format` and `verify` are pure.

- `command`: writes and checks them
- `format`: their form, and which command wrote one
- `sources`: what a state directory has to state
- `text`: what is printed
- `verify`: core: what holds and adds up
"""
