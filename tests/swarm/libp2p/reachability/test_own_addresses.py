"""Track the addresses at which this node is reached, by the results of trying them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarm.libp2p.reachability.autonat.client import Word
from swarm.libp2p.reachability.own_addresses import AGAIN_S, RETRY_S, OwnAddresses, Source, Standing
from swarm.libp2p.sockets.addresses import Address

HOME, MAPPED = (Address(kind="ip4", host=f"45.0.0.{number}", port=4001) for number in (1, 2))


def standing(own: OwnAddresses, address: Address) -> Standing:
    return next(one.standing for one in own.all() if one.address == address)


def test_one_dial_that_comes_through_is_proof() -> None:
    own = OwnAddresses()
    assert own.offer(Source.INTERFACE, [HOME], 0.0)
    assert own.due(0.0) == [HOME]
    assert own.hear(HOME, Word.REACHED, "x", 5, 1.0)
    assert standing(own, HOME) is Standing.REACHABLE
    assert own.due(2.0) == []
    assert own.due(1.0 + AGAIN_S) == [HOME]


def test_one_peers_failure_is_not_believed_while_others_can_be_asked() -> None:
    own = OwnAddresses()
    own.offer(Source.OBSERVED, [HOME], 0.0)
    assert not own.hear(HOME, Word.NOT_REACHED, "liar", 5, 1.0)
    assert not own.hear(HOME, Word.NOT_REACHED, "liar", 5, 1.0)
    assert standing(own, HOME) is Standing.UNTRIED
    assert own.due(1.0) == [HOME], "somebody else is asked at once"
    assert own.hear(HOME, Word.NOT_REACHED, "another", 5, 2.0)
    assert standing(own, HOME) is Standing.UNREACHABLE
    assert own.due(3.0) == []
    assert own.due(2.0 + RETRY_S) == [HOME]


def test_the_only_one_to_ask_is_believed() -> None:
    own = OwnAddresses()
    own.offer(Source.OBSERVED, [HOME], 0.0)
    assert own.hear(HOME, Word.NOT_REACHED, "learner", 1, 1.0)
    assert standing(own, HOME) is Standing.UNREACHABLE


def test_an_address_is_forgotten_when_nobody_offers_it() -> None:
    own = OwnAddresses()
    own.offer(Source.INTERFACE, [HOME], 0.0)
    own.offer(Source.OBSERVED, [HOME, MAPPED], 0.0)
    assert own.offer(Source.OBSERVED, [], 1.0)
    assert [one.address for one in own.all()] == [HOME]
    assert not own.offer(Source.OBSERVED, [], 2.0)
    assert not own.hear(MAPPED, Word.REACHED, "x", 1, 3.0)


def test_an_address_is_tried_again_once_a_router_maps_it() -> None:
    own = OwnAddresses()
    own.offer(Source.OBSERVED, [HOME], 0.0)
    own.hear(HOME, Word.NOT_REACHED, "learner", 1, 1.0, began_s=0.5)
    assert own.due(2.0) == []
    assert own.offer(Source.MAPPED, [HOME], 2.0)
    assert own.due(2.0) == [HOME]
    assert not own.hear(HOME, Word.NOT_REACHED, "learner", 1, 3.0, began_s=1.5), "it began before the mapping"
    assert own.due(3.0) == [HOME]
    assert own.hear(HOME, Word.REACHED, "learner", 1, 4.0, began_s=3.5)


def test_another_network_makes_all_of_it_a_question_again() -> None:
    own = OwnAddresses()
    own.offer(Source.INTERFACE, [HOME], 0.0)
    own.hear(HOME, Word.REACHED, "x", 1, 1.0)
    own.forget_verdicts()
    assert own.due(1.5) == [HOME]
    assert own.reachable() == []


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), st.sampled_from(Source), st.sets(st.sampled_from([HOME, MAPPED]))),
        st.tuples(st.just("hear"), st.sampled_from(Word), st.sampled_from([HOME, MAPPED])),
    ),
    max_size=40,
)


@given(STEPS)
def test_nothing_is_reachable_without_a_dial_that_came_through(steps: list[tuple[object, ...]]) -> None:
    own, came = OwnAddresses(), set[Address]()
    for now, step in enumerate(steps):
        match step:
            case "offer", Source() as source, frozenset() | set() as addresses:
                own.offer(source, addresses, float(now))
                came &= {one.address for one in own.all()}
            case "hear", Word() as word, Address() as address:
                own.hear(address, word, str(now), 3, float(now))
                if word is Word.REACHED and address in {one.address for one in own.all()}:
                    came.add(address)
        assert {one.address for one in own.reachable()} <= came
        assert all(one.sources for one in own.all())
