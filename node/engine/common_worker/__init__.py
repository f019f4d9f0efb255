"""What every engine worker is made of: how it starts, frames, requests as rows, refusals, what a model directory holds.

    python -I common_worker/__main__.py WORKER SAMPLING_PATH SETTINGS_JSON

runs the worker whose directory beside this one is WORKER, for example `transformers_worker`.

Invariants: of ours a worker loads these directories and one file, `protocol/sampling.py`, by their paths, so that it
runs in any virtual environment. Its files name each other relatively, and nothing else of ours. (`-I` keeps the
script's own folder off sys.path, where names such as `lora` would hide others' modules.)

- `dying`: how a worker says why it cannot go on, and ends at once
- `errors`: a request that cannot be done, and what ends the process instead of an answer
- `frames`: frames on a pipe: a copy of `protocol.core.pipe`, which a test holds to it
- `generate_call`: a `generate` request, from what was asked to the reply
- `keepalive`: how a worker says that it is still at a long request
- `lora`: low-rank adapters as peft writes them, merged into a model's weights
- `reader`: what arrives from the node, read by a thread of its own
- `rotary`: from which length on rotary embeddings change their factors
- `sizes`: a config.json asks for no more than its weights hold
- `weight_files`: which files of a model directory hold its weights
"""
