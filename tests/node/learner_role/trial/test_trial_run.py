"""A trial: what agrees passes, and whatever would keep nodes from working is refused in the words of who refused it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.trial.completion_lengths import FIRST_GROUP, SHORT_TOKENS, Reach
from learner.trust.ban_evidence import Measure
from learner.trust.margins import (
    EXACT,
    LARGE_EXACT,
    MEDIUM_PARAMETERS,
    TINY_PARAMETERS,
    Arithmetic,
    margins_of,
    tolerance_of,
)
from node.engine.interface import (
    Claim,
    EngineCrashed,
    EngineRefused,
    FinishReason,
    GeneratedSpan,
    Generation,
    GenerationRequest,
    InstalledVersion,
    InstallFailed,
    Verified,
)
from node.learner_role.training.checkpoints import TrainerLost
from node.learner_role.trial.trial_run import TrialTerms, try_out
from node.processes.outcomes import ChildRefused
from node.runtime.errors import NodeError, RunError, UsageError
from node.runtime.typed_signal import Signal
from protocol.core.pipe import Arrays, Header

PROMPT = (5, 6, 7, 8)
STOP = 0
VOCABULARY = 32

Logprob = Callable[[int, int], float]
"""(position of the token, from 0, length of its sequence) -> log probability."""


def truth(position: int, length: int) -> float:
    """Return the log probability that all three programs give, unless a test changes one of them."""
    return -1.0 - position / 64


def bent_at(bend: int) -> Logprob:
    """Return the log probabilities of a model whose factors follow the length of the whole sequence, as
    LongRoPE's do.
    """
    return lambda position, length: truth(position, length) - (0.5 if length > bend else 0.0)


@dataclass
class Engine:
    """Draws tokens by hashing, and says what `drawn` and `read` say of them. `fails` is asked before each call."""

    drawn: Logprob = truth
    read: Logprob = truth
    gap: float = 0.0
    size: float = 1.0
    dtype: str = "float32"
    device: str = "cpu"
    parameters: int = 1000
    cut: int = 0
    fails: Callable[[str], None] = lambda op: None
    asked: list[list[GenerationRequest]] = field(default_factory=list)
    installs: list[Path] = field(default_factory=list)
    installed: InstalledVersion | None = None

    def __post_init__(self) -> None:
        self.restarted = Signal[None]()

    async def install(self, version: InstalledVersion, directory: Path) -> None:
        self.fails("install")
        self.installed = version
        self.installs.append(directory)

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        self.fails("generate")
        self.asked.append(list(requests))
        return [self._generated(request) for request in requests]

    def _generated(self, request: GenerationRequest) -> Generation:
        assert self.installed is not None
        tokens: list[int] = []
        while len(tokens) < request.max_new_tokens - self.cut:
            said = repr((request.prompt, request.seed, len(tokens))).encode()
            tokens.append(blake2b(said).digest()[0] % VOCABULARY)
            if tokens[-1] in request.stop_ids:
                break
        begin = len(request.prompt)
        return Generation(
            tokens=tuple(tokens),
            logprobs=tuple(self.drawn(begin + place, begin + place) for place in range(len(tokens))),
            finish=FinishReason.LENGTH,
            spans=(GeneratedSpan(start=0, end=len(tokens), version=self.installed),),
            generation_s=0.0,
        )

    async def verify(self, claims: Sequence[Claim]) -> list[Verified]:
        self.fails("verify")
        return [
            Verified(
                gaps=(self.gap,) * len(one.tokens),
                logprobs=read(self.read, len(one.prompt), len(one.tokens)),
                leads=(1.0,) * len(one.tokens),
                sizes=(self.size / one.temperature,) * len(one.tokens),
            )
            for one in claims
        ]

    async def describe(self) -> Header:
        self.fails("describe")
        return {"dtype": self.dtype, "device": self.device, "parameters": self.parameters}

    async def rest(self) -> None: ...

    def wake(self) -> None: ...

    async def release(self) -> None: ...


def read(logprob: Logprob, prompt: int, tokens: int) -> tuple[float, ...]:
    """What who reads the whole sequence says of its completion."""
    return tuple(logprob(prompt + place, prompt + tokens) for place in range(tokens))


@dataclass
class Trainer:
    """Scores what it is asked about, as `says`."""

    says: Logprob = truth
    error: Exception | None = None
    asked: list[tuple[str, Mapping[str, object]]] = field(default_factory=list)
    arrays: list[Arrays] = field(default_factory=list)

    async def call(self, op: str, header: Mapping[str, object], arrays: Arrays | None) -> tuple[Header, Arrays]:
        self.asked.append((op, header))
        if self.error is not None:
            raise self.error
        assert arrays is not None
        self.arrays.append(arrays)
        lengths, masks = arrays["lengths"], np.split(arrays["mask"], np.cumsum(arrays["lengths"])[:-1])
        rows = [
            read(self.says, int(length - mask.sum()), int(mask.sum()))
            for length, mask in zip(lengths, masks, strict=True)
        ]
        return {}, {"logprobs": np.array([one for row in rows for one in row], np.float32)}


LOADED = {"compute_dtype": "float32", "device": "cpu", "parameters": 1000}


def terms(**changes: Any) -> TrialTerms:
    chosen: dict[str, Any] = {
        "prompts": [PROMPT],
        "reach": Reach(turn_tokens=40, tokens=128),
        "temperature": 1.0,
        "stop_ids": frozenset({STOP}),
        "weights_dtype": "bfloat16",
        "arithmetic": Arithmetic.ANY,
    }
    return TrialTerms(**chosen | changes)


async def tried(
    tmp_path: Path,
    engine: Engine,
    trainer: Trainer | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    loaded: Header = LOADED,
    **changes: Any,
) -> Any:
    (tmp_path / "config.json").write_text(json.dumps(config or {}))
    return await try_out(engine, (trainer or Trainer()).call, tmp_path, loaded, terms(**changes))


async def refusal(tmp_path: Path, engine: Engine, trainer: Trainer | None = None, **changes: Any) -> NodeError:
    with pytest.raises(NodeError) as caught:
        await tried(tmp_path, engine, trainer, **changes)
    assert str(caught.value).endswith("."), "one paragraph"
    return caught.value


# --- what passes ------------------------------------------------------------------------------------------------------


async def test_what_agrees_passes_and_says_what_was_tried(tmp_path: Path, autojump_clock: object) -> None:
    engine, trainer = Engine(), Trainer()
    passed = await tried(tmp_path, engine, trainer)
    assert engine.installs == [tmp_path], "the very export"
    assert trainer.asked == [("logprobs", {"temperature": 1.0, "weights": "bfloat16"})]
    assert passed.furthest == len(PROMPT) + 40
    assert passed.apart < 1e-6
    assert "engine, audit and trainer agree" in passed.sentence
    assert "The trainer computes in float32 on cpu, the engine in float32 on cpu." in passed.sentence


@dataclass
class Mixture(Engine):
    """One that tells the experts of what it draws, where it is asked."""

    def _generated(self, request: GenerationRequest) -> Generation:
        made = super()._generated(request)
        return replace(made, experts=np.zeros((len(made.tokens), 2, 2), np.uint8)) if request.experts else made


async def test_the_trainer_gets_the_experts_where_it_replays_them(tmp_path: Path, autojump_clock: object) -> None:
    trainer = Trainer()
    for replays in (False, True):
        await tried(tmp_path, Mixture(), trainer, replays=replays)
    plain, replayed = trainer.arrays
    assert "experts" not in plain
    tokens = int(replayed["mask"].sum())
    assert replayed["experts"].shape == (tokens, 2, 2)
    assert replayed["routed"].tolist() == [1] * tokens


async def test_a_completion_that_never_ends_is_bounded_and_one_turn_is_enough(tmp_path: Path) -> None:
    engine = Engine()
    await tried(
        tmp_path, engine, stop_ids=frozenset(), reach=Reach(turn_tokens=100_000, tokens=131_072, has_turns=True)
    )
    asked = [one for call in engine.asked for one in call]
    assert sum(one.max_new_tokens for one in asked) < 200
    assert len(engine.asked[0]) == FIRST_GROUP, "the first siblings are made alone"


async def test_the_first_prompt_of_every_task_is_tried_with_the_stop_ids_of_the_run(tmp_path: Path) -> None:
    engine = Engine()
    await tried(tmp_path, engine, prompts=[PROMPT, (9,)])
    asked = [one for call in engine.asked for one in call if one.stop_ids]
    assert [(one.prompt, one.max_new_tokens, one.stop_ids) for one in asked] == [
        (PROMPT, SHORT_TOKENS, frozenset({STOP})),
        (PROMPT, SHORT_TOKENS, frozenset({STOP})),
        ((9,), SHORT_TOKENS, frozenset({STOP})),
    ]


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("one_sided", ["trainer", "audit"])
async def test_factors_that_change_with_the_length_are_refused_with_both_values(tmp_path: Path, one_sided: str) -> None:
    bent = bent_at(24)
    engine = Engine(read=bent) if one_sided == "audit" else Engine()
    trainer = Trainer(says=bent) if one_sided == "trainer" else Trainer()
    rope = {"rope_scaling": {"rope_type": "longrope", "original_max_position_embeddings": 24}}
    said = await refusal(tmp_path, engine, trainer, config=rope)
    assert isinstance(said, UsageError)
    assert f"the engine and the {one_sided} differ by 0.5 nats" in str(said)
    assert "says the engine" in str(said)
    assert f"the {one_sided}. By its config.json the model may compute differently from position 24 on" in str(said)
    assert "lower [learn] max_new_tokens or max_episode_tokens to stay below. The trainer computes in" in str(said)
    assert "nothing was published and nobody was invited" in str(said)


async def test_what_differs_before_a_bend_is_not_put_down_to_it(tmp_path: Path) -> None:
    said = await refusal(
        tmp_path,
        Engine(),
        Trainer(says=lambda position, length: truth(position, length) - 2.0),
        config={"sliding_window": 100},
        reach=Reach(turn_tokens=120, tokens=512),
    )
    assert "differ by 2 nats" in str(said)
    assert "compute differently" not in str(said)


@pytest.mark.parametrize("kind", ["out_of_memory", "bad_request"])
@pytest.mark.parametrize("op", ["install", "generate", "score"])
async def test_memory_that_runs_out_is_no_fault_of_the_model(tmp_path: Path, op: str, kind: str) -> None:
    def fail(asked: str) -> None:
        if asked == op:
            refusal = EngineRefused(kind, "CUDA out of memory")
            if op != "install":
                raise refusal
            raise InstallFailed(str(refusal)) from refusal

    error = ChildRefused("internal" if kind == "out_of_memory" else kind, "CUDA out of memory")
    said = await refusal(tmp_path, Engine(fails=fail), Trainer(error=error if op == "score" else None))
    assert "CUDA out of memory" in str(said)
    assert isinstance(said, RunError if kind == "out_of_memory" else UsageError)
    assert ("Nodes would fail in the same way" in str(said)) == (kind != "out_of_memory")


async def test_a_model_that_bends_where_no_run_comes_passes(tmp_path: Path) -> None:
    bent = bent_at(24)
    config = {"original_max_position_embeddings": 24}
    await tried(tmp_path, Engine(read=bent), Trainer(says=bent), config=config, reach=Reach(turn_tokens=8, tokens=24))


@pytest.mark.parametrize("who", ["engine", "audit", "trainer"])
async def test_log_probabilities_that_are_not_finite_are_refused(tmp_path: Path, who: str) -> None:
    def broken(position: int, length: int) -> float:
        return math.nan

    engine = Engine(drawn=broken if who == "engine" else truth, read=broken if who == "audit" else truth)
    said = await refusal(tmp_path, engine, Trainer(says=broken if who == "trainer" else truth))
    assert f"the {who} gives" in str(said)
    assert "a log probability that is not finite, first at token 1 (position 5): nan" in str(said)


async def test_tokens_that_the_audit_would_not_draw_are_refused_though_their_log_probabilities_agree(
    tmp_path: Path,
) -> None:
    said = await refusal(tmp_path, Engine(gap=3.0))
    assert "an audit of the engine's own completions fails" in str(said)
    assert "are not what the seeded sampler draws" in str(said)


ENGINE_WORDS = "config.json names an architecture that nobody knows: take another"


@pytest.mark.parametrize(
    ("op", "error", "kind", "says"),
    [
        ("install", InstallFailed(ENGINE_WORDS), UsageError, f"cannot install the first version: {ENGINE_WORDS}. "),
        ("generate", EngineRefused("bad_request", ENGINE_WORDS), UsageError, f"use the first version: {ENGINE_WORDS}."),
        ("generate", EngineRefused("not_finite", "weights hold NaN"), UsageError, "use the first version: weights"),
        ("verify", EngineRefused("bad_request", "an id too many."), UsageError, "version: an id too many. N"),
        ("install", EngineCrashed("it was killed by SIGKILL"), RunError, "it was killed by SIGKILL\nRepair"),
        ("generate", EngineCrashed("it is gone"), RunError, "The trial failed: it is gone\n"),
        ("verify", EngineCrashed("it is gone"), RunError, "The trial failed: it is gone\n"),
        ("describe", EngineCrashed("it is gone"), RunError, "The trial failed: it is gone\n"),
    ],
)  # fmt: skip
async def test_what_the_engine_refuses_is_told_in_its_words(
    tmp_path: Path, op: str, error: Exception, kind: type[NodeError], says: str
) -> None:
    def fails(now: str) -> None:
        if now == op:
            raise error

    said = await refusal(tmp_path, Engine(fails=fails))
    assert type(said) is kind
    assert says in str(said)


async def test_what_the_trainer_refuses_is_told_in_its_words_and_its_end_travels(tmp_path: Path) -> None:
    refused = ChildRefused("bad_request", "tokens holds an id outside the model's vocabulary of 8")
    said = await refusal(tmp_path, Engine(), Trainer(error=refused))
    assert "cannot score what the engine generated: tokens holds an id outside the model's vocabulary of 8." in str(
        said
    )
    with pytest.raises(TrainerLost):
        await tried(tmp_path, Engine(), Trainer(error=TrainerLost("it ended")))


async def test_an_engine_that_generates_nothing_is_refused(tmp_path: Path) -> None:
    said = await refusal(tmp_path, Engine(cut=SHORT_TOKENS))
    assert "the engine returned 0 tokens and 0 log probabilities for a completion" in str(said)


# --- how much is allowed ----------------------------------------------------------------------------------------------


def off_by(nats: float) -> Logprob:
    return lambda position, length: truth(position, length) - nats


BFLOAT16 = {**LOADED, "compute_dtype": "bfloat16"}


async def test_only_rounding_of_the_numbers_that_are_computed_in_is_allowed(tmp_path: Path) -> None:
    assert "(allowed: 0.0001)" in str(await refusal(tmp_path, Engine(), Trainer(says=off_by(2e-4))))
    await tried(tmp_path, Engine(), Trainer(says=off_by(5e-5)))
    await tried(tmp_path, Engine(), Trainer(says=off_by(0.02)), loaded=BFLOAT16)
    await tried(tmp_path, Engine(dtype="bfloat16"), Trainer(says=off_by(0.02)))
    said = await refusal(tmp_path, Engine(), Trainer(says=off_by(0.22)), loaded=BFLOAT16)
    assert "differ by 0.22 nats in the mean" in str(said)
    await tried(tmp_path, Engine(device="cuda"), Trainer(says=off_by(5e-3)))


async def test_rounding_grows_with_the_logits_and_as_the_temperature_falls(tmp_path: Path) -> None:
    far = Trainer(says=off_by(3e-4))
    await refusal(tmp_path, Engine(size=15.0), far)
    await tried(tmp_path, Engine(size=60.0), far)
    await tried(tmp_path, Engine(), far, temperature=0.25)
    await refusal(tmp_path, Engine(), far, temperature=4.0)


def test_the_tolerance_is_never_less_than_what_audits_allow_to_differ_by_chance() -> None:
    assert tolerance_of(TINY_PARAMETERS, Arithmetic.FLOAT32, on_processors=True) == EXACT
    assert tolerance_of(MEDIUM_PARAMETERS + 1, Arithmetic.FLOAT32, on_processors=True) == LARGE_EXACT
    for arithmetic in Arithmetic:
        for parameters in (TINY_PARAMETERS, MEDIUM_PARAMETERS, MEDIUM_PARAMETERS + 1):
            found = tolerance_of(parameters, arithmetic, on_processors=False)
            margins = {margin.measure: margin.above for margin in margins_of(parameters, arithmetic)}
            assert found.token == margins[Measure.LOGPROB]
            assert found.mean >= margins[Measure.MEAN]
