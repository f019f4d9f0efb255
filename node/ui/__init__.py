"""The live view of a run: on the whole terminal, as lines, or as a log.

- `charts`: curves, bars and shares out of characters
- `endings`: sums up what a program did, for its last lines
- `facts`: the figures of the screen, each with a label
- `full_screen`: draws pictures on the terminal, and gives it back
- `keyboard`: reads keys
- `lines`: wraps, shortens and pads styled text
- `live_view`: holds what is shown
- `log_lines`: writes a log, as text or JSON, to stdout or a bounded file
- `look`: which page is shown, and what a key means
- `pace`: seconds a step, and time left
- `peer_table`: the table of peers
- `picture`: lays out the screen for its size
- `plain_lines`: notices and state as lines
- `terminal`: opens the terminal, and runs a role in it from its first line to Ctrl-C
- `view_updates`: changes the view for each event
"""
