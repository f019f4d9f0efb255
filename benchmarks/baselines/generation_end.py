"""Generate as an opponent in `benchmarks/engines.py`: a process that answers requests line by line.

    python generation_end.py transformers|vllm MODEL SECOND JOB

It stands alone, since vLLM needs an environment of its own. JOB is JSON: prompts, prompt_tokens, new_tokens, threads.
It reads {"how", "seed"} from stdin, one a line, and answers {"tokens", "seconds"}; the first line that it prints says
that it is ready. `how` for transformers is "generate" or "generate_batch". For vLLM it is "sampled", "greedy", or
"swap", which loads the other model's weights by vLLM's own method.

Invariants:

- Every completion has all its tokens, with their log probabilities in vLLM.
- Prompts are new for each seed, so no cache has them.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

Answer = dict[str, float]


def prompts_of(job: dict[str, int], vocab_size: int, seed: int) -> list[list[int]]:
    """Return token ids, [prompts][prompt_tokens]."""
    random = Random(seed)
    return [random.choices(range(1, vocab_size), k=job["prompt_tokens"]) for _ in range(job["prompts"])]


def say(answer: Answer) -> None:
    print(json.dumps(answer), flush=True)


def timed(began: float, tokens: int) -> Answer:
    return {"seconds": time.perf_counter() - began, "tokens": float(tokens)}


def transformers(model_directory: str, job: dict[str, int]) -> None:
    """Answer with `generate` as a program would call it, or `generate_batch`, which batches continuously."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    torch.set_num_threads(job["threads"])
    model: Any = AutoModelForCausalLM.from_pretrained(model_directory, dtype=torch.float32).eval()
    settings = GenerationConfig(
        max_new_tokens=job["new_tokens"],
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        pad_token_id=0,
    )

    def generate(how: str, seed: int) -> Answer:
        torch.manual_seed(seed)
        prompts = prompts_of(job, model.config.vocab_size, seed)
        began = time.perf_counter()
        if how == "generate":
            ids = torch.tensor(prompts)
            found = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
            return timed(began, found.numel() - ids.numel())
        outputs = model.generate_batch(inputs=prompts, generation_config=settings, progress_bar=False)
        return timed(began, sum(len(output.generated_tokens) for output in outputs.values()))

    say({})
    for line in sys.stdin:
        say(generate(**json.loads(line)))


async def vllm(directories: list[str], job: dict[str, int]) -> None:
    """Answer with AsyncLLM, with the settings of ours and without our code."""
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    llm: Any = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=directories[0],
            skip_tokenizer_init=True,
            generation_config="vllm",
            load_format="safetensors",
            dtype="float32",
            max_num_seqs=256,
            kv_cache_memory_bytes=1 << 30,
            enable_prefix_caching=True,
            enforce_eager=shutil.which("g++") is None,
            disable_log_stats=True,
        )
    )
    vocab_size = llm.model_config.get_vocab_size()

    async def one(id: str, prompt: list[int], params: Any) -> int:
        async for output in llm.generate({"prompt_token_ids": prompt}, params, id):
            done = output.outputs[0]
        return len(done.token_ids)

    async def generate(how: str, seed: int) -> Answer:
        params = SamplingParams(
            temperature=1.0 if how == "sampled" else 0.0,
            max_tokens=job["new_tokens"],
            ignore_eos=True,
            detokenize=False,
            logprobs=0,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        prompts = prompts_of(job, vocab_size, seed)
        began = time.perf_counter()
        counts = await asyncio.gather(*(one(f"{how}-{seed}-{i}", p, params) for i, p in enumerate(prompts)))
        return timed(began, sum(counts))

    async def swap(seed: int) -> Answer:
        directories.reverse()
        began = time.perf_counter()
        await llm.pause_generation(mode="keep", clear_cache=True)
        await llm.collective_rpc("reload_weights", kwargs={"weights_path": directories[0]})
        await llm.resume_generation()
        return timed(began, 0)

    say({})
    await answering(lambda how, seed: swap(seed) if how == "swap" else generate(how, seed))
    llm.shutdown()


async def answering(answer: Callable[[str, int], Awaitable[Answer]]) -> None:
    while line := await asyncio.to_thread(sys.stdin.readline):
        say(await answer(**json.loads(line)))


if __name__ == "__main__":
    _, KIND, MODEL, SECOND, JOB = sys.argv
    if KIND == "vllm":
        asyncio.run(vllm([MODEL, SECOND], json.loads(JOB)))
    else:
        transformers(MODEL, json.loads(JOB))
