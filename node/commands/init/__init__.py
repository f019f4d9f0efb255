"""`volery init`: write a commented swarm.toml with values that suit its model.

- `command`: writes it
"""
