"""Run Hugging Face transformers in an engine worker: a program that reads requests on stdin and answers on stdout.

It stands alone and is started by `common_worker`. It runs in any virtual environment with torch, transformers >= 4.56,
safetensors and numpy.

Invariants:

- A completion is a function of the installed weights, the prompt and the seed.
- Weights change only between batches, and only after everything about the new ones was checked.
- Nothing from a model directory is executed.
- The process ends as soon as its stdin does, even during a batch.

- `building`: bound what a library may build of a config
- `cpu_matmul`: matrix products on a CPU, by oneDNN where torch's own choice is slow
- `expert_recording`: record which experts of a mixture made each token
- `expert_replay`: follow the experts that another engine chose, where the model's own choice is close
- `forward`: one pass of a model over the next tokens of a batch
- `generation`: decode batches: prefill each prompt once, then draw one token at a time for all rows
- `habits`: what an engine must know of an architecture
- `kv_cache`: a cache that a step appends to instead of copying
- `memory`: a device's memory, and how to recognise that it is exhausted
- `policy`: the active model, loaded from a directory and replaced by the next
- `quantised_loading`: quantise a model while it is read, a block of a weight at a time
- `quantised_weights`: weights of eight and of four bits, and how to compute with them
- `request_queue`: requests that have arrived and are not taken yet
- `scoring`: log probabilities of given completions, and whether the sampler draws them
- `server`: the service: take requests, form batches, answer
"""
