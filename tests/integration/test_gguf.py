"""GGUF files against llama.cpp itself: tokens, logits and greedy answers, by architecture, type and tokenizer.

llama-cpp-python compiles llama.cpp when it is installed, so it is not among the pins; tests that need it are skipped
without. `pip install llama-cpp-python==0.3.36` takes five minutes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.artifacts.weight_values import tensors_of
from node.commands.export.gguf_file import GgufType, write_gguf
from node.commands.export.gguf_model import read_shape
from node.commands.export.gguf_tokenizer import LLAMA3, QWEN2, read_vocabulary
from node.runtime.errors import RunError, UsageError
from tests.support.disks import file_limit
from tests.support.paths import ROOT

gguf = pytest.importorskip("gguf", reason="needs pip install 'volery[gguf]'")

SMALL = {
    "vocab_size": 640, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.2, "bos_token_id": None,
    "eos_token_id": None,
}  # fmt: skip
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 1000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": False}),
    "llama": ("Llama", {"rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True}),
    "llama linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}),
    "mistral": ("Mistral", {"head_dim": 32, "sliding_window": None}),
}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
TEXTS = [
    "The quick brown fox, 12345 times over 3.14!", "I'LL can't WE'RE they've", "tabs\tand\n\n\nlines  \r\n  end   ",
    "émile naïve Übung Привет 世界 🚀👍🏽 កាន់តែ", " leading and trailing ", "def f(x):\n    return x ** 2 # 100%\n",
    "<|im_start|>user\nhi<|im_end|>\n<tool_call>{}", "a" * 40 + "...!!!???" * 5, "1 22 333 4444 55555",
]  # fmt: skip


def write_model(directory: Path, kind: str, *, rules: str = "qwen2", dtype: str = "float32") -> Path:
    """Write a model of random weights with a tokenizer of these rules that was trained on our documents."""
    import torch
    import transformers

    name, more = MODELS[kind]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**SMALL, **more})
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms of ones and biases of zeros would hide a mistake
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.to(getattr(torch, dtype)).save_pretrained(directory)
    write_tokenizer(directory, rules)
    return directory


def write_tokenizer(directory: Path, rules: str) -> None:
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )
    from transformers import PreTrainedTokenizerFast

    def split(pattern: str) -> Any:
        raw = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), raw])

    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    cuts = {
        "qwen2": lambda: split(QWEN2),
        "llama-bpe": lambda: split(LLAMA3),
        "smollm": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain]),
        "gpt-2": lambda: plain,
    }
    tokenizer = Tokenizer(models.BPE(ignore_merges=rules == "llama-bpe"))
    tokenizer.pre_tokenizer = cuts[rules]()
    tokenizer.decoder = decoders.ByteLevel()
    if rules == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    text = (ROOT / "docs" / "explain" / "threats.md").read_text()
    tokenizer.train_from_iterator([text, *TEXTS], trainer)
    tokenizer.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in SPECIAL[:3]])
    tokenizer.add_tokens([AddedToken(SPECIAL[3], special=False, normalized=False)])
    if rules == "llama-bpe":
        bos = tokenizer.token_to_id(SPECIAL[0])
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{SPECIAL[0]} $A", special_tokens=[(SPECIAL[0], bos)]
        )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[2], bos_token=SPECIAL[0])
    fast.chat_template = TEMPLATE
    fast.save_pretrained(directory)
    ends = [tokenizer.token_to_id(SPECIAL[2]), tokenizer.token_to_id(SPECIAL[0])]
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))


def written(directory: Path, path: Path, kind: GgufType | None = None) -> Path:
    write_gguf(directory, path, kind=kind, title="a model", licence="mit")
    return path


def llama(path: Path, **more: Any) -> Any:
    llama_cpp = pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")
    return llama_cpp.Llama(str(path), n_ctx=128, n_threads=1, verbose=False, logits_all=True, **more)


def logits_of(directory: Path, tokens: list[int]) -> np.ndarray[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        found: np.ndarray[Any, Any] = model(torch.tensor([tokens])).logits[0].numpy()
    return found


@pytest.mark.parametrize("kind", list(MODELS))
def test_llama_cpp_computes_the_same_logits(tmp_path: Path, kind: str) -> None:
    model = write_model(tmp_path / "m", kind)
    theirs = llama(written(model, tmp_path / "m.gguf", "f32"))
    tokens = [int(n) for n in np.random.default_rng(0).integers(0, 600, 100)]
    theirs.eval(tokens)
    ours = logits_of(model, tokens)
    found = np.array(theirs.scores[: len(tokens)])
    spread = float(ours.std())
    assert np.abs(found - ours).max() < 0.02 * spread, "llama.cpp keeps keys and values as float16"
    assert (found.argmax(1) == ours.argmax(1)).mean() > 0.98


@pytest.mark.parametrize(
    ("stored", "kind", "room"),
    [("bfloat16", None, 0.03), ("float32", "bf16", 0.1), ("float32", "f16", 0.05), ("float32", "q8_0", 0.2)],
    ids=["bf16 as it is", "f32 to bf16", "f32 to f16", "f32 to q8_0"],
)
def test_each_type_is_as_near_as_it_can_be(tmp_path: Path, stored: str, kind: GgufType | None, room: float) -> None:
    model = write_model(tmp_path / "m", "qwen3", dtype=stored)
    theirs = llama(written(model, tmp_path / "m.gguf", kind))
    tokens = [int(n) for n in np.random.default_rng(0).integers(0, 600, 60)]
    theirs.eval(tokens)
    ours = logits_of(model, tokens)
    assert np.abs(np.array(theirs.scores[: len(tokens)]) - ours).mean() < room * float(ours.std())


@pytest.mark.parametrize("rules", ["qwen2", "llama-bpe", "smollm", "gpt-2"])
def test_llama_cpp_reads_text_as_the_tokenizer_does(tmp_path: Path, rules: str) -> None:
    from transformers import AutoTokenizer

    model = write_model(tmp_path / "m", "qwen3", rules=rules)
    theirs = llama(written(model, tmp_path / "m.gguf"), vocab_only=True)
    ours = AutoTokenizer.from_pretrained(model)
    docs = [*TEXTS, *(ROOT / "docs" / "explain" / "threats.md").read_text().split("\n\n")[:40]]
    for text in docs:
        wanted = ours.encode(text)
        assert theirs.tokenize(text.encode(), add_bos=True, special=True) == wanted, text
    assert theirs.detokenize(wanted, special=True).decode() == ours.decode(wanted)
    said = theirs.metadata
    assert said["tokenizer.chat_template"] == TEMPLATE
    assert theirs.token_eos() == ours.convert_tokens_to_ids("<|im_end|>")
    assert int(said["tokenizer.ggml.eot_token_id"]) == ours.convert_tokens_to_ids("<|endoftext|>")


def test_every_value_is_read_back(tmp_path: Path) -> None:
    """The format's own package reads what was written: each value, dequantised."""
    model = write_model(tmp_path / "m", "qwen2")
    found = {one.name: one for one in gguf.GGUFReader(written(model, tmp_path / "m.gguf", "q8_0")).tensors}
    for tensor in tensors_of([model / "model.safetensors"]):
        name = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, 2).get_name(tensor.name, (".weight", ".bias"))
        one = found.pop(name)
        values = gguf.quants.dequantize(one.data, one.tensor_type)
        room = 0.0 if len(tensor.shape) == 1 else float(np.abs(tensor.values()).max()) / 200
        np.testing.assert_allclose(values.reshape(tensor.shape), tensor.values(), atol=room, rtol=0)
    assert not found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, "'GemmaForCausalLM' is not supported, only LlamaForCausalLM"),
        ({"architectures": None, "model_type": "phi3"}, "'phi3' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"sliding_window": 8, "use_sliding_window": True}, "sliding_window = 8"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "layer_types"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "of the kind 'yarn'"),
        ({"rms_norm_eps": None}, "a setting is missing"),
        ({"num_hidden_layers": 3}, "has no blk.2"),
        ({"num_hidden_layers": 1}, "'model.layers.1.*' has no place"),
        ({"tie_word_embeddings": False}, "has no output.weight"),
    ],
    ids=["class", "type", "act", "bias", "window", "layers", "rope", "eps", "deeper", "shallower", "head"],
)
def test_what_llama_cpp_would_compute_otherwise_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    model = write_model(tmp_path / "m", "qwen3")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(UsageError, match=words) as told:
        written(model, tmp_path / "m.gguf")
    assert "convert_hf_to_gguf.py" in str(told.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("normalizer", {"type": "NFKC"}, "splits text by unknown rules"),
        ("pre_tokenizer", {"type": "Whitespace"}, "known are those of qwen2, llama-bpe"),
        ("model", {"type": "Unigram"}, "Unigram. is not byte-level BPE"),
        ("decoder", None, "is not byte-level BPE"),
        ("added_tokens", [{"id": 9, "content": "x", "lstrip": True, "rstrip": False, "single_word": False}], "spaces"),
        ("added_tokens", 7, "has an unknown form"),
    ],
    ids=["normalizer", "cuts", "model", "decoder", "strips", "shape"],
)
def test_other_tokenizers_are_refused(tmp_path: Path, part: str, value: Any, words: str) -> None:
    write_tokenizer(tmp_path, "qwen2")
    found = json.loads((tmp_path / "tokenizer.json").read_text())
    assert read_vocabulary(tmp_path, 640).rules == "qwen2"
    (tmp_path / "tokenizer.json").write_text(json.dumps({**found, part: value}))
    with pytest.raises(UsageError, match=words):
        read_vocabulary(tmp_path, 640)


def test_an_id_beyond_the_models_rows_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "qwen2")
    with pytest.raises(UsageError, match="the model has only 600 rows"):
        read_vocabulary(tmp_path, 600)


def test_float16_that_is_too_small_is_refused(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    model = write_model(tmp_path / "m", "qwen3")
    weights = load_file(model / "model.safetensors")
    weights["model.embed_tokens.weight"][0, 0] = 1e6
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    assert torch.isfinite(weights["model.embed_tokens.weight"]).all()
    with pytest.raises(UsageError, match="Add --gguf-type bf16"):
        written(model, tmp_path / "m.gguf", "f16")
    assert written(model, tmp_path / "m.gguf", "bf16").exists()


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m", "qwen3")
    with file_limit(100_000), pytest.raises(OSError):  # noqa: PT011
        written(model, tmp_path / "m.gguf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]
    (model / "model.safetensors").write_bytes(b"no")
    with pytest.raises(RunError, match="cannot be read"):
        written(model, tmp_path / "m.gguf")


def test_settings_of_both_generations_of_configurations_mean_the_same() -> None:
    old = {**SMALL, "architectures": ["Qwen2ForCausalLM"], "rms_norm_eps": 1e-6, "rope_theta": 5e5}
    new = {**old, "rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    assert read_shape(old) == read_shape(new)
    assert read_shape(old).rope_theta == 5e5
