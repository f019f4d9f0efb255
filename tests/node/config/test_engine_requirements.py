"""Which engines a swarm accepts: the learner's terms, and its answer to a node."""

from __future__ import annotations

import pytest

from node.config.engine_requirements import NO_EXPERTS, EngineTerms, accepted_dtypes
from node.config.node_config import EngineSection
from protocol.versions.exchange import COMPUTE_DTYPE
from protocol.versions.formats import QUANTIZED, taken_formats
from protocol.work import EXPERTS

STRICT = EngineTerms(compute_dtype="float32")
EASY = EngineTerms(compute_dtype="float32", auto_is_it=True)


def said(dtype: str) -> dict[str, bytes]:
    return {COMPUTE_DTYPE: dtype.encode()}


def test_a_swarm_that_asks_for_nothing_takes_all_and_says_nothing() -> None:
    for ext in ({}, said("bfloat16"), said("auto")):
        assert EngineTerms().objection(ext) is None
    assert EngineTerms().ext == {}
    assert accepted_dtypes({}) == ()


def test_float32_is_asked_for() -> None:
    assert STRICT.objection(said("float32")) is None
    for dtype in ("bfloat16", "auto"):
        objection = STRICT.objection(said(dtype))
        assert objection is not None
        assert f'compute_dtype = "{dtype}": set [engine] compute_dtype = "float32" in node.toml' in objection
    assert accepted_dtypes(STRICT.ext) == ("float32",)


def test_the_weights_own_format_is_enough_where_that_is_it() -> None:
    assert EASY.objection(said("auto")) is None
    assert EASY.objection(said("float16")) is not None
    assert accepted_dtypes(EASY.ext) == ("float32", "auto")


def test_an_older_node_does_not_say_and_is_told_what_to_do() -> None:
    assert "use a newer volery" in (STRICT.objection({}) or "")


def test_words_of_strangers_are_shown_so_that_they_do_nothing() -> None:
    assert "\x1b" not in (STRICT.objection({COMPUTE_DTYPE: b"\x1b[2J\xff" + b"x" * 4000}) or "")
    assert len(STRICT.objection({COMPUTE_DTYPE: b"x" * 4000}) or "") < 400
    assert accepted_dtypes({COMPUTE_DTYPE: b",\x1b[2J,,float32"}) == ("\\x1b[2J", "float32")


def test_quantised_weights_are_refused_unless_they_are_allowed() -> None:
    scheme = {QUANTIZED: b"fp8"}
    assert "quantised weights, and yours has fp8 weights: leave" in (EngineTerms().objection(scheme) or "")
    two = EngineTerms(formats=("stored", "fp8"))
    assert two.objection(scheme) is None
    assert two.objection({}) is None
    assert two.ext == {QUANTIZED: b"stored,fp8"}
    assert taken_formats(two.ext) == ("stored", "fp8")
    assert taken_formats({}) == ("stored",)
    assert taken_formats({QUANTIZED: b""}) == ("stored", "fp8"), "as learners said it that knew one other"


def test_weights_as_published_are_refused_where_others_are_asked_for() -> None:
    small = EngineTerms(formats=("int4", "int8"))
    objection = small.objection({})
    assert objection == (
        "This swarm accepts rollouts of engines with int4 weights or int8 weights, and yours has the weights as they "
        'are: set [engine] quantization = "int4" in node.toml.'
    )
    assert small.objection({QUANTIZED: b"int8"}) is None


def test_a_strangers_word_for_a_format_does_nothing() -> None:
    said = EngineTerms().objection({QUANTIZED: b"\x1b[2J\xff" + b"x" * 4000}) or ""
    assert "\x1b" not in said
    assert len(said) < 400
    assert len(taken_formats({QUANTIZED: b"a," * 2000})) == 16


@pytest.mark.parametrize(
    ("section", "declared"),
    [
        (EngineSection(), "auto"),
        (EngineSection(device="cpu"), "float32"),
        (EngineSection(device="cpu", compute_dtype="bfloat16"), "bfloat16"),
        (EngineSection(device="cuda", compute_dtype="float32"), "float32"),
    ],
)
def test_a_node_says_what_its_engine_computes_in(section: EngineSection, declared: str) -> None:
    assert section.compute_dtype_in_force == declared


def test_experts_are_asked_for_where_they_are_replayed() -> None:
    replaying = EngineTerms(experts=True)
    assert replaying.ext == {EXPERTS: b""}
    assert replaying.objection({EXPERTS: b""}) is None
    assert replaying.objection({}) == NO_EXPERTS
    assert EngineTerms().objection({EXPERTS: b""}) is None
