"""The live view of a run in a terminal.

- `live_view`: draws the view
- `terminal`: opens the terminal, and runs a role in it from its first line to Ctrl-C
- `view_updates`: changes the view for each event
"""
