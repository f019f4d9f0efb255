"""Tell how this program was installed: what it lacks, which line adds it, and whether its packages are its own.

- `extras`: which extra brings a library, and the sentence for a command that needs a missing one
- `install_line`: the line that adds an extra to this installation, made by uv, pipx, pip or a checkout
- `name_clashes`: other distributions that own one of the names of our import packages
"""
