"""Share the code of all engine workers: starting one, requests as rows, replies, the contents of a model directory.

    python -I common_worker/__main__.py WORKER PACKAGES_PATH SETTINGS_JSON

runs the worker whose directory beside this one is WORKER, for example `transformers_worker`. PACKAGES_PATH is the
directory of the packages `protocol` and `learner`.

A worker runs in any virtual environment. Its files import each other by relative names. `-I` keeps the script's own
folder off sys.path, where names such as `lora` would hide modules of other packages.

Invariants:

- A worker loads these directories of our code, and by their paths a few files that stand alone. These are the sampler,
  the pipe's frames, the bounds of a config.json, the routing of a mixture of experts, and the reasons of exits.

- `errors`: the refusal of a request, and the error that ends the process
- `generate_call`: a `generate` request, from its arrival to the reply
- `keepalive`: signs of life during a long request
- `lora`: low-rank adapters as peft writes them, merged into a model's weights
- `memory_bound`: how much memory there is: a cgroup's limit, or the machine's
- `reader`: a thread that reads what the node sends
- `replies`: events, and one reply or one refusal for each request
- `rotary`: the length from which rotary embeddings change their factors
- `sizes`: what weight files hold, and a check that a config.json asks for no more
- `token_events`: tokens sent to the node as they are drawn
- `weight_files`: which files of a model directory hold its weights
"""
