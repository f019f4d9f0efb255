"""Prompts, rewards, and where they come from. This is the learner's side alone; what a task may return is checked in
`gate`.

- `adapters`: environments that others wrote, as tasks
- `answers`: the answer in a completion: found, spelled alike, compared
- `api`: what authors of tasks import (through `volery`)
- `checks`: what authors try a task of their own with
- `data_files`: data files of an operator, row by row
- `environments`: environments with a state, alive or replayed
- `first_reward`: one reward before a run begins
- `gate`: whatever a task returns is checked here
- `grading`: rewards of a group
- `held_out`: held-out questions, and who is asked for their rewards
- `kinds`: the tasks that come with the program
- `offline_data`: logged completions
- `port`: the old name of what is in `volery`, for one release
- `python_task`: a task that the operator wrote
- `registry`: from a name to a task
- `sandbox`: walls around programs of strangers
- `services`: judges and reward services elsewhere
- `task_suite`: all tasks of a run, with their curriculum
- `template_checks`: whether the chat template can say what a task will say
- `tokenized_task`: a task in tokens
- `tokenizer`: text to tokens and back
- `tokenizer_files`: a model's tokenizer, from its files alone
- `tools`: tool calls in what a policy says
- `ways`: how the model is spoken to
- `worth`: a reward, and the rewards with names that it is made of
"""
