"""`volery init`: a commented swarm.toml with figures that its model can work with.

- `command`: writes it
"""
