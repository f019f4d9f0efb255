"""Claim "audit": audits detect rollouts that were generated with other weights, from their tokens alone.

Our engines (transformers, vLLM; float32, bfloat16) generate completions of a 0.2 M and a 50 M policy in training, from
the published weights and from others. The others are: another model, a smaller one, the same in 4 bits, int8 and fp8,
versions 1, 3 and 10 steps old at learning rates 5e-4 and 2e-5, and greedy decoding. The claimed log probabilities are
those of the sampled policy, or relabelled with exactly those of the named policy. A learner's engine audits them in
float32 and in bfloat16. Each test judges sets of 64 to 10^6 tokens, made of recorded groups drawn with replacement
(`benchmarks/audits/`).

Bars, each the worst of models, engines and number formats:

- detect_other, detect_4bit, detect_lag1 (every lag, at 5e-4) and detect_relabelled (all of these): the share of sets of
  8192 tokens whose evidence reaches 100 to 1. Honest evidence ever reaches it with a probability of 1 %.
- false_positive_max: the share of honest sets whose evidence reaches it within 10^6 tokens.
- margin_rates_held: the largest ratio of an observed rate's upper bound (95 %) to the rate that
  `learner/trust/margins.py` allows, for each pair over all models together; and the same for each model by its lower
  bound.
- bytes_per_token: what a record carries only for audits.

Invariant: honest work is audited by margins that were set from other seeds, except for one rate that a token of seed 0
has raised (`MEDIUM`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import trio

from benchmarks.audits.picture import draw
from benchmarks.audits.policies import FAST, LAGS, LATER_STEPS, SLOW, PolicySet, large, tiny
from benchmarks.audits.recording import (
    BARRED,
    HONEST,
    OWN,
    PLAIN,
    RELABELLED,
    SHORT,
    Amounts,
    Recorded,
    lag_name,
    record,
)
from benchmarks.audits.toploc_proofs import CHUNK, PUBLISHED_BYTES, Toploc, missing, prove_all
from benchmarks.audits.verdict import (
    EVIDENCE,
    GAPS,
    JUDGED,
    LOGPROBS,
    SETS,
    STRICT,
    TOPLOC,
    Judged,
    Row,
    held_by_pair,
    held_together,
    judge,
)
from benchmarks.engines import vllm_python
from benchmarks.harness import ROOT, Bar, arguments, conclude, main, number, say, scratch, table
from learner.training.model.loading import quiet_transformers
from learner.trust.margins import Arithmetic, margins_of
from node.engine.vllm_worker.model_contents import read_contents
from protocol.accounting.claims import CostClaim
from protocol.core.codec import pack_logprobs, pack_tokens
from protocol.core.envelope import sign
from protocol.core.identity import Keypair
from protocol.core.ids import ManifestHash, PolicyVersion, SwarmId
from protocol.work import RolloutRecord, Sampler, Span, Timing

PICTURE = ROOT / "docs" / "images" / "audit.png"

DETECTED_AT_LEAST = 0.99
FALSE_POSITIVES_AT_MOST = 0.01

LAGGED = tuple(lag_name(lag, FAST) for lag in LAGS)
SLOWLY = tuple(lag_name(lag, SLOW) for lag in LAGS)
CHEATS = ("other", "smaller", "4-bit", *LAGGED, "greedy", "int8", "fp8", *SLOWLY)
PROVEN = ("other", "4-bit", lag_name(1, FAST), "int8", "fp8", lag_name(1, SLOW))
"""Cheats that TOPLOC judges; the first one relabelled, too."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """Amounts recorded of a model: groups of honest work, of each cheat, and of those with TOPLOC proofs."""

    amounts: Amounts
    proven: int


TINY, LATER, LARGE = "tiny", "tiny, later", "50 M"

POLICY_SETS: Mapping[str, tuple[str, Callable[[Path, int, int], PolicySet]]] = {
    TINY: ("tiny", tiny),
    LATER: ("tiny", partial(tiny, steps=LATER_STEPS)),
    LARGE: ("large", large),
}
"""By model: the directory that it shares with models made the same way, and the function that makes it."""

JUDGED_MODELS = (TINY, LARGE)
"""Models whose cheats the bars judge. A token that a policy is nearly certain of says little about its source, so a
policy late in its run needs more tokens to detect the same cheats; it is shown beside them."""

FULL = {
    TINY: Size(amounts=Amounts(honest=800, cheat=240), proven=240),
    LATER: Size(amounts=Amounts(honest=500, cheat=240), proven=240),
    LARGE: Size(amounts=Amounts(honest=104, cheat=18), proven=16),
}
QUICK = Size(amounts=Amounts(honest=6, cheat=2), proven=2)


@dataclass(frozen=True, kw_only=True)
class Model:
    """Results of one model."""

    judged: Judged
    recorded: Recorded
    toploc: Toploc | None


def measured(policy_set: PolicySet, size: Size, vllm: Path | None, seed: int) -> Model:
    recorded = trio.run(record, policy_set, size.amounts, vllm, seed)
    torch.set_num_threads(1)  # its seconds are compared with those of engines with one thread
    toploc = None if missing() else prove_all(recorded, PROVEN, size.proven)
    parameters = read_contents(policy_set.current).parameters
    margins, strict = margins_of(parameters), margins_of(parameters, Arithmetic.FLOAT32)
    return Model(judged=judge(recorded, toploc, margins, strict, seed), recorded=recorded, toploc=toploc)


# Tables


def shown_detection(model: Model) -> str:
    """Return, by cheat, what the shipped test finds in the pair of engines and number formats that detects it least."""
    judged, rows = model.judged, []
    shipped, strict = judged.curves[EVIDENCE], judged.curves[STRICT]
    for deed in CHEATS:
        for claims in (OWN, RELABELLED):
            curves = [curve for row, curve in shipped.items() if (row.deed, row.claims) == (deed, claims)]
            if not curves:
                continue
            worst = min(curves, key=lambda curve: (curve.at(JUDGED), -(curve.needed or float("inf"))))
            banned = max(judged.banned[row] for row in judged.pools if (row.deed, row.claims) == (deed, claims))
            shares = [number(worst.at(size), 3) for size in (1024, JUDGED, 65_536, 1_000_000)]
            alike = [curve for row, curve in strict.items() if (row.deed, row.claims) == (deed, claims)]
            in_float32 = min(curve.at(JUDGED) for curve in alike)
            needed = max(curve.needed or float("inf") for curve in alike)
            rows.append(
                [deed, claims, *shares, _tokens(worst.needed), _tokens(banned), number(in_float32, 3), _tokens(needed)]
            )
    header = ["cheat", "log probabilities", "1024", "8192", "65,536", "10^6", "tokens for 0.9", "tokens until the ban"]
    header += ["float32: 8192", "tokens for 0.9"]
    return table(header, rows)


def shown_tests(model: Model) -> str:
    """Return every test at JUDGED tokens, on the same completions where it has them: the plainest engine, float32."""
    judged, rows = model.judged, []
    tests = [test for test in (EVIDENCE, STRICT, GAPS, LOGPROBS, TOPLOC) if test in judged.curves]
    for deed in (HONEST, *CHEATS):
        for claims in (OWN, RELABELLED):
            row = Row(deed=deed, claims=claims, peer=PLAIN, dtype="float32")
            if row in judged.pools:
                found = [judged.curves[test].get(row) for test in tests]
                rows.append([deed, claims, *(number(one.at(JUDGED) if one else None, 3) for one in found)])
    return table(["deed", "log probabilities", *tests], rows)


def shown_honest(model: Model) -> str:
    """Return a table of what a verifier sees of honest work, by pair."""
    judged, rows = model.judged, []
    for row, pool in sorted(judged.pools.items()):
        if row.deed != HONEST:
            continue
        counts = pool.counted(judged.margins)
        held = [f"{above.sum():.0f} of {trials.sum():.0f}" for above, trials in counts]
        rows.append(
            [
                f"{row.peer} to {SHORT[row.dtype]}",
                pool.tokens,
                f"{100 * float((pool.gaps > 0).mean()):.2f}",
                f"{np.quantile(pool.gaps, 0.999):.4f}",
                f"{pool.gaps.max():.4f}",
                f"{np.quantile(pool.apart, 0.5):.5f}",
                f"{np.quantile(pool.apart, 0.999):.4f}",
                f"{pool.apart.max():.4f}",
                *held,
                number(judged.curves[EVIDENCE][row].shares[-1], 4),
                number(max(judged.curves[LOGPROBS][row].shares), 3),
            ]
        )
    named = [f"lead {one.leads}" if one.is_band else f"{one.measure.value} > {one.above:g}" for one in judged.margins]
    header = ["peer to verifier", "tokens", "any gap %", "gap 99.9 %", "largest", "logprob 50 %", "99.9 %", "largest"]
    return table([*header, *named, "suspected", "by log probabilities"], rows)


def _tokens(value: float | None) -> str:
    return "-" if value is None or value == float("inf") else f"{value:,.0f}"


def shown_costs(models: Mapping[str, Model], extra: float) -> str:
    rows = []
    for name, model in models.items():
        for dtype, seconds in sorted(model.recorded.verify_s.items(), reverse=True):
            rows.append([name, f"ours, {SHORT[dtype]}", number(extra, 1), f"{1e6 * seconds:.0f}"])
            rows.append(
                [name, f"log probabilities, {SHORT[dtype]}", "0.0", f"{1e6 * model.recorded.score_s[dtype]:.0f}"]
            )
        if model.toploc is not None:
            rows.append(
                [name, "TOPLOC, fp32", number(model.toploc.bytes_per_token, 1), f"{1e6 * model.toploc.verify_s:.0f}"]
            )
    return table(["model", "test", "bytes a token", "microseconds a token"], rows)


# The bars


def least(models: Sequence[Judged], deeds: Sequence[str], claims: str) -> float | None:
    """Return the least share that the shipped test finds over all models; None where one was not measured."""
    found = [judged.worst(EVIDENCE, deeds, claims) for judged in models]
    known = [value for value in found if value is not None]
    return min(known) if len(known) == len(found) and known else None


def bars_of(found_of: Mapping[str, Judged], extra: float) -> list[Bar]:
    """Return the bars by model name: cheats must be detected for JUDGED_MODELS, honest work spared for every model."""
    judged_all = list(found_of.values())
    false_positives = [
        curve.shares[-1] for judged in judged_all for test in (EVIDENCE, STRICT) for curve in judged.honest(test)
    ]
    rates = [ratio for judged in judged_all for ratio in judged.rates.values()]
    rates += [ratio for ratio in (held_by_pair(judged_all), held_together(judged_all)) if ratio is not None]
    models = [found_of[name] for name in JUDGED_MODELS if name in found_of]
    found = {
        "detect_other": least(models, ["other", "smaller"], OWN),
        "detect_4bit": least(models, ["4-bit"], OWN),
        "detect_lag1": least(models, LAGGED, OWN),
        "detect_relabelled": least(models, BARRED, RELABELLED),
    }
    return [
        *(Bar(name=name, value=value, at_least=DETECTED_AT_LEAST) for name, value in found.items()),
        Bar(name="false_positive_max", value=max(false_positives), at_most=FALSE_POSITIVES_AT_MOST),
        Bar(name="margin_rates_held", value=max(rates), at_most=1.0),
        Bar(name="bytes_per_token", value=extra, at_most=0.0),
    ]


def bytes_for_audits() -> float:
    """Return the bytes that a token adds to a record beyond its id and the log probability that training reads.

    An audit uses only what the record and its lease say (`learner.trust.audit_queue.work_of`).
    """
    author = Keypair.generate()

    def size(tokens: int) -> int:
        body = RolloutRecord(
            lease=bytes(16),
            index=0,
            tokens=pack_tokens([1] * tokens),
            logprobs=pack_logprobs([-1.0] * tokens),
            spans=[Span(0, tokens, PolicyVersion(1, 0), ManifestHash(bytes(32)))],
            sampler=Sampler(),
            timing=Timing(started_ms=0, generation_ms=0),
            cost=CostClaim(engine_s=0.0),
        )
        return len(sign(author, SwarmId(bytes(32)), body))

    few, many = 1024, 2048  # numbers with the same count of digits, so that only the tokens differ
    read_anyway = len(pack_tokens([1])) + len(pack_logprobs([-1.0]))
    return (size(many) - size(few)) / (many - few) - read_anyway


def claim() -> int:
    parser = arguments(__doc__ or "", reps=1)
    parser.add_argument("--vllm", type=Path, metavar="PYTHON", help="interpreter of an environment with vLLM")
    parser.add_argument("--only", choices=sorted(FULL), action="append", help="only this model; may be repeated")
    parser.add_argument(
        "--quick", action="store_true", help="a few groups of each, to check that it runs; misses the bars"
    )
    parser.add_argument("--picture", type=Path, default=PICTURE)
    asked = parser.parse_args()
    quiet_transformers()
    vllm = vllm_python(asked.vllm)
    if why := missing():
        say(f"TOPLOC is left out ({why}); by its paper a proof of {CHUNK} tokens has {PUBLISHED_BYTES} bytes.")
    models: dict[str, Model] = {}
    with scratch(asked.keep) as root:
        for name in asked.only or FULL:
            size, (directory, policies_of) = QUICK if asked.quick else FULL[name], POLICY_SETS[name]
            began = time.monotonic()
            torch.set_num_threads(os.cpu_count() or 1)
            policy_set = policies_of(root / directory, asked.seed, size.amounts.honest)
            say(f"\n{name}: policies made in {time.monotonic() - began:.0f} s")
            models[name] = measured(policy_set, size, vllm, asked.seed)
            say(f"{name}: recorded, audited and judged in {time.monotonic() - began:.0f} s, {SETS} sets of each size")
            for shown in (shown_detection, shown_tests, shown_honest):
                say("\n" + shown(models[name]))
    extra = bytes_for_audits()
    say("\n" + shown_costs(models, extra))
    found = {name: model.judged for name, model in models.items()}
    draw(found, asked.picture)
    return conclude("audit", bars_of(found, extra), figures_of(models))


def figures_of(models: Mapping[str, Model]) -> dict[str, float | None]:
    """Return, by cheat, the tokens that detect nine sets in ten in the worst pair; costs; and shares of honest bans."""
    found: dict[str, float | None] = {}
    for name, model in models.items():
        for deed in CHEATS:
            curves = [
                curve for row, curve in model.judged.curves[EVIDENCE].items() if (row.deed, row.claims) == (deed, OWN)
            ]
            needed = [curve.needed for curve in curves]
            found[f"tokens for 0.9, {deed}, {name}"] = None if None in needed else max(one or 0.0 for one in needed)
        found[f"honest sets banned, {name}"] = max(model.judged.bans.values())
        found[f"microseconds a token, {name}"] = 1e6 * model.recorded.verify_s["float32"]
        if model.toploc is not None:
            found[f"toploc bytes a token, {name}"] = model.toploc.bytes_per_token
    return found


if __name__ == "__main__":
    main(claim)
