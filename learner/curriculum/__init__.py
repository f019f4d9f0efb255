"""Which problem is asked next: mixtures of tasks, epochs over finite ones, levels of generated ones. Pure cores.

- `difficulty_levels`: a task without end, at a difficulty that rises with success
- `epochs`: a finite task, epoch after epoch, each in an order of its own
- `mixture`: cursors over the tasks of a mixture, drawn by weight
- `offline_stream`: logged groups of completions beside the swarm's rollouts
- `problem_index`: one number names a problem
"""
