"""Offer a live page about a running learner or node: its address, and the process that serves it.

The page server (`node.commands.page`) is a process of its own, which starts when somebody opens the page and ends when
nobody looks. So a page costs nothing while it is closed, and nothing that a browser does delays the run.

- `address`: where the page is, and the listening socket
- `door`: waits for the first browser, and starts the server
- `page`: opens the page of a run
- `terms`: what the server is told at its start
"""
