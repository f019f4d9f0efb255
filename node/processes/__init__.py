"""Child processes: each has one framed pipe, is started again when it dies, and ends with its node.

- `child`: a supervised child: started, restarted, put to rest
- `child_process`: one life of a child, from its start to its end
- `event_log`: what of a child's life is an event
- `memory_limit`: what a child holds in memory, and what happens beyond
- `outcomes`: how a request to a child may end
- `spec`: what a child is started with
- `temp_directory`: directories that end with the process that made them
"""
