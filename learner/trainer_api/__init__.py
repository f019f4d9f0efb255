"""What a node asks of the trainer, and what it hears. No torch: the node imports this.

- `advantages`: rewards of a batch in, one advantage for each completion out
- `errors`: a failed request as a kind for programs and a paragraph for people
- `exit_reasons`: how a process ended, and what it said last
- `last_resort_exit`: how a process of ours says why it cannot go on, and ends at once
- `pipes`: the child's end of the pipe to its node
- `presets`: the objectives by name
- `requests`: what a node may ask, one struct for each operation
"""
