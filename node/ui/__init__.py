"""The live view of a run in a terminal.

- `live_view`: the view, drawn
- `terminal`: whether there is a terminal, and a role's session in it, from its first line to Ctrl-C
- `view_updates`: what each event changes in the view
"""
