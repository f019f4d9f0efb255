"""Renew a running learner's certificate in time, or warn before its end without the operator's key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from node.learner_role.certificate_renewal import WARN_EVERY_S, Care, CertificateWatch, care
from node.learner_role.shared.context import LearnerIdentity
from node.learner_role.shared.signals import LearnerSignals
from node.runtime.errors import RunError
from node.runtime.events import EventLog, Field
from node.state.learner_state import BACKDATED_MS, open_learner_home
from protocol.core.dates import DAY_MS
from protocol.core.genesis import LearnerCertificate, open_certificate
from tests.support.learner_fixture import FakePeer, Settings, fast_directory, open_learner

NOW_MS = 1_760_000_000_000
DAYS = 90.0
LIFE_MS = round(DAYS * DAY_MS)
WORD = LearnerCertificate(learner=bytes(32), not_before_ms=NOW_MS - BACKDATED_MS, not_after_ms=NOW_MS + LIFE_MS)


@pytest.mark.parametrize(
    ("part", "renewable", "alone"),
    [
        (0.0, Care.NOTHING, Care.NOTHING),
        (0.66, Care.NOTHING, Care.NOTHING),
        (0.67, Care.RENEW, Care.NOTHING),
        (0.89, Care.RENEW, Care.NOTHING),
        (0.91, Care.RENEW, Care.WARN),
        (1.0, Care.RENEW, Care.WARN),
        (1.01, Care.RENEW, Care.END),
        (-0.1, Care.RENEW, Care.END),
    ],
)
def test_what_a_certificate_needs_by_how_much_of_its_life_is_over(part: float, renewable: Care, alone: Care) -> None:
    now_ms = NOW_MS + round(part * LIFE_MS)
    assert care(WORD, now_ms, renewable=True) is renewable
    assert care(WORD, now_ms, renewable=False) is alone


@dataclass
class World:
    """A learner's home, its wall clock, and what was told."""

    root: Path
    wall_ms: int = NOW_MS
    told: list[tuple[str, dict[str, Field]]] = field(default_factory=list)
    renewed: list[bytes] = field(default_factory=list)
    left: int = 0

    @contextmanager
    def watch(self, days: float = DAYS) -> Iterator[CertificateWatch]:
        home = open_learner_home(self.root, name="s", certificate_days=days, now_ms=self.wall_ms)
        events = EventLog()
        events.listen(lambda name, fields: self.told.append((name, dict(fields))))
        try:
            identity = LearnerIdentity(
                keypair=home.learner, authority=home.authority, certificate=home.certificate, secret=home.secret
            )
            signals = LearnerSignals()
            signals.certificate_renewed.subscribe(lambda _: self.renewed.append(identity.certificate))
            yield CertificateWatch(
                home=home,
                certificate_days=days,
                identity=identity,
                signals=signals,
                now_ms=lambda: self.wall_ms,
                events=events,
            )
        finally:
            home.close()

    async def leave(self) -> None:
        self.left += 1

    def names(self) -> list[str]:
        return [name for name, _ in self.told]


@given(st.lists(st.integers(-400, 400), max_size=12))
def test_with_the_operators_key_whatever_the_clock_does_what_is_signed_is_covered(jumps: list[int]) -> None:
    async def live(root: Path) -> None:
        world = World(root)
        with world.watch() as watch:
            for days in jumps:
                world.wall_ms += days * DAY_MS
                now_ms = watch.signing_ms()
                word = open_certificate(watch.identity.certificate, watch.home.authority)
                assert word.not_before_ms <= now_ms <= word.not_after_ms
                assert (root / "certificate").read_bytes() == watch.identity.certificate, (
                    "the next start begins with it"
                )

    with fast_directory() as root:
        trio.run(live, root)


async def test_without_it_the_end_is_told_before_and_comes_in_words(tmp_path: Path, autojump_clock: object) -> None:
    world = World(tmp_path)
    with world.watch() as watch:
        (tmp_path / "operator.key").rename(tmp_path / "elsewhere")
        watch.look(NOW_MS + round(0.8 * LIFE_MS))
        assert world.told == []
        soon = NOW_MS + round(0.95 * LIFE_MS)
        watch.look(soon)
        watch.look(soon)
        assert world.names() == ["certificate_ends"], "not again and again"
        assert "Put operator.key into" in str(world.told[0][1]["text"])
        await trio.sleep(WARN_EVERY_S + 1)
        watch.look(soon)
        assert world.names() == ["certificate_ends"] * 2
        world.wall_ms = NOW_MS + LIFE_MS + 1
        with pytest.raises(RunError, match=r"ended at .* Put operator\.key into"):
            await watch.run(world.leave)
        assert world.left == 1, "a checkpoint that is being written must be finished"
        (tmp_path / "elsewhere").rename(tmp_path / "operator.key")
        watch.look(world.wall_ms)
        assert world.names()[-1] == "certificate_renewed"


async def test_a_clock_that_is_set_back_without_it_is_told_as_such(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world.watch() as watch:
        (tmp_path / "operator.key").unlink()
        world.wall_ms -= 5 * DAY_MS
        with pytest.raises(RunError, match="clock is probably wrong"):
            watch.signing_ms()


async def test_a_key_of_another_swarm_renews_nothing_and_is_named(tmp_path: Path) -> None:
    other = World(tmp_path / "other")
    with other.watch():
        pass
    world = World(tmp_path / "mine")
    with world.watch() as watch:
        (tmp_path / "other" / "operator.key").replace(tmp_path / "mine" / "operator.key")
        watch.look(NOW_MS + round(0.7 * LIFE_MS))
        assert world.renewed == []
        assert "is not the key that founded this swarm" in str(world.told[0][1]["text"])
        with pytest.raises(RunError, match="is not the key that founded this swarm"):
            watch.look(NOW_MS + 2 * LIFE_MS)


async def test_a_disk_that_refuses_does_not_end_the_run(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world.watch() as watch:
        (tmp_path / ".certificate.draft").mkdir()  # nothing can be written there
        watch.look(NOW_MS + LIFE_MS + 1)
        assert world.names() == ["trouble", "certificate_renewed"]
        assert world.renewed == [watch.identity.certificate]


@settings(max_examples=10, deadline=None)
@given(st.lists(st.sampled_from([-400, -5, -1, 1, 5, 400]), min_size=1, max_size=6), st.integers(0, 2**32))
def test_a_learner_whose_clock_is_set_by_days_goes_on_to_its_end(days: list[int], seed: int) -> None:
    """Leases that a jump has ended are leased anew; nothing raises, and every step is trained on once."""
    rng = Random(seed)

    async def live(root: Path) -> None:
        async with open_learner(root, Settings(steps=6)) as learner:
            jumps = list(days)

            async def jump() -> None:
                while jumps:
                    for _ in range(rng.randint(1, 3)):
                        await learner.run.wait_changed()
                    learner.wall.ms += jumps.pop() * DAY_MS

            async with trio.open_nursery() as nursery:
                nursery.start_soon(jump)
                await learner.train(FakePeer())
                nursery.cancel_scope.cancel()
            assert [row.step for row in learner.ledger.training.newest_steps(9)] == [1, 2, 3, 4, 5, 6]

    with fast_directory() as root:
        trio.run(live, root, clock=MockClock(autojump_threshold=0.05))
