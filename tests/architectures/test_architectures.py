"""Every architecture that transformers lists as a causal language model, in the roles that it has in a swarm."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
import transformers

from tests.architectures.outcomes import Outcome, Verdict, outcome_of
from tests.architectures.shrinking import architectures

NAMED = (
    "bart",  # counts positions by columns, so its prompts are not padded
    "bloom",
    "camembert",  # ties its head to its embedding, under a name that comes first; positions begin behind the padding
    "codegen",
    "falcon",
    "gemma2",
    "gpt2",
    "gpt_oss",
    "gptj",
    "hrm_text",  # stores as one tensor what it loads as four
    "llama4_text",
    "mamba",
    "mamba2",
    "minimax",  # keeps what it has read in a cache of its own
    "mpt",
    "phimoe",  # its routers compute with the jitter that others only draw
    "rwkv",
)
"""Mechanisms that have failed once, each to agree from now on."""

EVERY = 16
"""Every sixteenth architecture of the library's list is tried, beside those that are named: a dozen."""

MOST_NOT_MADE = 1 / 20
LEAST_AGREEING = 0.85
"""Fraction of the whole list that must agree: otherwise a change that has half of it refused would pass."""


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


@pytest.mark.parametrize("model_type", NAMED)
def test_engine_audit_trainer_export_and_swap_agree(tmp_path: Path, model_type: str) -> None:
    assert outcome_of(model_type, tmp_path).verdict is Verdict.AGREES


def test_a_model_that_remembers_other_sequences_is_refused(tmp_path: Path) -> None:
    outcome = outcome_of("recurrent_gemma", tmp_path)
    assert outcome.verdict is Verdict.REFUSED
    assert "keeps what it has read in its layers" in outcome.reason


@pytest.mark.parametrize("model_type", architectures()[::EVERY])
def test_an_architecture_agrees_or_is_refused_with_a_reason(tmp_path: Path, model_type: str) -> None:
    require_told(outcome_of(model_type, tmp_path))


@pytest.mark.slow
def test_every_architecture_agrees_or_is_refused_with_a_reason(tmp_path: Path) -> None:
    """The table; with `pytest -s` it is printed while it grows."""
    torch.set_num_threads(1)
    rows: list[str] = []
    verdicts: Counter[Verdict] = Counter()
    failed: list[str] = []
    began = time.monotonic()
    for model_type in architectures():
        directory = tmp_path / model_type
        directory.mkdir()
        started = time.monotonic()
        try:
            outcome = outcome_of(model_type, directory)
            require_told(outcome)
        except Exception as error:  # the fourth outcome
            failed.append(f"{model_type}: {type(error).__name__}: {' '.join(str(error).split())}")
            rows.append(f"{model_type:24} FAILED         {failed[-1]}")
        else:
            verdicts[outcome.verdict] += 1
            rows.append(_row(model_type, outcome, time.monotonic() - started))
        print(rows[-1], flush=True)
    total = len(architectures())
    print(f"{dict(verdicts)} of {total} in {time.monotonic() - began:.0f} s, transformers {transformers.__version__}")
    assert not failed, "\n".join(failed)
    assert verdicts[Verdict.NOT_MADE] <= MOST_NOT_MADE * total
    assert verdicts[Verdict.AGREES] >= LEAST_AGREEING * total


def require_told(outcome: Outcome) -> None:
    """Check that an outcome that does not agree gives its reason, in a sentence that a person can read."""
    if outcome.verdict is Verdict.AGREES:
        assert not outcome.reason
        return
    assert len(re.findall(r"\w+", outcome.reason)) >= 4, outcome.reason
    assert "Traceback" not in outcome.reason


def _row(model_type: str, outcome: Outcome, seconds: float) -> str:
    told = f"within {outcome.apart:.0e} nats; {outcome.facts}" if not outcome.reason else outcome.reason
    return f"{model_type:24} {outcome.verdict.value:9} {seconds:5.1f} s  {told}"
