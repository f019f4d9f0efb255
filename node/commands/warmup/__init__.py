"""`volery warmup`: a model is taught by example until it answers in the right form, before RL begins.

- `batches`: which examples each step learns, in an order that can be found again
- `command`: the parts of a warm-up, opened, joined and closed
- `conversations`: rows of a data file as examples: conversations, or prompts with completions
- `examples`: examples from a task's reference answers or from a file, those that do not fit counted
- `kept`: the directory beside the result, from which a warm-up that was stopped goes on
- `lesson`: the steps of a warm-up, from block to block, until a band is met or all steps are taken
- `options`: what was asked for, checked
- `progress`: what is printed meanwhile, for people or for programs
- `schedule`: the learning rate of each step
- `scoring`: how many held-out prompts a version answers in the right form
"""
