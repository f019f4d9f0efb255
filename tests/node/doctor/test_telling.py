"""Print findings for people and for programs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from node.doctor.findings import (
    ClockOffset,
    Contact,
    EngineSpeed,
    Findings,
    Listening,
    MappedPort,
    NotKnown,
    PortMapping,
    Rate,
    Where,
)
from node.doctor.telling import NEEDS_INVITE, sections, to_json, to_text
from node.doctor.verdict import conclude
from tests.support.doctor_findings import FOUND, SEEN, evidence, findings, sight, tried, without_invite

SEVERAL = [
    findings(),
    without_invite(),
    findings(contact=NotKnown(why="the learner was not reached"), failure="It cannot be reached.", is_usage=False),
    findings(evidence=evidence(sight(), addresses=(tried(is_reached=True),)), speed=EngineSpeed(tokens_per_s=123.456)),
]


def text(**changes: Any) -> list[str]:
    found = findings(**changes)
    return [" ".join(line.split()) for line in to_text(found, conclude(found)).splitlines()]


@pytest.mark.parametrize("found", SEVERAL)
def test_programs_are_told_what_people_are(found: Findings) -> None:
    conclusion = conclude(found)
    told, shown = json.loads(to_json(found, conclusion)), to_text(found, conclusion)
    for section in sections(found, conclusion):
        assert section.title in shown
        for row in section.rows:
            assert told[section.key][row.key] == {"value": row.value, "text": row.text}
            assert row.text in shown
    assert told["missing"] == list(conclusion.missing)
    assert told["verdict"]["can_take_part"] is conclusion.can_take_part
    assert all(line in shown for line in (*conclusion.missing, *told["at_the_router"]))


def test_what_is_not_known_has_no_value() -> None:
    nothing = NotKnown(why="not found out within 24 s")
    found = findings(**dict.fromkeys(("evidence", "mapping", "hops", "clock", "down", "up"), nothing))
    told = json.loads(to_json(found, conclude(found)))
    for key in ("clock_ahead_s", "down_bytes_per_s", "up_bytes_per_s"):
        assert told["learner"][key]["value"] is None
        assert "not found out within 24 s" in told["learner"][key]["text"]
    for key in ("mapping", "filtering", "second_router", "port_mapping", "dial_back"):
        assert told["connection"][key]["value"] is None


def test_package_names_that_others_own_are_told() -> None:
    assert "packages no other distribution here owns one of Volery's package names" in text()
    found = findings(clashes={"swarm": "other-swarm"})
    assert json.loads(to_json(found, conclude(found)))["machine"]["package_names"]["value"] == ["swarm"]
    assert any(
        "warning: another distribution" in line and "swarm (of other-swarm)" in line
        for line in text(clashes={"swarm": "other-swarm"})
    )


def test_of_a_learner_that_was_not_reached_nothing_is_said_again_and_again() -> None:
    found = findings(contact=NotKnown(why="the learner was not reached"), failure="It cannot be reached.")
    lines = to_text(found, conclude(found)).splitlines()
    assert sum("was not reached" in line for line in lines) == 2, (
        "the learner and its newest version must both be reported"
    )
    assert lines[-1] == "  It cannot take part."


def test_without_an_invite_it_says_what_else_there_is() -> None:
    found = without_invite()
    told = to_text(found, conclude(found))
    assert NEEDS_INVITE in told
    assert "router, outgoing" not in told
    assert "a node asks its router to open a port" in told


@pytest.mark.parametrize(
    ("ahead_s", "words"),
    [
        (0.0, "clock agrees with the learner's"),
        (90.0, "clock 90 s ahead of the learner's"),
        (-0.5, "clock 0.5 s behind the learner's"),
    ],
)
def test_the_clock(ahead_s: float, words: str) -> None:
    told = text(clock=ClockOffset(ahead_s=ahead_s, error_s=0.01, round_trip_s=0.02))
    assert words in told
    assert "clock error at most 0.01 s, half of the shortest round trip" in told


def test_rates() -> None:
    lines = text(down=Rate(size_bytes=100_000, seconds=0.1, is_coarse=True))
    assert "download from it 8 Mbit/s (97.7 KiB in 0.1 s, too few bytes for more than a rough figure)" in lines
    assert "upload to it 16.8 Mbit/s (2 MiB in 1 s)" in lines


def test_how_fast_the_engine_is_and_with_what() -> None:
    assert "speed 123 tokens a second, measured with a version on this machine" in text(
        speed=EngineSpeed(tokens_per_s=123.4)
    )
    assert "speed 2.5 tokens a second, measured with random weights of the model's shapes" in text(
        speed=EngineSpeed(tokens_per_s=2.5, is_of_stand_in=True)
    )


@pytest.mark.parametrize(
    ("listening", "words"),
    [
        (Listening(ports=(4001,), is_fixed=True), "listens on TCP port 4001"),
        (Listening(), "listens on nothing: the node only connects to others"),
        (
            Listening(ports=(7, 8), instead_of="/ip4/0.0.0.0/tcp/4001"),
            "listens on TCP ports 7 and 8, since /ip4/0.0.0.0/tcp/4001 is in use on this machine",
        ),
    ],
)
def test_where_it_listened(listening: Listening, words: str) -> None:
    assert words in text(listening=listening)


def test_a_port_that_a_router_opened() -> None:
    one = MappedPort(address=SEEN, protocol="UPnP", gateway="192.168.1.1", is_behind_another_nat=False)
    assert f"port mapping UPnP opened {SEEN} at 192.168.1.1, and closed it again" in text(
        mapping=PortMapping(mapped=(one,))
    )
    assert "port mapping no router answered in time" in text(mapping=PortMapping())
    assert "port mapping not asked: [network] map_port = false" in text(
        mapping=NotKnown(why="[network] map_port = false")
    )


def test_the_verdict_and_what_to_do_come_last() -> None:
    found = findings()
    lines = to_text(found, conclude(found)).splitlines()
    assert lines.index("Verdict") < lines.index("At the router, so that others can dial this machine")
    assert lines[-1].startswith("  2. Or forward TCP port 4001")
    broken = replace(found, failure="It cannot be reached.")
    assert "What is missing" in to_text(broken, conclude(broken)).splitlines()


def test_why_no_peer_looked_from_outside_is_said_once_and_in_the_verdict() -> None:
    contact = Contact(found=FOUND, where=Where.THIS_MACHINE)
    lines = text(contact=contact, evidence=evidence())
    why = "the learner is on this machine, so no peer looked from outside"
    assert [line for line in lines if why in line] == [
        f"seen by peers at not known: {why}",
        f"It can take part; whether others can reach it is not known. Why: {why}.",
    ]
    assert "router, incoming not known" in lines
    assert "reached by peers not known" in lines
