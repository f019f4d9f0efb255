"""`volery chat`: a conversation with a version, in the terminal.

- `command`: lines in, answers out, and what Ctrl-C and Ctrl-D mean
- `conversation`: what was said, and what a line means
- `lines`: lines of standard input, also of a pipe
"""
