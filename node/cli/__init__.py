"""The command line: options, and which function each command calls. It parses, calls and prints, and decides nothing.

- `demo_commands`: demo, drill
- `inspect_commands`: invite, identity, status, report, why, samples, export
- `main`: the program
- `operator_commands`: ban, pardon, compact, and what else an operator asks
- `options`: options that several commands share, and how an async program is run
- `owner_commands`: pause, resume, drain
- `planning_commands`: plan, simulate
- `receipt_commands`: receipts, prove, reputation
- `report`: reads and prints a report, or why something was judged as it was
- `run_commands`: init, learn, join, engines, verifier
- `serving_commands`: serve, chat
- `status`: what a state directory says: the answers of those commands
- `task_commands`: tasks, new
- `warmup_command`: warmup
"""
