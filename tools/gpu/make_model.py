"""Make a Qwen3 of random weights in bfloat16, and a tokenizer of words: python -m tools.gpu.make_model FOLDER [tiny]

Random weights cost a step as much as trained ones. Word n is "wn", so every completion is text, and some of it earns a
reward (`trial_task`). FOLDER/made.json describes the model: parameters, bytes, device, and configuration.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from benchmarks.trainer_gpu import FULL, TINY

MADE = "made.json"
SHARED = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SPECIAL = ["<pad>", "<bos>", "<eos>", "<unk>"]
UNUSED = 16
"""A few ids that no text has, as in Qwen's own tokenizer."""


def main() -> None:
    began, out = time.time(), Path(sys.argv[1])
    config = dict((TINY if "tiny" in sys.argv[2:] else FULL).config) | SHARED
    device = "cuda" if torch.cuda.is_available() else "cpu"
    out.mkdir(parents=True, exist_ok=True)
    parameters = make_weights(out, config, device)
    make_tokenizer(out, config["vocab_size"])
    made = {
        "parameters": parameters,
        "bytes": sum(file.stat().st_size for file in out.iterdir()),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "seconds": round(time.time() - began, 2),
        "config": config,
    }
    (out / MADE).write_text(json.dumps(made, indent=1))


def make_weights(out: Path, config: dict[str, Any], device: str) -> int:
    """Write configuration and weights; return the number of parameters."""
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen3ForCausalLM(Qwen3Config(**config)).to(torch.bfloat16)
    model.generation_config = GenerationConfig.from_model_config(model.config)
    model.to("cpu").save_pretrained(out)
    return sum(p.numel() for p in model.parameters())


def make_tokenizer(out: Path, vocab_size: int) -> None:
    tokens = [*SPECIAL, *(f"w{n}" for n in range(vocab_size - len(SPECIAL) - UNUSED))]
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    tokenizer.save(str(out / "tokenizer.json"))
    names = {f"{name.strip('<>')}_token": name for name in SPECIAL}
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (out / "tokenizer_config.json").write_text(json.dumps(kind | names))


if __name__ == "__main__":
    main()
