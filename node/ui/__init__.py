"""The live view of a run in a terminal.

- `live_view`: the view, drawn
- `terminal`: whether there is a terminal, and the session in it
- `view_updates`: what each event changes in the view
"""
