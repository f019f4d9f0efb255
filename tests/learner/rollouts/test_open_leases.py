"""Count open leases, check their holders, and derive their seeds."""

from __future__ import annotations

from collections import Counter
from itertools import count, pairwise
from typing import Any

import pytest

from learner.rollouts.admission import GrantedLease
from learner.rollouts.open_leases import LeaseTerms, Leasing, Prompt, delivery_bytes, own_lease, seed_of
from protocol.core.codec import encode, unpack_tokens
from protocol.core.envelope import sign
from protocol.core.errors import LocalProtocolError
from protocol.core.ids import LeaseId, PeerId
from protocol.core.limits import MAX_SPANS, MAX_WORK_BYTES
from protocol.work import Delivery, Span
from tests.support.trainer_fixture import NOW_MS, OTHER, PEER, SWARM, granted, lease_id, manifest, record, version

HERE, THERE = PEER.peer_id, OTHER.peer_id


def terms(**changes: Any) -> LeaseTerms:
    settings: dict[str, Any] = {
        "group_size": 4,
        "temperature": 0.5,
        "max_new_tokens": 8,
        "stop_ids": (9, 3),
        "deadline_s": 60.0,
    }
    return LeaseTerms(**settings | changes)


def leasing(**changes: Any) -> Leasing:
    numbers = count(1)
    return Leasing(terms=terms(**changes), secret=bytes(32), new_id=lambda: next(numbers).to_bytes(16, "big"))


PROMPT = Prompt(task="even", index=5, tokens=(1, 2, 3))


def grant(leases: Leasing, peer: PeerId = HERE) -> LeaseId:
    return leases.grant(peer, PROMPT, version("1.2"), NOW_MS).id


def test_a_lease_says_what_the_terms_say() -> None:
    leases = leasing()
    lease = leases.grant(HERE, PROMPT, version("1.2"), NOW_MS).lease
    assert unpack_tokens(lease.prompt) == (1, 2, 3)
    assert lease.task == "even"
    assert lease.sampler.temperature == 0.5
    assert lease.stop_ids == [3, 9]
    assert (lease.issued_ms, lease.deadline_ms) == (NOW_MS, NOW_MS + 60_000)
    assert lease.minimum == version("1.2")
    assert len(lease.seeds) == 4
    assert leases.open_rollouts == 4
    sign(SWARM.learner, SWARM.authority.swarm, lease)  # every field within the protocol's bounds


def test_a_lease_is_found_by_its_holder_alone() -> None:
    leases = leasing()
    lease = grant(leases)
    assert leases.lookup(lease, HERE) is leases.open[lease]
    assert leases.lookup(lease, THERE) is None
    assert leases.lookup(lease_id(99), HERE) is None


def ids(leases: list[GrantedLease]) -> list[LeaseId]:
    return [granted.id for granted in leases]


def test_how_leases_end() -> None:
    leases = leasing()
    mine, delivered, returned, theirs = grant(leases), grant(leases), grant(leases), grant(leases, THERE)
    assert leases.take(delivered, THERE) is None
    taken = leases.take(delivered, HERE)
    assert taken is not None
    assert taken.id == delivered
    assert leases.take(delivered, HERE) is None
    assert leases.open_rollouts == 16, "what is being judged still takes its room"
    leases.close(delivered)
    leases.close(delivered)
    assert leases.open_rollouts == 12
    assert ids(leases.return_leases(HERE, [returned, theirs, delivered, lease_id(99)])) == [returned]
    assert ids(leases.release(HERE)) == [mine]
    assert leases.release(HERE) == []
    assert list(leases.open) == [theirs]
    assert leases.expire(NOW_MS + 62_000, 2_000) == []
    assert ids(leases.expire(NOW_MS + 62_001, 2_000)) == [theirs]
    assert leases.open_rollouts == 0


def test_what_has_arrived_stays_open_when_its_peer_goes() -> None:
    leases = leasing()
    arrived, mine = grant(leases), grant(leases)
    leases.arrives(arrived, HERE, NOW_MS)
    assert leases.return_leases(HERE, [arrived]) == []
    assert ids(leases.release(HERE)) == [mine]
    assert leases.take(arrived, HERE) is not None


def test_what_is_recalled_is_open_and_not_counted_on() -> None:
    leases = leasing()
    begun, returned, delivered, counted = (grant(leases) for _ in range(4))
    for lease in (begun, returned, delivered):
        leases.recall(lease)
    assert (leases.open_rollouts, leases.pending(HERE)) == (4, 16)
    assert set(leases.open) == {begun, returned, delivered, counted}
    assert leases.started(begun, HERE, version("1.4")), "it was begun before its peer heard of the recall"
    assert leases.by_version == {2: 4, 4: 4}
    assert ids(leases.return_leases(HERE, [returned])) == [returned]
    assert leases.take(delivered, HERE) is not None
    leases.close(delivered)
    assert (leases.open_rollouts, leases.pending(HERE)) == (8, 8)
    assert leases.recalled == {}


def test_which_version_makes_a_lease() -> None:
    leases = leasing()
    lease = leases.open[grant(leases)]
    assert leases.made_with(lease, None) is None
    assert leases.made_with(lease, version("1.1")) == version("1.2"), "it waits for what it asks for"
    assert leases.made_with(lease, version("1.5")) == version("1.5")
    leases.started(lease.id, HERE, version("1.3"))
    assert leases.made_with(lease, version("1.5")) == leases.made_with(lease, None) == version("1.3")


def test_a_lease_from_before_a_restart_is_open_again() -> None:
    leases, old = leasing(), granted(77, size=2)
    leases.recover(old)
    assert leases.lookup(old.id, HERE) is old
    assert leases.open_rollouts == 2


def test_our_own_lease_is_read_whoever_signed_it() -> None:
    lease = granted(3).lease
    for key in (SWARM.learner, SWARM.operator):
        assert own_lease(sign(key, SWARM.authority.swarm, lease), SWARM.authority.swarm) == lease


def test_seeds_are_all_different_and_need_the_secret() -> None:
    """Golden: HMAC-SHA256(32 zero bytes, 00...01 (16 bytes) || 00000002), its first 8 bytes, as openssl says."""
    assert seed_of(bytes(32), lease_id(1), 2) == 0x6B9E870806985236
    seeds = Counter(seed_of(secret, lease_id(n), i) for secret in (b"a", b"b") for n in range(50) for i in range(16))
    assert len(seeds) == 2 * 50 * 16
    assert all(0 <= seed < 2**64 for seed in seeds)
    low = sum(seed % 2 for seed in seeds)
    assert abs(low - 800) < 5 * 20, "fair bits: 1600 coins, 5 sigma"


def test_a_delivery_of_the_largest_group_allowed_fits_a_frame() -> None:
    """The worst record: every token its own span where it may be, no field shorter than it can get."""
    size, tokens = 1024, 1024
    assert delivery_bytes(size, tokens) == MAX_WORK_BYTES
    lease = granted(size=size, max_new_tokens=tokens, stop_ids=[]).lease
    name = version("1.3")
    edges = [*range(MAX_SPANS), tokens]
    spans = [Span(a, b, name, manifest(name)) for a, b in pairwise(edges)]
    raw = record(lease, 1023, tokens=[63] * tokens, spans=spans)
    assert len(encode(Delivery(lease=lease.id, records=[raw] * size))) <= MAX_WORK_BYTES
    with pytest.raises(LocalProtocolError, match="may not fit a delivery"):
        terms(group_size=size, max_new_tokens=tokens + 1)
