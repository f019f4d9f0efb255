"""Peers that die, freeze, are cut off, come late or become slow, each behind a link of its own. Needs root.

Rates and sizes are small, so that the lower bound is some seconds. The time is recorded as a multiple of that bound,
and decides nothing.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import trio

from benchmarks.network.bound import peer_bound_s
from benchmarks.network.founding import found
from benchmarks.network.requirements import missing_tools, obstacle
from swarm.store import ChunkStore
from tests.faults.conftest import Figure
from tests.faults.stage import CREDIT, MIB, PEERS, SOURCE, Player, duplicates, lateness, open_stage

WHY_NOT = obstacle() or (f"{', '.join(missing_tools())} not installed" if missing_tools() else "")

pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]


def even(peers: int, rate: float = 20) -> dict[str, tuple[float, float]]:
    """Return equal links for the source and so many peers."""
    return dict.fromkeys((SOURCE, *PEERS[:peers]), (rate, rate))


def pieces(players: list[Player], version: int) -> set[int]:
    """Return the chunks that the players together hold."""
    return set().union(*(player.held(version) for player in players))


def num_chunks(player: Player, version: int) -> int:
    return int(player.said("progress", version=version)[0]["of"])


@pytest.mark.slow
async def test_without_a_fault(tmp_path: Path, figure: Figure) -> None:
    """The other measurements are compared with this one."""
    async with open_stage(tmp_path, even(4)) as stage:
        stage.write(1)
        source, *peers = await stage.troupe(*PEERS[:4])
        published = await stage.publish(1)
        done = await stage.complete(1, *peers)
        statuses = await stage.check(source, *peers, service=1)
        assert not any(player.said("fault") or player.said("trouble") for player in (source, *peers))
        assert statuses[0]["fetched"] == 0
        figure("bounds", lateness(done, published) / stage.bound_s(1, *PEERS[:4]))
        figure("duplicates, %", 100 * duplicates(statuses), "1")
        figure("copies that left the source", sum(statuses[0]["served"].values()) / (8 * MIB), "1")


async def test_a_peer_that_is_killed_half_way_costs_the_others_little(tmp_path: Path, figure: Figure) -> None:
    async with open_stage(tmp_path, even(4)) as stage:
        stage.write(1)
        source, victim, *others = await stage.troupe(*PEERS[:4])
        published = await stage.publish(1)
        await victim.reach(1, 0.5)
        stage.network.set_link(victim.name, connected=False)  # no other node notices its end
        await victim.kill()
        done = await stage.complete(1, *others)
        statuses = await stage.check(source, *others, service=1)
        assert all(status["fetched"] == 8 * MIB for status in statuses[1:])
        assert all(status["duplicates"] <= CREDIT for status in statuses)
        bound = stage.bound_s(1, *(other.name for other in others))
        figure("others, s", lateness(done, published), f"{1.25 * bound + 3:.1f}")
        figure("duplicates, %", 100 * duplicates(statuses), "2")
        with ChunkStore.open(victim.store, found()[1]) as store:
            (left,) = store.versions()
            assert not left.complete
            assert left.held_bytes >= 4 * MIB  # the bytes were hashed again just now


@pytest.mark.slow
async def test_a_cable_that_was_pulled_for_five_seconds_costs_that_peer_five_seconds(
    tmp_path: Path, figure: Figure
) -> None:
    async with open_stage(tmp_path, even(4)) as stage:
        stage.write(1)
        source, victim, *others = await stage.troupe(*PEERS[:4])
        published = await stage.publish(1)
        await victim.reach(1, 0.4)
        stage.network.set_link(victim.name, connected=False)
        await trio.sleep(5)  # the fault itself
        stage.network.set_link(victim.name, connected=True)
        late = await stage.complete(1, victim)
        done = await stage.complete(1, *others)
        statuses = await stage.check(source, victim, *others, service=1)
        assert all(status["fetched"] == 8 * MIB for status in statuses[1:])
        assert all(status["duplicates"] <= CREDIT for status in statuses)
        bound = stage.bound_s(1, *PEERS[:4])
        figure("that peer, s", lateness(late, published), f"{1.1 * bound + 5:.1f}")
        figure("others, bounds", lateness(done, published) / bound, "1.25")
        figure("duplicates, %", 100 * duplicates(statuses))


@pytest.mark.slow
async def test_an_uplink_that_collapses_is_used_less(tmp_path: Path, figure: Figure) -> None:
    async with open_stage(tmp_path, even(4, 50)) as stage:
        stage.write(1, 32)
        source, slow, *others = await stage.troupe(*PEERS[:4])
        published = await stage.publish(1)
        await slow.reach(1, 0.5)
        stage.network.set_rate(slow.name, up=2)
        done = await stage.complete(1, slow, *others)
        statuses = await stage.check(source, slow, *others, service=1)
        bound = stage.bound_s(1, *PEERS[:4])
        figure("that peer, bounds", lateness(done[:1], published) / bound, "1.20")
        figure("others, bounds", lateness(done[1:], published) / bound, "1.20")
        figure("duplicates, %", 100 * duplicates(statuses), "2")
        assert all(status["duplicates"] <= 4 * CREDIT for status in statuses)


@pytest.mark.slow
async def test_who_joins_half_way_is_served_at_once(tmp_path: Path, figure: Figure) -> None:
    async with open_stage(tmp_path, even(5)) as stage:
        stage.write(1)
        source, *others = await stage.troupe(*PEERS[:4])
        late = await stage.start(PEERS[4])
        published = await stage.publish(1)
        await others[0].reach(1, 0.5)
        await stage.introduce(late, source, *others)
        joined = late.said("connected")[0]
        done = await stage.complete(1, *others)
        its = await stage.complete(1, late)
        statuses = await stage.check(source, late, *others, service=1)
        assert all(status["fetched"] == 8 * MIB for status in statuses[1:])
        assert all(status["duplicates"] <= CREDIT for status in statuses)
        figure("late one, bounds after joining", lateness(its, joined) / peer_bound_s(8 * MIB, 20, 20), "1.25")
        figure("others, bounds", lateness(done, published) / stage.bound_s(1, *PEERS[:4]))
        figure("duplicates, %", 100 * duplicates(statuses))


@pytest.mark.slow
async def test_when_the_source_dies_after_a_full_scatter_the_peers_finish(tmp_path: Path, figure: Figure) -> None:
    async with open_stage(tmp_path, even(4)) as stage:
        stage.write(1)
        source, *peers = await stage.troupe(*PEERS[:4])
        published = await stage.publish(1)
        await peers[0].hear("progress", version=1)
        total = num_chunks(peers[0], 1)
        await peers[0].until("a copy among the peers", lambda: len(pieces(peers, 1)) == total)
        stage.network.set_link(SOURCE, connected=False)
        await source.kill()
        assert not all(player.said("complete") for player in peers)
        done = await stage.complete(1, *peers)
        await stage.check(*peers, service=1)
        figure("all peers, bounds", lateness(done, published) / stage.bound_s(1, *PEERS[:4]))


@pytest.mark.slow
async def test_when_the_source_dies_before_everything_waits_for_it(tmp_path: Path, figure: Figure) -> None:
    async with open_stage(tmp_path, even(3, 10)) as stage:
        stage.write(1, 0.5)
        stage.write(2)
        source, *peers = await stage.troupe(*PEERS[:3])
        await stage.publish(1)
        await stage.complete(1, *peers)
        await stage.publish(2)
        await peers[0].reach(2, 0.3)
        await source.kill()
        for player in peers:
            told = await player.hear("trouble")
            assert "no neighbour that we may ask holds" in told["text"]
            assert "The active version stays in use" in told["text"]
        assert len(pieces(peers, 2)) < num_chunks(peers[0], 2)
        assert all(player.held(2) == pieces(peers, 2) for player in peers)  # they shared all chunks that there were
        before = await stage.check(*peers, service=1)
        for status in before:
            assert [one["complete"] for one in status["versions"]] == [True, False]

        await peers[0].kill()
        source = await stage.start(SOURCE)
        again = await stage.start(peers[0].name)
        for player in (again, *peers[1:]):
            await stage.introduce(player, source)
        for other in peers[1:]:
            await stage.introduce(other, again)
        await stage.complete(2, again, *peers[1:])
        after = await stage.check(source, again, *peers[1:], service=2)
        missing = 8 * MIB - before[0]["versions"][1]["held"]
        assert after[1]["fetched"] == missing  # the killed one went on from its bitmap
        for status in after[1:]:
            assert status["fetched"] + status["duplicates"] <= (missing if status is after[1] else 8.5 * MIB) + CREDIT
        figure("bytes of the restarted peer over what it missed", after[1]["fetched"] / missing, "1")


@pytest.mark.slow
async def test_a_frozen_peer_holds_nobody_up_and_goes_on_when_it_wakes(tmp_path: Path, figure: Figure) -> None:
    async with open_stage(tmp_path, even(4)) as stage:
        stage.write(1)
        source, frozen, *others = await stage.troupe(*PEERS[:4])
        published = await stage.publish(1)
        await frozen.reach(1, 0.5)
        frozen.signal(signal.SIGSTOP)
        done = await stage.complete(1, *others)
        await stage.check(source, *others, service=1)
        frozen.signal(signal.SIGCONT)
        await stage.complete(1, frozen)
        statuses = await stage.check(source, frozen, *others, service=1)
        assert all(status["fetched"] == 8 * MIB for status in statuses[1:])
        assert all(status["duplicates"] <= CREDIT for status in statuses)
        bound = stage.bound_s(1, *PEERS[:4])
        figure("others, s", lateness(done, published), f"{1.25 * bound + 3:.1f}")
        figure("duplicates, %", 100 * duplicates(statuses))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["boasting", "promising"])
async def test_who_has_everything_and_serves_nothing_is_ignored_in_the_end(
    tmp_path: Path, figure: Figure, kind: str
) -> None:
    async with open_stage(tmp_path, even(4, 6)) as stage:
        stage.write(1, 12)
        source, liar, *honest = await stage.troupe(*PEERS[:4], kinds={PEERS[0]: kind})
        published = await stage.publish(1)
        done = await stage.complete(1, *honest)
        statuses = await stage.check(source, *honest, service=1)
        for player in honest:
            assert [(one["peer"], one["fault"]) for one in player.said("fault")] == [(liar.name, "broken_promise")]
        figure("honest ones, bounds", lateness(done, published) / stage.bound_s(1, *PEERS[:4]), "1.25")
        figure("duplicates, %", 100 * duplicates(statuses), "2")


@pytest.mark.slow
async def test_flipped_bits_cost_little_time(tmp_path: Path, figure: Figure) -> None:
    async with open_stage(tmp_path, even(4)) as stage:
        stage.write(1)
        source, liar, *honest = await stage.troupe(*PEERS[:4], kinds={PEERS[0]: "flipping"})
        published = await stage.publish(1)
        done = await stage.complete(1, *honest)
        await stage.check(source, liar, *honest, service=1)
        blamed = [one for player in honest for one in player.said("fault")]
        assert {(one["peer"], one["fault"]) for one in blamed} == {(liar.name, "corrupt_chunk")}
        assert len(blamed) <= len(honest)  # one bad chunk each, and no more
        figure("honest ones, bounds", lateness(done, published) / stage.bound_s(1, *PEERS[:4]), "1.20")


@pytest.mark.slow
async def test_versions_that_come_twice_as_fast_as_they_can_be_fetched_starve_nobody(
    tmp_path: Path, figure: Figure
) -> None:
    last, staleness = 9, 3  # two versions are published while one is fetched, and one while its announcement travels
    async with open_stage(tmp_path, even(3)) as stage:
        for version in range(1, last + 1):
            stage.write(version, 4)
        source, *peers = await stage.troupe(*PEERS[:3])
        for version in range(1, last + 1):
            await source.until(
                "half a version more at every peer", lambda v=version: all(_halves(p) >= v - 1 for p in peers)
            )
            await stage.publish(version)
        await stage.complete(last, *peers)
        await stage.check(source, *peers, service=last)
        for player in peers:
            done = player.said("complete")
            numbers = [one["version"] for one in done]
            assert numbers == sorted(set(numbers))
            assert len(numbers) > last // 2
            lags = [_newest_at(source, one["at"]) - one["version"] for one in done]
            assert max(lags) <= staleness
            figure(f"{player.name}: versions completed of {last}", len(numbers), "5")
            figure(f"{player.name}: largest lag at completion", max(lags), str(staleness))


def _halves(player: Player) -> int:
    """Return how many halves of versions it has fetched so far."""
    half = {one["version"] for one in player.said("progress") if 2 * len(one["held"]) >= one["of"]}
    return len(half) + len(player.said("complete"))


def _newest_at(source: Player, at: float) -> int:
    return max(one["version"] for one in source.said("published") if one["at"] <= at)
