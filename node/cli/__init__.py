"""The command line: options, and which function each command calls. It parses, calls and prints, and decides nothing.

- `demo_commands`: demo, drill
- `inspect_commands`: invite, identity, status, report, why, samples, export, tasks
- `main`: the program
- `operator_commands`: ban, pardon, and what else an operator asks
- `options`: options that several commands share, and how an async program is run
- `owner_commands`: pause, resume, drain
- `planning_commands`: plan, simulate
- `receipt_commands`: receipts, prove, reputation
- `report`: reads and prints a report, or why something was judged as it was
- `run_commands`: init, learn, join, engines, verifier
- `status`: what a state directory says: the answers of those commands
"""
