"""What every part of the program needs of the machine under it: errors, events, shutdown, standard output, files that
appear whole. Nothing here knows a swarm.

- `append_log`: a file of whole lines that only grows
- `atomic_files`: files that appear whole or not at all
- `early_signals`: signals that arrive before there is anybody to heed them
- `errors`: what ends the program with a paragraph instead of a traceback
- `events`: events.jsonl, and everybody who listens to it
- `formatting`: numbers, times and names as people read them
- `garbage_collection`: when the interpreter collects
- `loop_delay`: how long the event loop makes others wait
- `loop_watch`: who held the event loop, and for how long
- `output_directory`: a directory that is replaced only by the command that made it
- `safe_console`: a rich console on which text of strangers can do nothing
- `shutdown`: Ctrl-C, hang-ups, and the order in which things end
- `sidecar_db`: SQLite files beside the ledger
- `stdout`: standard output that may go away
- `user_paths`: a path as somebody wrote it
"""
