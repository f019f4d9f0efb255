"""Run vLLM in an engine worker: a program that reads requests on stdin and answers on stdout.

It stands alone and is started by `common_worker`. It runs in any virtual environment with vLLM 0.32, which includes
torch, transformers and safetensors. Processes of this worker:

    server, engine          asyncio: takes requests as they come, holds vLLM's AsyncLLM
    (vLLM's engine core and its workers, spawned by it)
        sampler             the seeded sampler, as one of vLLM's logits processors
        weight_swap         swaps weights in place, as an extension of vLLM's worker
        recording_worker    vLLM's worker for a mixture of experts, whose routing is recorded (`expert_recording`)

Invariants:

- A completion is a function of the installed weights, the prompt and the seed.
- Its logprobs are the sampler's own, never vLLM's.
- The version that produced each token is known.
- New weights pass every possible check before any old weight is changed.
- Nothing from a model directory is executed.

- `engine`: vLLM's AsyncLLM: started, swapped in place, restarted
- `expert_recording`: record which experts of a mixture vLLM's routers choose for each token
- `model_contents`: what a model directory holds, from its files' headers
- `recording_worker`: vLLM's worker for a mixture of experts
- `sampler`: the seeded sampler inside vLLM
- `server`: the service: start completions, install versions
- `weight_swap`: swap weights inside vLLM's workers
"""
