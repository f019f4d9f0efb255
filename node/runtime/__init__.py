"""What every part of the program needs of the machine under it: errors, events, shutdown, standard output, files that
appear whole. Nothing here knows a swarm.

- `append_log`: a file of whole lines that only grows
- `atomic_files`: files that appear whole or not at all
- `batched_calls`: calls that come while one is under way are made together
- `errors`: what ends the program with a paragraph instead of a traceback
- `event_reference`: every event, its fields, and when it is written
- `events`: events.jsonl, and everybody who listens to it
- `formatting`: numbers, times and names as people read them
- `loop_delay`: how long the event loop makes others wait
- `loop_watch`: who held the event loop, and for how long
- `safe_console`: a rich console on which text of strangers can do nothing
- `shutdown`: Ctrl-C, hang-ups, and the order in which things end
- `startup`: signals that arrive before anybody heeds them, and when the interpreter collects
- `stdout`: standard output that may go away
- `typed_signal`: news that one part of the program has for others
- `user_paths`: a path as somebody wrote it
"""
