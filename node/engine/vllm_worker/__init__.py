"""The engine worker on vLLM: a program that reads requests on stdin and answers on stdout.

It stands alone, started by `common_worker`, which see; it runs in any virtual environment with vLLM 0.32 (which brings
torch, transformers and safetensors). Processes of this worker:

    server, engine          asyncio: takes requests as they come, holds vLLM's AsyncLLM
    (vLLM's engine core and its workers, spawned by it)
        sampler             the seeded sampler, as one of vLLM's logits processors
        weight_swap         swaps weights in place, as an extension of vLLM's worker
        recording_worker    vLLM's worker for a mixture of experts, which is listened to (`expert_recording`)

Invariants: a completion is a function of the installed weights, the prompt and the seed. Its logprobs are the sampler's
own, never what vLLM calls logprobs. Of every token it is known which version made it. Everything that can be checked
about new weights is checked before any is touched. Nothing from a model directory is executed.

- `engine`: vLLM's AsyncLLM: started, swapped in place, started anew
- `expert_recording`: which experts of a mixture vLLM's routers choose for each token
- `model_contents`: what a model directory holds, from its files' headers
- `recording_worker`: vLLM's worker for a mixture of experts
- `sampler`: the seeded sampler inside vLLM
- `server`: the service: completions begun as they are asked for, versions installed
- `weight_swap`: weights swapped inside vLLM's workers
"""
