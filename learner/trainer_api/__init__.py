"""Define what a node asks of the trainer, and what the trainer replies. No torch: the node imports this.

- `advantages`: turn the rewards of a batch into one advantage for each completion
- `errors`: describe a failed request by a kind for programs and a paragraph for people
- `exit_reasons`: say how a process ended, and what it printed last
- `last_resort_exit`: end a process of this program at once and say why
- `pipes`: the child's end of the pipe to its node
- `presets`: the objectives by name
- `requests`: what a node may ask, one struct for each operation
"""
