"""The engine worker on Hugging Face transformers: a program that reads requests on stdin and answers on stdout.

It stands alone, started by `common_worker`, which see; it runs in any virtual environment with torch, transformers >=
4.56, safetensors and numpy.

Invariants: a completion is a function of the installed weights, the prompt and the seed. Weights change only between
batches and only after everything about the new ones was checked. Nothing from a model directory is executed. The
process ends as soon as its stdin does, even in mid-batch.

- `building`: how much a library may build of a config
- `cpu_matmul`: matrix products on a CPU, by oneDNN where torch's own choice is slow
- `expert_recording`: which experts made each token, of a mixture of experts
- `expert_replay`: an audit that goes through the experts that another engine chose, where the model nearly did
- `forward`: one pass of a model over the next tokens of a batch
- `generation`: batches decoded: each prompt prefilled once, then a token for all rows at a time
- `habits`: what an engine must know of an architecture
- `kv_cache`: a cache that a step appends to instead of copying
- `memory`: a device's memory, and how its end is told
- `policy`: the model in service, loaded from a directory and replaced by the next
- `quantised_loading`: a model quantised while it is read, a block of a weight at a time
- `quantised_weights`: weights of eight and of four bits, and how they are computed with
- `request_queue`: requests that arrived and were not taken yet
- `scoring`: log probabilities of given completions, and whether the sampler draws them
- `server`: the service: requests taken, batches formed, answers given
"""
