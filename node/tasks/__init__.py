"""Provide the prompts and rewards of a run: what to ask the policy, and what a completion earns.

All of it runs on the learner's side. `gate` checks everything that a task returns.

- `adapters`: environments of other libraries, as tasks
- `answers`: find, normalise and compare the answer in a completion
- `api`: what authors of tasks import, through `volery`
- `checks`: the checks that authors run on their own task
- `composed_reward`: a reward with the named rewards that it consists of
- `data_files`: read an operator's data files row by row
- `environments`: environments with a state, running or replayed
- `first_reward`: compute one reward before a run begins
- `gate`: check everything that a task returns
- `grading`: answer one question about a transcript
- `held_out`: held-out prompts, and how their completions get rewards
- `kinds`: the built-in tasks
- `offline_data`: read logged completions from a file
- `port`: the old name of `volery`, for one more release
- `python_task`: load a task from the operator's own module
- `registry`: turn a task's spec into a task
- `sandbox`: run programs of strangers without access to this machine
- `services`: ask judges and reward services elsewhere
- `task_suite`: all tasks of a run, with their curriculum
- `template_checks`: check that the chat template can write what a task says
- `tokenized_task`: a task in token ids
- `tokenizer`: convert between text and token ids
- `tokenizer_files`: read a model's tokenizer from its files
- `tools`: read and write tool calls
- `ways`: how conversations with this model are written
"""
