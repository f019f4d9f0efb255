"""Choose the peer to ask for a manifest: a slow one costs a second, and memory is bounded."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from protocol.core.ids import PeerId
from swarm.versions.manifest_inquiry import (
    MANIFEST_RATE,
    MANIFEST_TIMEOUT_S,
    MAX_CARRIERS,
    Ask,
    Effect,
    Ended,
    Event,
    Heard,
    Leave,
    ManifestInquiry,
    PieceCame,
    Tick,
    WholeCame,
)

A, B, C, D = (PeerId(name) for name in "abcd")
ALL = (A, B, C, D)
PIECE = 4 * MANIFEST_RATE


def inquiry() -> ManifestInquiry:
    return ManifestInquiry(piece_bytes=PIECE)


def play(core: ManifestInquiry, *events: tuple[float, Event]) -> list[tuple[float, Effect]]:
    return [(at, effect) for at, event in events for effect in core.handle(event, at)]


def test_one_is_asked_and_the_next_when_it_is_silent_for_a_second() -> None:
    core = inquiry()
    assert play(core, (0.0, Tick(present=ALL))) == [(0.0, Ask(peer=A))]
    assert core.next_at == MANIFEST_TIMEOUT_S
    assert play(core, (0.5, Tick(present=ALL))) == []
    assert play(core, (1.0, Tick(present=ALL)), (2.0, Tick(present=ALL))) == [(1.0, Ask(peer=B)), (2.0, Ask(peer=C))]


def test_who_is_heard_of_is_left_alone() -> None:
    core = inquiry()
    heard = [(0.9 * step, Heard(peer=A, size_bytes=step)) for step in range(1, 5)]
    ticks = [(at + 0.05, Tick(present=ALL)) for at, _ in heard]
    assert play(core, (0.0, Tick(present=ALL)), *sorted(heard + ticks, key=lambda one: one[0])) == [(0.0, Ask(peer=A))]


def test_the_same_bytes_are_no_progress() -> None:
    core = inquiry()
    again = Heard(peer=A, size_bytes=7)
    effects = play(core, (0.0, Tick(present=ALL)), (0.5, again), (1.0, again), (1.5, again), (1.5, Tick(present=ALL)))
    assert effects == [(0.0, Ask(peer=A)), (1.5, Ask(peer=B))]


def test_who_trickles_costs_what_a_piece_would_take_and_no_more() -> None:
    core = inquiry()
    core.handle(Tick(present=ALL), 0.0)
    piece_s = MANIFEST_TIMEOUT_S + PIECE / MANIFEST_RATE
    for step in range(1, 200):
        at = step / 20
        effects = play(core, (at, Heard(peer=A, size_bytes=step)), (at, Tick(present=ALL)))
        assert effects == ([(at, Ask(peer=B))] if at == piece_s else [])
        if effects:
            return
    raise AssertionError("nobody else was asked")


def test_each_piece_has_its_own_time() -> None:
    core = inquiry()
    core.handle(Tick(present=ALL), 0.0)
    for piece in range(1, 10):
        at = 4.0 * piece
        core.handle(Heard(peer=A, size_bytes=piece * PIECE), at)
        assert play(core, (at, PieceCame(peer=A)), (at + 0.9, Tick(present=ALL))) == []


def test_who_is_being_checked_is_waited_for() -> None:
    core = inquiry()
    assert play(core, (0.0, Tick(present=ALL)), (0.5, WholeCame(peer=A)), (60.0, Tick(present=ALL))) == [
        (0.0, Ask(peer=A))
    ]
    assert core.next_at == math.inf


def test_who_ended_is_followed_by_the_next_at_once_and_by_nobody_while_another_keeps_up() -> None:
    core = inquiry()
    assert play(core, (0.0, Tick(present=ALL)), (0.1, Ended(peer=A)), (0.1, Tick(present=ALL)))[1:] == [
        (0.1, Ask(peer=B))
    ]
    play(core, (1.1, Tick(present=ALL)))  # B is late: C
    effects = play(core, (1.5, Heard(peer=B, size_bytes=9)), (1.6, Ended(peer=C)), (1.6, Tick(present=ALL)))
    assert effects == [], "B goes on"


def test_nobody_is_asked_twice_and_who_comes_later_is_asked_too() -> None:
    core = inquiry()
    assert play(core, (0.0, Tick(present=[A])), (0.1, Ended(peer=A)), (0.1, Tick(present=[A]))) == [(0.0, Ask(peer=A))]
    assert not core.waiting
    assert play(core, (5.0, Tick(present=[A, D]))) == [(5.0, Ask(peer=D))]
    assert core.waiting


def test_beyond_the_first_piece_the_slowest_gives_way() -> None:
    core = inquiry()
    core.handle(Tick(present=ALL), 0.0)
    for at, peer in ((1.0, B), (2.0, C)):
        assert core.handle(Tick(present=ALL), at) == [Ask(peer=peer)]
    sizes = {A: 3 * PIECE, B: PIECE, C: 2 * PIECE}
    effects: list[Effect] = []
    for peer, size_bytes in sizes.items():
        core.handle(Heard(peer=peer, size_bytes=size_bytes), 4.0)
        effects += core.handle(PieceCame(peer=peer), 4.0)
    assert effects == [Leave(peer=B)]
    assert core.handle(Heard(peer=B, size_bytes=9 * PIECE), 4.1) == [], "it is not missed"


def test_those_late_are_named() -> None:
    core = inquiry()
    play(core, (0.0, Tick(present=ALL)), (1.0, Tick(present=ALL)))
    assert core.late(1.5) == [A]


peers = st.sampled_from(ALL)
steps = st.lists(
    st.tuples(
        st.floats(0, 3), peers, st.sampled_from(["heard", "piece", "whole", "ended", "tick"]), st.integers(0, PIECE)
    ),
    max_size=60,
)


@given(steps)
def test_whatever_peers_do_carriers_are_few_and_while_nobody_keeps_up_all_are_asked(
    steps: list[tuple[float, PeerId, str, int]],
) -> None:
    core, now = inquiry(), 0.0
    asked: set[PeerId] = set()
    here: set[PeerId] = set()
    carrying: set[PeerId] = set()
    for wait, peer, what, size in steps:
        now += wait
        kinds: dict[str, Event] = {
            "heard": Heard(peer=peer, size_bytes=size),
            "piece": PieceCame(peer=peer),
            "whole": WholeCame(peer=peer),
            "ended": Ended(peer=peer),
            "tick": Tick(present=ALL),
        }
        if what == "piece" and peer in here:
            carrying.add(peer)
        if what == "ended":
            here.discard(peer)
            carrying.discard(peer)
        for effect in core.handle(kinds[what], now):
            match effect:
                case Ask(peer=one):
                    assert one not in asked
                    asked.add(one)
                    here.add(one)
                case Leave(peer=one):
                    here.remove(one)
                    carrying.remove(one)
        assert len(carrying) <= MAX_CARRIERS
        assert core.waiting == bool(here)
        if what == "tick":
            assert core.next_at > now or asked == set(ALL)
