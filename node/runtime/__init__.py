"""Give every part of the program what it needs of the machine: errors, events, shutdown, output and whole files.

Nothing here knows about swarms.

- `append_log`: a file of whole lines that only grows
- `atomic_files`: files that appear whole or not at all
- `batched_calls`: makes calls together that come while another is under way
- `errors`: errors that end the program with a paragraph instead of a traceback
- `event_reference`: every event, its fields, and when it is written
- `events`: writes events.jsonl, and tells listeners
- `formatting`: numbers, times and names as people read them
- `loop_delay`: measures how long the event loop makes others wait
- `loop_watch`: finds out which task held the event loop, and for how long
- `safe_console`: a rich console on which text of strangers is harmless
- `shutdown`: Ctrl-C, hang-ups, and the order in which things end
- `startup`: remembers signals that arrive early, and sets garbage collection, open files and memory pools
- `stdout`: standard output that may go away
- `typed_signal`: news that one part of the program has for others
- `user_paths`: reads a path as somebody wrote it
"""
