"""Write a model directory whose policy generates a fixed number of tokens in each turn, and then stops.

Both sides of a comparison must generate the same number of tokens, and a model of random weights stops anywhere. This
one is a chain: the next token depends only on the last one. After a prompt come the beginning of a tool call and words,
each one of `CHOICES` with equal probability. The end of the call and the token that ends the turn come last. Attention
and MLPs are computed as in any model, and add nothing, since their output projections are zero.

Invariants:

- Every turn has `tokens` tokens, the one that ends it included, whatever came before.
- Models of different `tokens` have the same shapes if `positions` is the same, so a token costs the same.
- A turn is a call of the tool `wait` in the format of Hermes, with the words as its one argument.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CHOICES = 2
"""Words to choose from at each place, so that episodes of a group soon differ, as those of a real policy do."""

OPENING = '<tool_call>{"name": "wait", "arguments": {"text": "'
CLOSING = '"}}</tool_call>'
START, END = "<|im_start|>", "<|im_end|>"

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The chain begins after its last character. It shows no tools: each letter is a token here, and a description would be
longer than the completion."""

SURENESS = 40.0
"""The logit of possible next tokens. The root mean square of the others is an eighth of it, since codes of places are
nearly orthogonal; all others together have a probability of less than one in ten million."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The dimensions that set the cost of a token. `positions` are the tokens of the longest turn.

    There are many thin layers, so that reading a token costs a small part of generating one, as on GPUs. Every turn
    reads the whole transcript again, since nodes keep nothing between two leases.
    """

    positions: int
    hidden: int = 64
    layers: int = 8
    heads: int = 4


def write_chain_model(directory: Path, shape: Shape, tokens: int) -> int:
    """Write config, weights, tokenizer and chat template of a policy whose turns have `tokens` tokens.

    Return the size of its vocabulary.
    """
    assert 4 <= tokens <= shape.positions, "an opening, a word, a closing and the end"
    directory.mkdir(parents=True)
    words = [f"{chr(ord('a') + choice)}{place} " for place in range(shape.positions) for choice in range(CHOICES)]
    tokenizer = _tokenizer(words)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": END, "tokenizer_class": "PreTrainedTokenizerFast"}), encoding="utf-8"
    )
    (directory / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    chain = [
        [OPENING],
        *([words[CHOICES * place + choice] for choice in range(CHOICES)] for place in range(tokens - 3)),
    ]
    chain += [[CLOSING], [END]]
    _write_weights(directory, shape, tokenizer, chain)
    return int(tokenizer.get_vocab_size())


def _tokenizer(words: list[str]) -> Tokenizer:
    """Return a tokenizer in which every byte is a token, and so is each part of a call."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in (START, END)])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in (OPENING, CLOSING, *words)])
    return tokenizer


def _write_weights(directory: Path, shape: Shape, tokenizer: Tokenizer, chain: list[list[str]]) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=shape.hidden,
        intermediate_size=4 * shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(END),
        pad_token_id=None,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        read, say = model.model.embed_tokens.weight, model.lm_head.weight
        read.zero_()
        say.zero_()
        # Nearly orthogonal, so that there may be more places than dimensions; the last is for tokens without successor.
        codes = torch.randint(0, 2, (len(chain) + 1, shape.hidden)).to(read.dtype) * 2 - 1
        read[:] = codes[-1]
        before = [tokenizer.encode("\n").ids[-1]]
        for place, texts in enumerate(chain):
            read[before] = codes[place]
            before = [tokenizer.encode(text).ids[0] for text in texts]
            say[before] = codes[place] * SURENESS / shape.hidden
    model.save_pretrained(directory)
