"""Send wrong announcements and manifests to a node that follows: it reports a named fault or a sentence, and goes on.

Their sender has the learner's own key, or none. A node is opened for each example, in virtual time. It hears the
announcement, asks the hostile peer for the manifest, and begins to fetch. Then an honest learner of a later incarnation
comes, and the node must get its version. An announced version that does not exist never arrives, and leaves nothing in
the store but what a valid manifest may leave.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from protocol.core.digest import digest_of
from protocol.core.envelope import Kind, seal
from protocol.core.errors import Fault, PeerError
from protocol.core.genesis import certify_learner
from protocol.core.ids import SwarmId
from protocol.core.limits import MAX_ANNOUNCEMENT_BYTES, MAX_REQUEST_BYTES
from protocol.versions import exchange
from protocol.versions.announcement import Announcement, open_announcement, topic_of
from protocol.versions.manifest import open_manifest
from protocol.versions.manifest_pieces import manifest_piece
from swarm.testing.memory_transport import MemoryNetwork
from swarm.transport.flood import GOSSIP_PROTOCOL, encode_frame
from swarm.transport.framing import open_frames
from swarm.transport.interface import Stream, StreamBroken
from tests.support import swarm_fixture as swarming
from tests.support.message_mutations import JUNK, Tree, damage, distort, packed, tree_of
from tests.support.store_fixture import CHUNK_BYTES, fill, small_model, small_swarm
from tests.support.swarm_fixture import SwarmNode, announce_manifest, key_of, open_node, peer_of

inline_threads = pytest.fixture(autouse=True)(swarming.inline_threads)

SWARM = small_swarm()
TOPIC = topic_of(SWARM.authority.swarm)
STRANGER = key_of("stranger")
FILES = small_model(10)
GOOD = SWARM.publish(FILES, version=7, patches={SWARM.publish(small_model(9), version=6).hash: b"a patch" * 40})
HONEST_FILES = small_model(20)
HONEST = SWARM.publish(HONEST_FILES, version=2**52, incarnation=2**53 - 1)
"""A version later than all but the last that has a name."""

FEW, MANY = 8, 100


def examples(number: int) -> settings:
    """Return settings for so many examples, the same ones in every run."""
    return settings(
        max_examples=number, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )


def announced(manifest: bytes, **changes: Any) -> Announcement:
    """Return the learner's announcement of the manifest with this envelope."""
    said = {"version": GOOD.version, "manifest": digest_of(manifest), "manifest_bytes": len(manifest)}
    return Announcement(**said | {"total_bytes": GOOD.manifest.total_bytes, "certificate": SWARM.certificate} | changes)


def signed(payload: bytes, kind: Kind = Kind.ANNOUNCEMENT, swarm: SwarmId = SWARM.authority.swarm) -> bytes:
    return seal(SWARM.learner, swarm, kind, payload)


@dataclass(frozen=True, kw_only=True)
class Hostile:
    """An announcement, the manifest for it, and the answer to a question for the manifest."""

    announcement: bytes
    manifest: bytes = GOOD.raw
    answer: Callable[[Any], bytes] = field(default=lambda told: packed_message(told))


def packed_message(message: Any) -> bytes:
    return packed(tree_of(message))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a node ended. `faults`: reported of the hostile peer. `troubles`: shown to the user. `arrived`: its number of
    versions. `hung_up`: it reads no more broadcasts of that peer on this stream.
    """

    faults: Counter[Fault]
    troubles: list[str]
    arrived: int
    hung_up: bool


def live(hostile: Hostile) -> Outcome:
    """Run a node through one example."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as directory:
        return trio.run(_live, Path(directory), hostile, clock=MockClock(autojump_threshold=0))


async def _live(root: Path, hostile: Hostile) -> Outcome:
    network = MemoryNetwork()

    async def answer(stream: Stream) -> None:
        try:
            async with open_frames(stream, MAX_REQUEST_BYTES) as frames:
                while (question := await frames.receive(exchange.Question)) is not None:
                    match question:
                        case exchange.AskManifest(manifest=wanted, offset=offset):
                            there = wanted == digest_of(hostile.manifest)
                            told = manifest_piece(hostile.manifest, offset) if there else exchange.NotHeld()
                            await frames.send_bytes(hostile.answer(told))
                        case _:
                            await frames.send(exchange.NotHeld())
        except StreamBroken:
            pass

    async with (
        open_node(network, SWARM, root, "node", fetches=True, follows=True, quota_bytes=1 << 20) as node,
        network.node("hostile", peer_id=peer_of("hostile")) as other,
    ):
        other.handle(exchange.ASK, answer)
        await other.dial(node.transport.addresses())
        stream = await other.open_stream(node.peer, GOSSIP_PROTOCOL)
        try:
            await stream.send_all(frame_of(hostile.announcement))
            await trio.sleep(15)
            arrived = len(node.arrivals)
            await goes_on(network, node, root, hostile)
            hung_up = await is_broken(stream)
        finally:
            await stream.abort()
        assert all(peer == other.peer_id for peer, _ in node.faults)
        faults = Counter(fault for _, fault in node.faults)
        return Outcome(faults=faults, troubles=node.troubles, arrived=arrived, hung_up=hung_up)


async def is_broken(stream: Stream) -> bool:
    try:
        await stream.send_all(frame_of(b"still here?"))
    except StreamBroken:
        return True
    return False


def frame_of(raw: bytes) -> bytes:
    """Return a broadcast; bytes that are too large for gossip are sent all the same."""
    if len(raw) <= MAX_ANNOUNCEMENT_BYTES:
        return encode_frame(b"8 bytes.", TOPIC, raw)
    name = TOPIC.encode()
    body = b"8 bytes." + bytes([len(name)]) + name + raw
    return min(len(body), 2**16 - 1).to_bytes(2, "big") + body


async def goes_on(network: MemoryNetwork, node: SwarmNode, root: Path, hostile: Hostile) -> None:
    """Check that an honest learner's version reaches the node, unless the hostile announcement was as new."""
    try:
        said = open_announcement(hostile.announcement, SWARM.authority, now_ms=0)
    except PeerError:
        pass
    else:
        if said.version >= HONEST.version:
            return
    async with open_node(network, SWARM, root, "learner") as learner:
        fill(learner.store, HONEST, HONEST_FILES)
        learner.serving.tell_gained(HONEST.hash)
        raw = announce_manifest(SWARM, HONEST)
        learner.serving.knowledge = type(learner.serving.knowledge)(
            genesis=SWARM.genesis, newest=lambda: raw, peers=lambda: []
        )
        await node.dial(learner)
        with trio.fail_after(600):
            await node.arrival_of(HONEST)


# Announcements.

ENDED = certify_learner(SWARM.operator, SWARM.authority, learner=SWARM.learner.public, not_before_ms=0, not_after_ms=1)
SHAPE = frozenset({Fault.MALFORMED, Fault.OVERSIZED})
# The damage may be in the certificate inside.
WHOSE = SHAPE | {Fault.BAD_SIGNATURE, Fault.UNAUTHORISED, Fault.WRONG_SWARM, Fault.WRONG_KIND}
TREE = tree_of(announced(GOOD.raw))

ANNOUNCEMENTS: Mapping[str, tuple[st.SearchStrategy[bytes], frozenset[Fault]]] = {
    "noise": (st.binary(max_size=300), SHAPE),
    "too large": (st.integers(1025, 60_000).map(lambda size: signed(bytes(size))), frozenset({Fault.OVERSIZED})),
    "damaged after it was signed": (damage(signed(packed(TREE))), WHOSE),
    "damaged before it was signed": (damage(packed(TREE)).map(signed), WHOSE),
    "distorted before it was signed": (
        st.composite(lambda draw: signed(packed(distort(draw, TREE))))(),
        WHOSE,
    ),
    "signed by a stranger": (
        st.just(seal(STRANGER, SWARM.authority.swarm, Kind.ANNOUNCEMENT, packed(TREE))),
        frozenset({Fault.UNAUTHORISED}),
    ),
    "signed by a stranger with a certificate of its own": (
        st.just(
            seal(
                STRANGER,
                SWARM.authority.swarm,
                Kind.ANNOUNCEMENT,
                packed(
                    TREE
                    | {
                        "certificate": certify_learner(
                            STRANGER, SWARM.authority, learner=STRANGER.public, not_before_ms=0, not_after_ms=10**15
                        )
                    }
                ),
            )
        ),
        frozenset({Fault.UNAUTHORISED}),
    ),
    "with a certificate that has ended": (
        st.just(signed(packed(TREE | {"certificate": ENDED}))),
        frozenset({Fault.UNAUTHORISED}),
    ),
    "for another swarm": (
        st.binary(min_size=32, max_size=32).map(lambda swarm: signed(packed(TREE), swarm=SwarmId(swarm))),
        frozenset({Fault.WRONG_SWARM}),
    ),
    "as something else": (
        st.sampled_from([kind for kind in Kind if kind is not Kind.ANNOUNCEMENT]).map(
            lambda kind: signed(packed(TREE), kind=kind)
        ),
        frozenset({Fault.WRONG_KIND}),
    ),
}


@pytest.fixture(params=[FEW, pytest.param(MANY, marks=pytest.mark.slow)], ids=["few", "many"])
def number(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.mark.parametrize("name", ANNOUNCEMENTS)
def test_an_announcement_made_wrong_is_its_senders_fault_and_no_version_comes_of_it(name: str, number: int) -> None:
    drawn, faults = ANNOUNCEMENTS[name]
    found: Counter[Fault | str] = Counter()

    @examples(number)
    @given(drawn)
    def hear(raw: bytes) -> None:
        outcome = live(Hostile(announcement=raw))
        assert outcome.faults.keys() <= faults, outcome
        assert not outcome.arrived, "a version arrived whose chunks no peer has"
        assert outcome.faults or outcome.hung_up or outcome.troubles, (
            "a valid announcement must at least end in a trouble"
        )
        found.update(outcome.faults)
        found["hung up"] += outcome.hung_up

    hear()
    assert found.total() > 0, "a weak mutation"


# Manifests.


def _manifest(draw: st.DrawFn, change: Callable[[st.DrawFn, Tree], Tree]) -> Hostile:
    raw = signed(packed(change(draw, tree_of(GOOD.manifest))), Kind.MANIFEST)
    return Hostile(announcement=signed(packed_message(announced(raw))), manifest=raw)


def _files(values: Callable[[st.DrawFn, list[Any]], Any]) -> Callable[[st.DrawFn, Tree], Tree]:
    return lambda draw, tree: tree | {"files": values(draw, tree["files"])}


BAD_NAMES = ["../x.json", "/etc/x.json", "x.py", "x.pt", ".json", "a/b.json", "x.json\0", "CON.json\n", "", "x" * 200]


def _named(draw: st.DrawFn, files: list[Any]) -> list[Any]:
    return [[draw(st.sampled_from(BAD_NAMES)), *files[0][1:]], *files[1:]]


def _cut(draw: st.DrawFn, files: list[Any]) -> list[Any]:
    name, size, chunks = files[0]
    wrong = draw(
        st.sampled_from(
            [[name, size + 1, chunks], [name, size, chunks[:-1]], [name, size, [*chunks, len(chunks) + 10**6]],
             [name, 2**40, chunks], [name, size, chunks * 2]]
        )
    )  # fmt: skip
    return [wrong, *files[1:]]


def _chunks(draw: st.DrawFn, tree: Tree) -> Tree:
    chunks = [list(chunk) for chunk in tree["chunks"]]
    at = draw(st.integers(0, len(chunks) - 1))
    match draw(st.sampled_from(["size", "none", "twice", "cid"])):
        case "size":
            chunks[at][1] = draw(st.sampled_from([0, -1, 2**23 + 1, 2**63, CHUNK_BYTES + 1]))
        case "none":
            del chunks[at]
        case "twice":
            chunks[at] = chunks[at - 1]
        case _:
            chunks[at][0] = draw(st.sampled_from([b"", bytes(36), b"\xff" * 36, bytes(chunks[at][0])[:-1]]))
    return tree | {"chunks": chunks}


def _tensors(draw: st.DrawFn, tree: Tree) -> Tree:
    tensors = [list(tensor) for tensor in tree["tensors"]]
    at = draw(st.integers(0, len(tensors) - 1))
    wrong = [(1, "F99"), (2, [2**39] * 8), (2, [-1]), (3, 99), (4, 2**52), (5, 0), (0, tensors[at - 1][0])]
    place, value = draw(st.sampled_from(wrong))
    tensors[at][place] = value
    return tree | {"tensors": tensors}


def _patches(draw: st.DrawFn, tree: Tree) -> Tree:
    [[base, size, chunks]] = tree["patches"]
    wrong = [[base, size + 1, chunks], [base, size, []], [b"", size, chunks], [base, size, [2**40]]]
    return tree | {"patches": draw(st.sampled_from([[one] for one in wrong] + [[[base, size, chunks]] * 2]))}


def _enormous(draw: st.DrawFn, tree: Tree) -> Tree:
    """Return a manifest for which there is no room, with chunks that add up: nothing is fetched."""
    size = 8 * 2**20
    chunks = [[bytes(tree["chunks"][0][0])[:-4] + number.to_bytes(4, "big"), size] for number in range(4)]
    return tree | {
        "chunks": chunks, "files": [["model.json", 4 * size, [0, 1, 2, 3]]], "tensors": [], "patches": [],
    }  # fmt: skip


def _answered(draw: st.DrawFn) -> Hostile:
    """Draw a valid manifest, where the answer to a question for it is none."""
    wrong = draw(st.sampled_from(["distorted", "noise", "junk", "empty", "another"]))
    told = exchange.TellManifest(manifest=GOOD.raw)
    body = {
        "distorted": lambda: packed(distort(draw, tree_of(told))),
        "noise": lambda: draw(st.binary(max_size=100)),
        "junk": lambda: packed(draw(st.sampled_from(JUNK))),
        "empty": lambda: packed(tree_of(told) | {"manifest": b"", "total": draw(st.sampled_from([0, 2**53 - 1]))}),
        "another": lambda: packed_message(exchange.TellManifest(manifest=HONEST.raw)),
    }[wrong]()
    return Hostile(announcement=signed(packed_message(announced(GOOD.raw))), answer=lambda told: body)


def made(change: Callable[[st.DrawFn, Tree], Tree]) -> st.SearchStrategy[Hostile]:
    return st.composite(_manifest)(change)


MANIFESTS: Mapping[str, st.SearchStrategy[Hostile]] = {
    "distorted before it was signed": made(distort),
    "file names": made(_files(_named)),
    "file sizes": made(_files(_cut)),
    "files twice": made(_files(lambda draw, files: [*files, files[0]])),
    "chunks": made(_chunks),
    "tensors": made(_tensors),
    "patches": made(_patches),
    "of another version than announced": made(
        lambda draw, tree: tree | {"version": draw(st.sampled_from([[1, 8], [0, 0], [2, 7]]))}
    ),
    "enormous": made(_enormous),
    "answers": st.composite(_answered)(),
    "no manifest at all": st.builds(
        lambda raw: Hostile(announcement=signed(packed_message(announced(raw))), manifest=raw),
        st.binary(min_size=1, max_size=200) | damage(GOOD.raw),
    ),
    "sizes that are not so": st.builds(
        lambda size, total: Hostile(
            announcement=signed(packed_message(announced(GOOD.raw, manifest_bytes=size, total_bytes=total)))
        ),
        st.sampled_from([0, 1, len(GOOD.raw) + 1, 2**26 + 2**12, 2**53 - 1]),
        st.sampled_from([0, 1, 2**53 - 1]),
    ),
}
HARMLESS = frozenset({"sizes that are not so"})
"""The manifest's own sizes count, not the announced ones."""


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_made_wrong_is_never_a_version_and_the_next_one_is_fetched(name: str, number: int) -> None:
    refused = Counter[str]()

    @examples(number)
    @given(MANIFESTS[name])
    def fetch(hostile: Hostile) -> None:
        outcome = live(hostile)
        assert not outcome.arrived
        for text in outcome.troubles:
            assert text.endswith(". The active version stays in use.") or text.endswith("."), text
        refused["faults"] += len(outcome.faults)
        refused["troubles"] += bool(outcome.troubles)

    fetch()
    assert refused.total() > 0 or name in HARMLESS, "a weak mutation"


def test_the_good_ones_are_good() -> None:
    """Otherwise the other tests would show nothing."""
    outcome = live(Hostile(announcement=signed(packed(TREE))))
    assert (outcome.faults, outcome.arrived, outcome.hung_up) == (Counter(), 0, False)
    assert len(outcome.troubles) == 1
    assert "no neighbour that we may ask holds" in outcome.troubles[0], (
        "the node must look for the chunks of a valid version"
    )
    assert open_manifest(GOOD.raw, SWARM.authority).manifest == GOOD.manifest
