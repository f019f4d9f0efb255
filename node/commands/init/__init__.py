"""`volery init`: write a swarm.toml with values that suit model and data, or a whole example.

- `command`: writes the swarm.toml
- `data_spec`: proposes the task of a data file
- `example_files`: writes an example
- `named_model`: finds the model that was named
- `small_model`: makes the model of the example `reverse`
- `summary`: says what was written and what to type next
"""
