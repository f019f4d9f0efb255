"""Say what can be typed: the commands, and the pages of their help.

- `catalogue`: the commands, their panels in the help, and their summaries
- `page`: lays out a page of help
- `parser`: commands and groups that typer parses and whose help is ours
- `root`: the help of the program itself
"""
