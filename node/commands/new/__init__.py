"""`volery new`: something to start from. The files of `template/` are text, with $names that are filled in.

- `command`: writes a task or an environment of one's own, and a small model to try it with
"""
