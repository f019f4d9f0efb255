"""Claim "seeded_sampler": tokens that others can repeat from a seed take hardly more time than other tokens.

The benchmark times a decoding step of a Qwen3 of about 50 M parameters, 64 rows behind 64 tokens each, on one thread of
a CPU, at vocabularies of 512, 32 k and 152 k. It times in turn the forward pass, plain sampling at a temperature with
the log probability of the drawn token, and the seeded sampler (`protocol.sampling`). Plain sampling is the faster of
`multinomial`, as in transformers' `generate`, and the race of exponentials, as in vLLM.

Bars: sampler_pct_32k and sampler_pct_152k, the extra time of the seeded sampler over plain sampling, in percent of a
step with plain sampling.

Invariants:

- All three see the same logits.
- The seeded sampler's tokens pass its own verification.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.cache_utils import DynamicCache

import protocol.sampling
from benchmarks.harness import Bar, BenchmarkError, arguments, conclude, main, median, number, say, table

ROWS = 64
BEHIND = 64
"""Tokens before each row."""
TEMPERATURE = 0.8
PCT_AT_MOST = 10.0
STEPS = 5
"""Steps timed in one repetition, after one that is not timed."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model of about 50 M parameters around a vocabulary."""

    name: str
    vocab_size: int
    hidden: int
    layers: int


SHAPES = (
    Shape(name="512", vocab_size=512, hidden=512, layers=16),
    Shape(name="32k", vocab_size=32_000, hidden=512, layers=11),
    Shape(name="152k", vocab_size=151_936, hidden=256, layers=14),
)


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """Times of one step."""

    forward: float
    multinomial: float
    exponential: float
    seeded: float

    @property
    def plain(self) -> float:
        return min(self.multinomial, self.exponential)

    @property
    def pct(self) -> float:
        """The extra time of the seeded sampler, in percent of a step with plain sampling."""
        return 100 * (self.seeded - self.plain) / (self.forward + self.plain)


def make_model(shape: Shape) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden,
        intermediate_size=3 * shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.hidden // 64,
        num_key_value_heads=max(1, shape.hidden // 128),
        head_dim=64,
        tie_word_embeddings=True,
        max_position_embeddings=1024,
    )
    return Qwen3ForCausalLM(config).eval()


def multinomial(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens [B] and their log probabilities [B], as `generate` draws them."""
    probabilities = torch.softmax(logits / TEMPERATURE, -1)
    tokens = torch.multinomial(probabilities, 1)
    return tokens[:, 0], probabilities.gather(1, tokens)[:, 0].log()


def exponential(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens [B] and their log probabilities [B], as vLLM draws them without a seed."""
    probabilities = torch.softmax(logits / TEMPERATURE, -1)
    tokens = (probabilities / torch.empty_like(probabilities).exponential_()).argmax(-1, keepdim=True)
    return tokens[:, 0], probabilities.gather(1, tokens)[:, 0].log()


@torch.inference_mode()
def measured(model: Qwen3ForCausalLM, seed: int) -> Seconds:
    """Return medians over STEPS steps of one batch."""
    generator = torch.Generator().manual_seed(seed)
    vocab_size: int = model.config.vocab_size
    cache = DynamicCache(config=model.config)
    prompt = torch.randint(vocab_size, (ROWS, BEHIND), generator=generator)
    tokens = model(input_ids=prompt, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1].argmax(-1)
    seeds = torch.arange(ROWS) + (seed << 20)
    times: dict[str, list[float]] = {"forward": [], "multinomial": [], "exponential": [], "seeded": []}
    for step in range(STEPS + 1):
        begun = time.perf_counter()
        output = model(input_ids=tokens[:, None], past_key_values=cache, use_cache=True, logits_to_keep=1)
        logits: torch.Tensor = output.logits[:, -1]
        forward = time.perf_counter() - begun
        positions = torch.full((ROWS,), step)
        draws: list[tuple[str, Callable[[], tuple[torch.Tensor, torch.Tensor]]]] = [
            ("multinomial", lambda logits=logits: multinomial(logits)),
            ("exponential", lambda logits=logits: exponential(logits)),
            ("seeded", lambda logits=logits, at=positions: seeded(logits, seeds, at)),
        ]
        drawn = {}
        # The first sampler finds the logits in no cache, so they take turns.
        for name, draw in draws[step % 3 :] + draws[: step % 3]:
            begun = time.perf_counter()
            drawn[name] = draw()
            if step:
                times[name].append(time.perf_counter() - begun)
        if step:
            times["forward"].append(forward)
        tokens = drawn["seeded"][0]
        require_verifiable(logits, seeds, positions, tokens)
    return Seconds(**{name: median(taken) or 0.0 for name, taken in times.items()})


def seeded(logits: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, logprobs = protocol.sampling.sample(torch, logits, seeds, positions, TEMPERATURE)
    return tokens, logprobs


def require_verifiable(
    logits: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor
) -> None:
    gaps = protocol.sampling.verify_tokens(torch, logits, seeds, positions, tokens, TEMPERATURE)
    if bool((gaps.worst > 1e-4).any()):
        raise BenchmarkError("the sampled tokens cannot be verified, so their speed is not a valid figure.")


def middle(found: Sequence[Seconds]) -> Seconds:
    names = ("forward", "multinomial", "exponential", "seeded")
    return Seconds(**{name: median([getattr(one, name) for one in found]) or 0.0 for name in names})


def claim() -> int:
    asked = arguments(__doc__ or "", reps=5).parse_args()
    torch.set_num_threads(1)
    rows, percent, whole = [], {}, {}
    for shape in SHAPES:
        model = make_model(shape)
        found = [measured(model, asked.seed + repetition) for repetition in range(asked.reps)]
        one, percent[shape.name] = middle(found), median([each.pct for each in found])
        whole[shape.name] = 100 * one.seeded / one.forward
        size = sum(parameter.numel() for parameter in model.parameters()) / 1e6
        timed = [number(1000 * value) for value in (one.forward, one.multinomial, one.exponential, one.seeded)]
        rows.append([shape.name, f"{size:.0f} M", *timed, number(percent[shape.name], 1)])
    header = [
        "vocabulary",
        "model",
        "forward ms",
        "multinomial ms",
        "exponentials ms",
        "seeded ms",
        "more, % of a step",
    ]
    say(f"a decoding step of {ROWS} rows, one thread")
    say(table(header, rows))
    bars = [Bar(name=f"sampler_pct_{name}", value=percent[name], at_most=PCT_AT_MOST) for name in ("32k", "152k")]
    figures = {f"pct_{name}": value for name, value in percent.items()}
    return conclude(
        "seeded_sampler", bars, figures | {f"of_forward_pct_{name}": value for name, value in whole.items()}
    )


if __name__ == "__main__":
    main(claim)
