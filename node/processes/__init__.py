"""Run child processes: each has one framed pipe, is started again when it dies, and ends with its node.

- `child`: a supervised child: starts it, restarts it, lets it rest
- `child_process`: one process of a child, from its start to its end
- `event_log`: turns moments of a child's life into events
- `memory_limit`: measures what a child holds in memory, and notices when that is too much
- `outcomes`: how a child ends, and what its callers and watchers learn of it
- `spec`: how a child is run
- `temp_directory`: directories of temporary files that end with the child
"""
