"""Claim "audit_gpu": honest GPUs stay within the margins of audits, and peers that cheat do not.

Policies of 0.5 M, 51 M and 600 M parameters are taught and trained on the card. Engines on the card (float32, float32
with TF32 products, bfloat16) and on the processor (float32, except for the 600 M policy) generate completions of each.
All completions are audited on the card in float32 and bfloat16, and on the processor in float32. Cheats run on the
card: weights of another model, the right weights in 4 bits, and the version before.

Bars, each the worst of models and pairs:

- margin_rates_held: the largest ratio of an observed rate's upper bound (95 %) to the rate that
  `learner/trust/margins.py` allows, for each pair over all models together; and the same for each model by its lower
  bound.
- float32_rates_held: the same for float32 engines audited in float32, and for TF32 engines, all pairs of each kind
  together, by the margins of swarms that compute in float32 (`[trust] arithmetic = "float32"`).
- false_positive_max: the share of honest sets that either set of margins suspects within 10^6 tokens.
- detect_other, detect_4bit and detect_lag1: the share of sets of 8192 tokens that is detected, whatever the engines
  compute in, for models up to 51 M, with log probabilities relabelled or not.

Without a GPU nothing can be measured: the benchmark says so and exits with 1. `--pools DIR` stores the audit results,
and judges them again if DIR holds those of an earlier run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import trio

from benchmarks.audits.cards import (
    FOUR_BITS,
    LAG,
    OTHER,
    SHAPES,
    Amounts,
    Card,
    Passed,
    Shape,
    cards,
    engines_of,
    passed_round,
    teach_and_train,
)
from benchmarks.audits.evidence import Pool, detected, lower_bound, tokens_until, upper_bound
from benchmarks.audits.recording import HONEST
from benchmarks.audits.verdict import BAN, JUDGED, SETS, SUSPECT, Tally
from benchmarks.harness import Bar, BenchmarkError, arguments, conclude, main, number, say, scratch, table
from learner.training.model.loading import quiet_transformers
from learner.trust.ban_evidence import Margin
from learner.trust.margins import Arithmetic, margins_of
from node.engine.vllm_worker.model_contents import read_contents

QUICK = Amounts(honest=4, by_processor=2, cheat=2)
LONGEST = 1_000_000
DETECTED_OF = ("0.5 M", "51 M")


class Model:
    """Audit results of one model, and the margins that apply to it."""

    def __init__(self, parameters: int, found: Passed) -> None:
        self.parameters, self.found = parameters, found
        self.margins, self.strict = margins_of(parameters), margins_of(parameters, Arithmetic.FLOAT32)

    def honest(self) -> dict[tuple[Card, Card], Pool]:
        return {(maker, looker): pool for (maker, deed, looker), pool in self.found.items() if deed == HONEST}


def is_strict(pair: tuple[Card, Card]) -> bool:
    return all(card.is_float32 for card in pair)


def kind_of(pair: tuple[Card, Card]) -> str:
    """Return the kind by which pairs are counted together where no single pair has enough tokens."""
    return "TF32 to fp32" if any(card.tf32 for card in pair) else "fp32 to fp32"


def held(models: Sequence[Model], margins: Callable[[Model], Sequence[Margin]], strict: bool) -> tuple[float, str]:
    """Return the largest ratio of observed to allowed rates, as the bars define it, with its pair and margin."""
    worst = (0.0, "nothing")
    together = Tally()
    for model in models:
        alone = Tally()
        for pair, pool in model.honest().items():
            if not strict or is_strict(pair):
                alone.add(kind_of(pair) if strict else pair, margins(model), pool)
        together.above += alone.above
        together.trials += alone.trials
        worst = max(worst, _largest(alone, lower_bound))
    return max(worst, _largest(together, upper_bound))


def _largest(tally: Tally, bound: Callable[[int, int], float]) -> tuple[float, str]:
    ratios = [
        (bound(tally.above[key], trials) / key[1].rate, f"{_whose(key[0])}, {name_of(key[1])}")
        for key, trials in tally.trials.items()
        if trials
    ]
    return max(ratios, default=(0.0, "nothing"))


def _whose(key: object) -> str:
    return f"{key[0]} to {key[1]}" if isinstance(key, tuple) else str(key)


def name_of(margin: Margin) -> str:
    return f"lead {margin.leads}" if margin.is_band else f"{margin.measure.value} > {margin.above:g}"


def shown_honest(model: Model, strict: bool) -> str:
    margins = model.strict if strict else model.margins
    rows = []
    for pair, pool in sorted(model.honest().items()):
        if strict and not is_strict(pair):
            continue
        counts = pool.counted(margins)
        rows.append(
            [
                f"{pair[0]} to {pair[1]}",
                pool.tokens,
                f"{100 * float((pool.gaps > 0).mean()):.3f}",
                f"{pool.gaps.max():.5f}",
                f"{pool.leads[pool.gaps > 0].max(initial=0.0):.5f}",
                f"{np.quantile(pool.apart, 0.5):.6f}",
                f"{np.quantile(pool.apart, 0.999):.5f}",
                f"{pool.apart.max():.5f}",
                *(f"{above.sum():.0f} of {trials.sum():.0f}" for above, trials in counts),
            ]
        )
    header = ["peer to verifier", "tokens", "any gap %", "largest", "by a lead of", "logprob 50 %", "99.9 %", "largest"]
    return table([*header, *map(name_of, margins)], rows)


@dataclass(frozen=True, kw_only=True)
class Detected:
    """Detection of one deed over all pairs.

    `share`: of sets of JUDGED tokens that are suspected, the minimum over pairs for a cheat, the maximum for honest
    work. `until_ban`: the most tokens until a ban (a median; inf: none within LONGEST). `ever`: the largest share of
    sets that is ever suspected. `off`: the largest mean error of the claimed log probabilities, in nats.
    """

    share: float
    until_ban: float
    ever: float
    off: float


def detection(model: Model, strict: bool, seed: int) -> dict[str, Detected]:
    """Return the detection by deed, with its own log probabilities and with those of the claimed weights."""
    margins = model.strict if strict else model.margins
    found: dict[str, list[Detected]] = {}
    for (maker, deed, looker), pool in sorted(model.found.items()):
        if strict and not is_strict((maker, looker)):
            continue
        for name, claimed in ((deed, pool), *([] if deed == HONEST else [(f"{deed}, relabelled", pool.relabelled())])):
            at_suspect, at_ban = tokens_until(claimed, margins, (SUSPECT, BAN), sets=SETS, longest=LONGEST, seed=seed)
            [share] = detected(at_suspect, [JUDGED])
            one = Detected(
                share=share,
                until_ban=float(np.median(at_ban)),
                ever=float(np.isfinite(at_suspect).mean()),
                off=float(claimed.apart.mean()),
            )
            found.setdefault(name, []).append(one)
    return {
        name: Detected(
            share=(max if name == HONEST else min)(one.share for one in several),
            until_ban=max(one.until_ban for one in several),
            ever=max(one.ever for one in several),
            off=max(one.off for one in several),
        )
        for name, several in sorted(found.items())
    }


def shown_detection(found: Mapping[str, Detected]) -> str:
    rows = [[name, number(one.share, 3), f"{one.until_ban:,.0f}", f"{one.off:.4f}"] for name, one in found.items()]
    return table(["deed", "found of 8192", "tokens until the ban", "nats off"], rows)


# Stored audit results.

FIGURES = ("gaps", "apart", "leads")


def keep(directory: Path, name: str, model: Model) -> None:
    """Write the model's results to a file: numbers by pair, deed and figure, so that loading needs no unpickling."""
    arrays = {"parameters": np.array(model.parameters)}
    for (maker, deed, looker), pool in model.found.items():
        key = "|".join((*_words(maker), deed, *_words(looker)))
        arrays |= {f"{key}|{one}": getattr(pool, one).astype(np.float32) for one in FIGURES}
        arrays[f"{key}|contexts"] = np.diff(pool.contexts, prepend=0)  # mostly consecutive, so it compresses to nothing
        arrays[f"{key}|starts"] = pool.starts
    directory.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(directory / f"{name.replace(' ', '_')}.npz", **arrays)  # type: ignore[arg-type]


def kept(directory: Path, name: str) -> Model | None:
    """Return what `keep` wrote, or None without such a file."""
    path = directory / f"{name.replace(' ', '_')}.npz"
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as arrays:
        found: Passed = {}
        for key in arrays.files:
            *words, figure = key.split("|")
            if figure == "gaps":
                stored = {one: arrays["|".join([*words, one])] for one in (*FIGURES, "contexts", "starts")}
                found[_card(words[:4]), words[4], _card(words[5:])] = Pool(
                    **{one: stored[one].astype(np.float64) for one in FIGURES},
                    contexts=np.cumsum(stored["contexts"]),
                    starts=stored["starts"],
                )
        return Model(int(arrays["parameters"]), found)


def _words(card: Card) -> tuple[str, ...]:
    return card.engine, card.device, card.dtype, str(int(card.tf32))


def _card(words: Sequence[str]) -> Card:
    engine, device, dtype, tf32 = words
    return Card(engine=engine, device=device, dtype=dtype, tf32=tf32 == "1")


# The whole run.


def by_processor(name: str) -> bool:
    """Return whether a processor can keep up with this model."""
    return SHAPES[name].amounts.by_processor > 0


async def measured(root: Path, names: Sequence[str], quick: bool, device: str, seed: int) -> Mapping[str, Model]:
    models = {}
    wanted = [card for card in cards(device) if card.engine != "CPU" or any(map(by_processor, names))]
    async with engines_of(wanted) as engines:
        for name in names:
            shape: Shape = SHAPES[name]
            began = time.monotonic()
            deeds, loss = await teach_and_train(root / name.replace(" ", "-"), shape, device, engines[wanted[0]], seed)  # type: ignore[arg-type]
            parameters = read_contents(deeds[0].claimed).parameters
            say(f"{name}: {parameters} parameters, taught in {time.monotonic() - began:.0f} s to {loss:.3f} nats")
            able = {card: engine for card, engine in engines.items() if by_processor(name) or card.engine != "CPU"}
            amounts = QUICK if quick else shape.amounts
            models[name] = Model(parameters, await passed_round(able, deeds, shape, amounts, seed))
            say(f"{name}: made and audited in {time.monotonic() - began:.0f} s")
    return models


def claim() -> int:
    parser = arguments(__doc__ or "", reps=1)
    parser.add_argument("--only", choices=list(SHAPES), action="append", help="only this model; may be repeated")
    parser.add_argument("--quick", action="store_true", help="a few groups of each, to check that it runs")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu: only to check that it runs")
    parser.add_argument("--pools", type=Path, metavar="DIR", help="store audit results here, or judge stored ones")
    asked = parser.parse_args()
    names = asked.only or list(SHAPES)
    models = {name: model for name in names if asked.pools and (model := kept(asked.pools, name))}
    device = "judged again"
    if missing := [name for name in names if name not in models]:
        if asked.device == "cuda" and not torch.cuda.is_available():
            raise BenchmarkError(
                "no GPU here, so there is no figure; run it on a machine with an NVIDIA GPU and CUDA's torch"
            )
        device = torch.cuda.get_device_name() if asked.device == "cuda" else "no GPU"
        quiet_transformers()
        with scratch(asked.keep) as root:
            new = trio.run(measured, root, missing, asked.quick, asked.device, asked.seed)
        for name, model in new.items():
            models[name] = model
            if asked.pools:
                keep(asked.pools, name, model)
    detections = {}
    for name, model in models.items():
        for strict in (False, True):
            say(f"\n{name}, margins of {'float32' if strict else 'any'} arithmetic: honest work\n")
            say(shown_honest(model, strict))
            detections[name, strict] = detection(model, strict, asked.seed)
            say("\n" + shown_detection(detections[name, strict]))
    return conclude("audit_gpu", bars_of(models, detections), {"device": device})


def bars_of(models: Mapping[str, Model], detections: Mapping[tuple[str, bool], Mapping[str, Detected]]) -> list[Bar]:
    of_any, any_where = held(list(models.values()), lambda model: model.margins, strict=False)
    of_float32, float32_where = held(list(models.values()), lambda model: model.strict, strict=True)
    say(f"\nClosest to its margin: {any_where}; in float32: {float32_where}.")

    def least(cheat: str) -> float | None:
        found = [
            one.share
            for (name, strict), by_deed in detections.items()
            if name in DETECTED_OF and not strict
            for deed, one in by_deed.items()
            if deed.split(",")[0] == cheat
        ]
        return min(found, default=None)

    return [
        Bar(name="margin_rates_held", value=of_any, at_most=1.0),
        Bar(name="float32_rates_held", value=of_float32, at_most=1.0),
        Bar(name="false_positive_max", value=max(by[HONEST].ever for by in detections.values()), at_most=0.01),
        Bar(name="detect_other", value=least(OTHER), at_least=0.99),
        Bar(name="detect_4bit", value=least(FOUR_BITS), at_least=0.99),
        Bar(name="detect_lag1", value=least(LAG), at_least=0.99),
    ]


if __name__ == "__main__":
    main(claim)
