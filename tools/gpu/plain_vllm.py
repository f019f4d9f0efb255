"""Measure vLLM alone, without the program around it: plain_vllm.py MODEL OUT.json, with the Python that has vLLM.

vLLM generates batches of 256 completions, of two kinds:
- `step`: 256 new tokens after 256, similar to a training step.
- `start`: 32 new tokens after 16, as a node measures its speed when it starts (`node/engine/throughput.py`).

It compiles if a node would: if there is g++.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time
from pathlib import Path
from typing import Any

for name, value in {
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # flashinfer is left out of the bundles
}.items():
    os.environ.setdefault(name, value)

COMPLETIONS = 256
SHAPES = {"step": (256, 256), "start": (16, 32)}
"""Tokens of a prompt, new tokens."""

RUNS = 2
"""The first run includes one-time costs; the best run counts."""

SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 192, 256]
"""Batch sizes for which a CUDA graph is captured. vLLM's own list is longer, and takes a minute more."""


def main() -> None:
    """Write the measurements after each run, so that an early end keeps the earlier ones."""
    model, out = sys.argv[1], Path(sys.argv[2])
    began, eager = time.time(), shutil.which("g++") is None
    import torch
    import vllm

    llm = vllm.LLM(
        model=model,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        load_format="safetensors",
        generation_config="vllm",
        max_num_seqs=COMPLETIONS,
        max_model_len=2048,
        gpu_memory_utilization=0.4,
        enforce_eager=eager,
        disable_log_stats=True,
        **({} if eager else {"compilation_config": {"cudagraph_capture_sizes": SIZES}}),
    )
    found: dict[str, Any] = {"vllm": vllm.__version__, "torch": torch.__version__, "eager": eager}
    found |= {"start_s": round(time.time() - began, 1), "tokens_per_s": {}}
    dice, words = random.Random(0), json.loads(Path(model, "config.json").read_text())["vocab_size"] - 20
    for shape, (length, new) in SHAPES.items():
        params = vllm.SamplingParams(temperature=1.0, max_tokens=new, ignore_eos=True, detokenize=False)
        for _ in range(RUNS):
            ids = [[dice.randrange(4, words) for _ in range(length)] for _ in range(COMPLETIONS)]
            at = time.time()
            made = llm.generate([{"prompt_token_ids": one} for one in ids], params, use_tqdm=False)
            speed = sum(len(one.outputs[0].token_ids) for one in made) / (time.time() - at)
            found["tokens_per_s"][shape] = round(max(speed, found["tokens_per_s"].get(shape, 0.0)), 1)
            out.write_text(json.dumps(found, indent=1))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
