"""The engine worker on vLLM: a program that reads requests on stdin and answers on stdout.

It stands alone, started by `common_worker`, which see; it runs in any virtual environment with vLLM 0.32 (which brings
torch, transformers and safetensors). Processes of this worker:

    server, engine      asyncio: takes requests as they come, holds vLLM's AsyncLLM
    (vLLM's engine core and its workers, spawned by it)
        sampler         the seeded sampler, as one of vLLM's logits processors
        weights         swaps weights in place, as an extension of vLLM's worker

What always holds: a completion is a function of the installed weights, the prompt and the seed; its logprobs are the
sampler's own, never what vLLM calls logprobs; of every token it is known which version made it; everything that can be
checked about new weights is checked before any is touched; nothing from a model directory is executed.
"""
