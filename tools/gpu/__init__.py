"""Try the program on a machine with one GPU, with or without a network: see README.md.

- `prepare`: builds the bundles that a machine without a network needs
- `run`: runs every part within a time limit, and ends with the summary
- `environment`: makes an environment whose packages come before those of another Python
- `make_model`: makes the model, of random weights, and its tokenizer
- `trial_task`: the task, whose rewards differ even for a model that knows nothing
- `trial`: runs one swarm, from the start to Ctrl-C
- `plain_vllm`: measures vLLM alone
- `summary`: says where a step's seconds went, and which bars were met
"""
