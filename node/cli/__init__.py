"""Define the command line: parse options, call the command, print. It decides nothing.

- `application`: makes the commands of the catalogue a program
- `demo_commands`: demo, drill
- `help`: the commands and the pages of their help, a room of its own
- `inspect_commands`: invite, identity, status, report, why, samples, export
- `main`: the entry point
- `operator_commands`: ban, pardon, compact, notify
- `options`: options that several commands share, and how an async program is run
- `owner_commands`: pause, resume, drain, limits, service
- `planning_commands`: plan, simulate
- `receipt_commands`: receipts, prove, reputation
- `report`: reads the ledger or the receipts, for report and why
- `run_commands`: init, learn, join, doctor, engines, verifier
- `serving_commands`: serve, chat
- `status`: reads a state directory for status and identity
- `task_commands`: tasks, new
- `warmup_command`: warmup
"""
