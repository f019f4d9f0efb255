"""The command line: options, and which function each command calls. It parses, calls and prints, and decides nothing.

- `arguments`: how arguments are read
- `main`: the program
- `operator_commands`: ban, pardon, and what else an operator asks
- `owner_commands`: pause, resume, drain
- `receipt_commands`: receipts and prove
- `reputation_commands`: reputation
- `status`: what a state directory says
"""
