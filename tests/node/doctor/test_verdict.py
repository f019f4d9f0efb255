"""Tell a machine's owner what it can do in the swarm, and what is missing."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from node.doctor.findings import Contact, Disk, EngineFailed, EngineFinding, Listening, LocalNetwork, NotKnown, Where
from node.doctor.verdict import Ability, conclude
from protocol.versions.exchange import COMPUTE_DTYPE
from tests.support.doctor_findings import FOUND, SEEN, SIGNED, evidence, findings, sight, tried, without_invite

OTHER = "/ip4/45.0.0.1/tcp/61234"
OWN = sight(SEEN, local=SEEN)


@pytest.mark.parametrize(
    ("changes", "ability", "is_sure"),
    [
        ({}, Ability.PUNCHABLE, True),
        ({"evidence": evidence(sight(), addresses=(tried(is_reached=True),))}, Ability.SERVES, True),
        ({"evidence": evidence(sight(), sight(OTHER, "45.0.2.2"))}, Ability.ROLLS_OUT, True),
        ({"evidence": evidence(sight())}, Ability.PUNCHABLE, False),
        ({"evidence": evidence(sight(OTHER))}, Ability.NOT_KNOWN, True),
        ({"evidence": evidence()}, Ability.NOT_KNOWN, True),
        ({"evidence": evidence(OWN), "network": LocalNetwork(ip4=("45.0.0.1",))}, Ability.PUNCHABLE, True),
        ({"listening": Listening()}, Ability.ROLLS_OUT, True),
        ({"contact": Contact(found=FOUND, where=Where.THIS_MACHINE)}, Ability.NOT_KNOWN, True),
        ({"contact": Contact(found=FOUND, where=Where.THIS_NETWORK)}, Ability.NOT_KNOWN, True),
    ],
)
def test_what_it_can_do(changes: dict[str, object], ability: Ability, is_sure: bool) -> None:
    found = conclude(findings(**changes))
    assert (found.ability, found.is_sure) == (ability, is_sure)
    assert found.can_take_part
    assert ("probably" in found.sentence) is not is_sure


def test_a_port_that_the_router_opened_is_named_as_such() -> None:
    found = conclude(findings(evidence=evidence(addresses=(tried(OTHER, "mapped", is_reached=True),))))
    assert found.why == f"{OTHER} was dialled from outside, through a port that its router opened"


def test_whoever_was_not_reached_cannot_take_part() -> None:
    found = conclude(findings(contact=NotKnown(why=""), failure="The learner cannot be reached at X."))
    assert found.ability is Ability.NOTHING
    assert found.missing == ("The learner cannot be reached at X.",)
    assert not found.can_take_part
    assert found.sentence == "It cannot take part."
    assert found.advice == ()


def test_an_engine_that_cannot_load_the_model() -> None:
    [told] = conclude(findings(speed=EngineFailed(why="the engine failed: unknown architecture"))).missing
    assert told.startswith("No engine here can work with the swarm's model: the engine failed: unknown architecture.")


def test_a_machine_that_is_in_no_network() -> None:
    nowhere = replace(without_invite(), network=LocalNetwork())
    assert conclude(nowhere).missing == (
        "This machine is in no network: it has only loopback or link-local addresses. Connect it.",
    )
    assert conclude(findings(network=LocalNetwork())).can_take_part, "the learner was reached all the same"


def test_no_engine_is_missing_also_without_an_invite() -> None:
    found = conclude(replace(without_invite(), engine=NotKnown(why="There is no engine. Install one.")))
    assert found.missing == ("There is no engine. Install one.",)
    assert conclude(without_invite()).can_take_part


@pytest.mark.parametrize(
    ("disk", "missing"),
    [
        (Disk(place="/x", free_bytes=1 << 40, quota_bytes=900), "[store] quota_gb: 900 B cannot hold two versions"),
        (Disk(place="/x", free_bytes=900, quota_bytes=1 << 40), "/x has 900 B free, and two versions take"),
    ],
)
def test_a_model_that_does_not_fit(disk: Disk, missing: str) -> None:
    assert SIGNED.manifest.total_bytes > 1000
    [told] = conclude(findings(disk=disk)).missing
    assert told.startswith(missing)


def test_an_engine_that_the_swarm_refuses() -> None:
    assert FOUND.terms is not None
    strict = replace(FOUND, terms=msgspec.structs.replace(FOUND.terms, ext={COMPUTE_DTYPE: b"float32"}))
    engine = EngineFinding(kind="vllm", device="cuda", why="it is here", scheme="fp8", compute_dtype="float16")
    found = conclude(findings(contact=Contact(found=strict, where=Where.INTERNET), engine=engine))
    assert found.missing == (
        "[engine] quantization: this swarm refuses fp8 weights. Leave [engine] quantization out.",
        '[engine] compute_dtype: this swarm wants "float32". Set it to that.',
    )


def test_how_long_the_newest_version_takes() -> None:
    found = conclude(findings())
    assert found.version_s == pytest.approx(SIGNED.manifest.total_bytes / (4 << 20))
    assert conclude(findings(down=NotKnown(why=""))).version_s is None
    unborn = Contact(found=replace(FOUND, newest=None), where=Where.INTERNET)
    assert conclude(findings(contact=unborn)).version_s is None
