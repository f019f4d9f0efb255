"""Serve the live page of a learner or a node: a program of its own, beside the run (`node.web` starts it).

- `access`: which requests are answered
- `app`: answers them
- `board`: the parts of the page as they are now
- `document`: the whole page
- `event_tail`: reads new events
- `feed`: keeps the parts up to date
- `live_run`: what the events tell
- `orders`: carries out what the owner asks for
- `parts`: what the page is made of
- `program`: the process
"""
