"""Choose the next problem: mixtures of tasks, passes over finite tasks, levels of generated ones. Pure cores.

- `difficulty_levels`: a task without end, at a difficulty that rises with success
- `epochs`: a finite task, pass after pass, each in its own order
- `mixture`: cursors over the tasks of a mixture, chosen by weight
- `offline_stream`: logged groups of completions beside the swarm's rollouts
- `problem_index`: one number that names a problem
"""
