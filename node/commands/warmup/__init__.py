"""`volery warmup`: teach a model by example until it answers in the right form, before reinforcement learning.

- `batches`: chooses the examples of each step, in a reproducible order
- `command`: opens, connects and closes the parts of a warm-up
- `conversations`: turns rows of a data file into examples: conversations, or prompts with completions
- `examples`: collects examples from a task or a file, and counts those that do not fit
- `kept`: the directory beside the result, from which a stopped warm-up continues
- `lesson`: runs the steps of a warm-up, block by block, until a range is met or all steps are taken
- `options`: checks the options
- `progress`: prints the progress, for people or for programs
- `schedule`: the learning rate of each step
- `scoring`: measures how many held-out prompts a version answers in the right form
"""
