"""What every engine worker is made of: how it starts, requests as rows, replies, what a model directory holds.

    python -I common_worker/__main__.py WORKER PACKAGES_PATH SETTINGS_JSON

runs the worker whose directory beside this one is WORKER, for example `transformers_worker`. PACKAGES_PATH is where the
packages `protocol` and `learner` lie.

Invariants: of ours a worker loads these directories, and by their paths single files that stand alone: the sampler,
the pipe's frames, the bounds of a config.json, how a mixture of experts routes, and how a process says why it ends. So
it runs in any virtual environment. Its files name each other relatively. (`-I` keeps the script's own folder off
sys.path, where names such as `lora` would hide others' modules.)

- `errors`: a request that cannot be done, and what ends the process instead of an answer
- `generate_call`: a `generate` request, from what was asked to the reply
- `keepalive`: how a worker says that it is still at a long request
- `lora`: low-rank adapters as peft writes them, merged into a model's weights
- `memory_bound`: how much memory there is: a cgroup's limit, or the machine's
- `reader`: what arrives from the node, read by a thread of its own
- `replies`: events, and for each request one reply or one refusal
- `rotary`: from which length on rotary embeddings change their factors
- `sizes`: what weight files hold, and that a config.json asks for no more
- `token_events`: tokens handed on as they are drawn
- `weight_files`: which files of a model directory hold its weights
"""
