"""`volery chat`: a conversation with a version, in the terminal.

- `command`: reads lines, prints answers, and handles Ctrl-C and Ctrl-D
- `conversation`: keeps what was said, and decides what a line means
- `lines`: reads lines of standard input, also from a pipe
"""
