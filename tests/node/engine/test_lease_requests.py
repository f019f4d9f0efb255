"""Turn a lease into an engine's request, and the result into records: only an extension asks for experts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from node.engine.interface import FinishReason, GeneratedSpan, Generation, InstalledVersion
from node.engine.lease_requests import record_of, requests_of
from protocol.experts import Routing, unpack_experts
from protocol.work import EXPERTS
from tests.support.trainer_fixture import NOW_MS, granted, manifest, version

MADE = InstalledVersion(name=version("2.6"), manifest=manifest(version("2.6")))
PLAIN = Generation(
    tokens=(1, 2),
    logprobs=(-0.5, -1.0),
    finish=FinishReason.LENGTH,
    spans=(GeneratedSpan(start=0, end=2, version=MADE),),
    generation_s=0.5,
)


def test_a_lease_asks_for_experts_by_its_extension() -> None:
    assert {one.experts for one in requests_of(granted().lease)} == {False}
    assert {one.experts for one in requests_of(granted(ext={EXPERTS: b""}).lease)} == {True}


def test_a_record_carries_the_experts_that_an_engine_tells() -> None:
    lease = granted(ext={EXPERTS: b""}).lease
    assert record_of(lease, 0, PLAIN, NOW_MS).experts == b""
    for experts, dtype in ((4, np.uint8), (300, np.uint16)):
        routing = Routing(layers=3, experts=experts, top_k=2)
        told = np.arange(12).reshape(2, 3, 2).astype(dtype) % experts % 4
        told[..., 1] = 3 - told[..., 0]
        record = record_of(lease, 0, replace(PLAIN, experts=told), NOW_MS)
        assert np.array_equal(unpack_experts(record.experts, 2, routing), told)
