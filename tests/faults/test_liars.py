"""Peers that lie, among honest ones, on loopback: every other node gets every byte, and knows the liar."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.conftest import Figure
from tests.faults.hostile import FLOOD
from tests.faults.stage import CREDIT, MIB, Player, Stage, lateness, open_stage

LIAR = "one"


def faults(player: Player) -> set[tuple[str, str]]:
    """Return the peers that it blames, each with the fault."""
    return {(one["peer"], one["fault"]) for one in player.said("fault")}


async def alone_with(stage: Stage, kind: str) -> tuple[Player, Player, list[Player]]:
    """Return the source, a liar that has its version 1, and two honest nodes that know only each other."""
    stage.write(1)
    source, liar = await stage.troupe(LIAR, kinds={LIAR: kind})
    await stage.publish(1)
    await stage.complete(1, liar)
    honest = [await stage.start("two"), await stage.start("three")]
    await stage.introduce(honest[1], honest[0])
    for player in honest:
        await stage.introduce(player, liar)
    return source, liar, honest


async def test_flipped_bits_are_found_in_the_first_chunk_and_reach_nobody(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        source, liar, honest = await alone_with(stage, "flipping")
        for player in honest:
            await player.hear("fault", peer=LIAR, fault="corrupt_chunk")
            assert [one["held"] for one in (await player.status())["versions"]] == [0]
        await stage.introduce(honest[0], source)
        await stage.complete(1, *honest)
        statuses = await stage.check(source, liar, *honest, service=1)
        assert all(status["fetched"] == 8 * MIB for status in statuses[2:])
        for player in honest:  # one bad chunk each, and no more
            assert faults(player) == {(LIAR, "corrupt_chunk")}
            begun_again = sum("no neighbour that we may ask" in one["text"] for one in player.said("trouble"))
            assert len(player.said("fault")) <= 1 + begun_again, "while it knows nobody else, it asks the liar again"


@pytest.mark.parametrize("kind", ["promising", pytest.param("dripping", marks=pytest.mark.slow)])
async def test_who_promises_everything_and_sends_next_to_nothing(tmp_path: Path, figure: Figure, kind: str) -> None:
    async with open_stage(tmp_path) as stage:
        source, liar, honest = await alone_with(stage, kind)
        for player in honest:
            await liar.hear("requested", peer=player.name)
        await stage.introduce(honest[0], source)
        done = await stage.complete(1, *honest)
        statuses = await stage.check(source, *honest, service=1)
        assert all(status["fetched"] == 8 * MIB for status in statuses[1:])
        assert all(status["duplicates"] <= CREDIT for status in statuses)
        assert all(LIAR not in one["by_peer"] for one in done)
        figure(f"{kind}: seconds after the source came", lateness(done, honest[0].said("connected", peer="source")[0]))


async def test_a_hundred_thousand_haves(tmp_path: Path, figure: Figure) -> None:
    async with open_stage(tmp_path) as stage:
        stage.write(1)
        source, liar, *honest = await stage.troupe(LIAR, "two", "three", kinds={LIAR: "flooding"})
        published = await stage.publish(1)
        done = await stage.complete(1, *honest)
        for player in honest:
            assert (await liar.hear("flooded", peer=player.name))["sent"] < FLOOD
            await player.hear("fault", peer=LIAR, fault="oversized")
        stage.write(2)
        await stage.publish(2)
        await stage.complete(2, *honest)
        await stage.check(source, *honest, service=2)
        figure(f"seconds on loopback, {FLOOD} each", lateness(done, published))


async def test_a_peer_that_takes_questions_and_answers_none(tmp_path: Path, figure: Figure) -> None:
    async with open_stage(tmp_path) as stage:
        stage.write(1)
        source, mute, *honest = await stage.troupe(LIAR, "two", "three", kinds={LIAR: "mute"})
        for player in honest:
            await mute.hear("asked", peer=player.name)
        published = await stage.publish(1)
        done = await stage.complete(1, mute, *honest)
        await stage.check(source, mute, *honest, service=1)
        assert not any(player.said("fault") or player.said("trouble") for player in (source, *honest))
        figure("seconds on loopback", lateness(done, published))


async def test_garbage_on_every_protocol(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        stage.write(1)
        source, liar, *honest = await stage.troupe(LIAR, "two", "three", kinds={LIAR: "garbling"})
        await stage.publish(1)
        await stage.complete(1, *honest)
        statuses = await stage.check(source, *honest, service=1)
        assert all(status["fetched"] == 8 * MIB for status in statuses[1:])
        for player in (source, *honest):
            for fault in ("oversized", "malformed"):
                await player.hear("fault", peer=LIAR, fault=fault)
            assert {peer for peer, _ in faults(player)} == {LIAR}
        assert {one["peer"] for one in liar.said("garbled")} == {player.name for player in (source, *honest)}


async def test_what_the_learner_did_not_sign_and_what_it_said_long_ago_is_neither_believed_nor_passed_on(
    tmp_path: Path,
) -> None:
    """The liar knows version 1; the victim and the node behind it come with version 2."""
    async with open_stage(tmp_path) as stage:
        stage.write(1, 1)
        source, liar = await stage.troupe(LIAR, kinds={LIAR: "forging"})
        await stage.publish(1)
        await stage.complete(1, liar)
        await liar.say("remember")
        stage.write(2, 1)
        await stage.publish(2)
        await stage.complete(2, liar)
        victim, behind = await stage.start("two"), await stage.start("three")
        await stage.introduce(victim, liar)
        await liar.hear("wanted", peer=victim.name, version=2)  # the victim asks it for the true version
        await stage.introduce(victim, source)
        await stage.introduce(behind, victim)
        await stage.complete(2, victim, behind)

        await liar.say("replay")
        await victim.hear("announced", peer=LIAR, version=1)
        await liar.say("forge", version=9)
        await victim.hear("fault", peer=LIAR, fault="unauthorised")
        stage.write(3, 1)
        await stage.publish(3)
        await stage.complete(3, victim, behind)

        statuses = await stage.check(victim, behind, service=3)
        for player, status in zip((victim, behind), statuses, strict=True):
            assert [one["version"] for one in player.said("complete")] == [2, 3]
            assert [one["version"] for one in status["versions"]] == [2, 3]
        assert not liar.said("wanted", version=1) + liar.said("wanted", forged=True)  # and for nothing else
        assert faults(victim) == {(LIAR, "unauthorised")}
        assert faults(behind) == set()  # otherwise it would have judged the forgery as well
        assert {one["version"] for one in behind.said("announced")} <= {2, 3}


@pytest.mark.parametrize("kind", ["rolling back", "overstating"])
async def test_an_older_manifest_under_a_newer_name_or_one_without_end_is_a_broken_promise(
    tmp_path: Path, kind: str
) -> None:
    async with open_stage(tmp_path) as stage:
        stage.write(1, 1)
        source, liar = await stage.troupe(LIAR, kinds={LIAR: kind})
        await stage.publish(1)
        await stage.complete(1, liar)
        stage.write(2, 1)
        await stage.publish(2)
        await stage.complete(2, liar)
        victim = await stage.start("two")
        await stage.introduce(victim, liar)
        await victim.hear("fault", peer=LIAR, fault="broken_promise")
        (status,) = [await victim.status()]
        assert (status["service"], status["versions"]) == (None, [])
        await stage.introduce(victim, source)
        await stage.complete(2, victim)
        await stage.check(victim, service=2)
        assert [one["version"] for one in victim.said("complete")] == [2]
