"""`volery new`: write a task or an environment to start from. The files in `template/` have $names to fill in.

- `command`: writes the package, and a small model to try it with
"""
