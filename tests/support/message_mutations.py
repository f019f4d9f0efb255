"""Make wrong messages for tests of the code that acts on them: bytes damaged after signing, and values before.

Everything is a hypothesis strategy or a function of its arguments. `CLAIMS` is the table of what a properly keyed peer
may do to a record of its own: for each class of mutation the rules that may reject it. A class that is never rejected
by one of its rules is weak, and the test that uses it fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from hypothesis import find, settings
from hypothesis import strategies as st

from protocol.core.envelope import Kind, seal
from protocol.core.identity import Keypair
from protocol.core.ids import SwarmId
from protocol.core.limits import MAX_TOKEN_ID
from protocol.work import MAX_RECORD_BYTES, Rule

JUNK: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**53 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), float("nan"), float("inf"),
    -float("inf"), -1.5, 1e300, "", "x" * 600, "\0", "\x1b[2J", "../x", "\N{RIGHT-TO-LEFT OVERRIDE}", b"", b"\0",
    b"\0" * 16, b"\0" * 31, b"\0" * 32, b"\xff" * 36, b"\0" * 10_000, [], [[]], [0] * 70, {}, {"type": "have"},
    {"": None}, [1, [2, [3]]],
]  # fmt: skip
"""Values of every kind that MessagePack has, of sizes at and beyond the bounds."""

Tree = dict[str, Any]
"""A message as MessagePack has it: its keys may name values of any kind."""

Draw = st.DrawFn


def kinds_drawn(said: Mapping[str, st.SearchStrategy[Any]]) -> set[type]:
    """Return the types of the messages that these strategies draw, of which each draws one type."""
    return {type(find(strategy, lambda _: True, settings=settings(database=None))) for strategy in said.values()}


def tree_of(message: msgspec.Struct) -> Tree:
    """Return the message as a tree that can be changed."""
    found: Tree = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    return found


def packed(tree: object) -> bytes:
    """Return its bytes; values that MessagePack cannot encode are not drawn."""
    return msgspec.msgpack.encode(tree)


@st.composite
def damage(draw: Draw, raw: bytes) -> bytes:
    """Draw `raw` with one to four bytes or stretches changed, inserted, removed or cut off."""
    out = bytearray(raw)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(out)))
        out[at : at + draw(st.sampled_from([0, 1, 1, 1, 4, len(out)]))] = draw(st.binary(max_size=5))
    return bytes(out)


def distort(draw: Draw, tree: Tree) -> Tree:
    """Draw a tree with one to three values, anywhere inside, replaced; or with a key removed, added, or renamed."""
    changed = deepcopy(tree)
    for _ in range(draw(st.integers(1, 3))):
        node: Any = changed
        while keys := list(node) if isinstance(node, dict) else list(range(len(node))):
            key = draw(st.sampled_from(keys))
            if isinstance(node[key], dict | list) and draw(st.booleans()):
                node = node[key]
                continue
            match draw(st.sampled_from(["value", "value", "value", "gone", "more", "renamed"])):
                case "gone":
                    del node[key]
                case "more" if isinstance(node, dict):
                    name = draw(st.sampled_from(["", "x", "type", "ext", "lease" * 50]))
                    node[name] = deepcopy(draw(st.sampled_from(JUNK)))
                case "renamed" if isinstance(node, dict):
                    node[draw(st.sampled_from(keys))] = node.pop(key)
                case _:
                    node[key] = deepcopy(draw(st.sampled_from(JUNK)))
            break
    return changed


@st.composite
def distortion(draw: Draw, message: msgspec.Struct) -> bytes:
    """Draw the bytes of `message`, distorted before they were signed."""
    return packed(distort(draw, tree_of(message)))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The facts for making a record wrong: its author, other peers, and names that its lease does not give.

    `stale` and `orphaned` are (incarnation, version) with the manifests that they had, `foreign` is a manifest that
    never existed.
    """

    swarm: SwarmId
    author: Keypair
    other: Keypair
    other_lease: bytes
    budget: int
    stop: int
    vocabulary: int
    seeds: int
    stale: tuple[list[int], bytes]
    orphaned: tuple[list[int], bytes]

    def sealed(self, payload: bytes, *, by: Keypair | None = None, kind: Kind = Kind.RECORD) -> bytes:
        return seal(by or self.author, self.swarm, kind, payload)


Make = Callable[[Draw, Tree, Setting], bytes]


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """How a record is made wrong, and the rules that may reject it. `harmless`: it may be admitted as well."""

    make: Make
    rules: frozenset[Rule]
    harmless: bool = False


def _tokens(values: list[int]) -> bytes:
    return np.asarray(values, "<u4").tobytes()


def _logprobs(values: list[float]) -> bytes:
    return np.asarray(values, "<f4").tobytes()


def _field(name: str, values: Callable[[Draw, Tree, Setting], Any]) -> Make:
    def make(draw: Draw, tree: Tree, setting: Setting) -> bytes:
        return setting.sealed(packed(tree | {name: values(draw, tree, setting)}))

    return make


def _completion(values: Callable[[Draw, Setting], list[int]]) -> Make:
    """Return a mutation with other tokens, and log probabilities and one span that fit them."""

    def make(draw: Draw, tree: Tree, setting: Setting) -> bytes:
        tokens = values(draw, setting)
        first = tree["spans"][0]
        fitting = {
            "tokens": _tokens(tokens),
            "logprobs": _logprobs([-0.5] * len(tokens)),
            "spans": [[0, len(tokens), *first[2:]]],
        }
        return setting.sealed(packed(tree | fitting))

    return make


def _odd_spans(draw: Draw, tree: Tree, setting: Setting) -> list[Any]:
    _, _, version, manifest = tree["spans"][0]
    count = len(tree["tokens"]) // 4
    edges = draw(st.lists(st.tuples(st.integers(0, count + 2), st.integers(0, count + 2)), max_size=70))
    if [edge for one in edges for edge in one] == [0, count]:
        edges = []
    return [[start, end, version, manifest] for start, end in edges]


def _odd_logprobs(draw: Draw, tree: Tree, setting: Setting) -> bytes:
    count = len(tree["logprobs"]) // 4
    wrong = st.sampled_from([math.nan, math.inf, -math.inf, 1.0, -101.0, -3e38])
    match draw(st.sampled_from(["value", "more", "fewer", "torn"])):
        case "value":
            values = [-0.5] * count
            values[draw(st.integers(0, count - 1))] = draw(wrong)
            return _logprobs(values)
        case "more":
            return _logprobs([-0.5] * (count + draw(st.integers(1, 3))))
        case "fewer":
            return _logprobs([-0.5] * draw(st.integers(0, count - 1)))
        case _:
            return bytes(tree["logprobs"][:-1])


def _spoken_with(name: Callable[[Draw, Setting], tuple[list[int], bytes]]) -> Make:
    """Return a mutation that claims that version and manifest for all tokens."""

    def make(draw: Draw, tree: Tree, setting: Setting) -> bytes:
        version, manifest = name(draw, setting)
        spans = [[start, end, version, manifest] for start, end, *_ in tree["spans"]]
        return setting.sealed(packed(tree | {"spans": spans}))

    return make


def _never_published(draw: Draw, setting: Setting) -> tuple[list[int], bytes]:
    version = draw(st.sampled_from([[2, 4], [2, 2**53 - 1], [3, 0], [2**53 - 1, 2**53 - 1]]))
    return version, draw(st.binary(min_size=32, max_size=32))


def _beyond_the_chain(draw: Draw, setting: Setting) -> tuple[list[int], bytes]:
    """Name a version of a past that the learner may have forgotten: the record is called orphaned or too old, not a
    lie.
    """
    version = draw(st.sampled_from([[0, 0], [0, 2**53 - 1], [1, 2**31], [1, 2**53 - 1]]))
    return version, draw(st.binary(min_size=32, max_size=32))


def _too_long(draw: Draw, setting: Setting) -> list[int]:
    return [1] * draw(st.sampled_from([setting.budget + 1, 1000])) + [setting.stop]


def _badly_ended(draw: Draw, setting: Setting) -> list[int]:
    return draw(st.sampled_from([[1], [setting.stop, setting.stop], [1, setting.stop, 1], [setting.stop, 1]]))


def _cut(draw: Draw, tree: Tree, setting: Setting) -> bytes:
    kept = draw(st.lists(st.sampled_from(sorted(tree)), unique=True, max_size=len(tree) - 1))
    return setting.sealed(packed({key: tree[key] for key in kept}))


def _wordy(draw: Draw, tree: Tree, setting: Setting) -> bytes:
    names = st.sampled_from(["", "x", "ext", "type", "Lease", "lease\0", "\N{SNOWMAN}", "x" * 5000])
    more = draw(st.dictionaries(names, st.sampled_from(JUNK), min_size=1, max_size=5))
    return setting.sealed(packed(tree | more))


def _of_junk(draw: Draw) -> Any:
    return draw(st.sampled_from(JUNK))


SHAPE = frozenset({Rule.MALFORMED, Rule.OVERSIZED})
BEFORE_SIGNATURES = SHAPE | {Rule.UNKNOWN_LEASE, Rule.UNKNOWN_VERSION, Rule.STALE, Rule.ORPHANED, Rule.SETTINGS}
ANY = BEFORE_SIGNATURES | {Rule.BAD_SIGNATURE, Rule.WRONG_PEER}

CLAIMS: Mapping[str, Mutation] = {
    "noise": Mutation(make=lambda draw, tree, setting: draw(st.binary(max_size=400)), rules=SHAPE),
    "too many bytes": Mutation(
        make=lambda draw, tree, setting: setting.sealed(packed(tree) + bytes(MAX_RECORD_BYTES)),
        rules=frozenset({Rule.OVERSIZED}),
    ),
    "damaged after it was signed": Mutation(
        make=lambda draw, tree, setting: draw(damage(setting.sealed(packed(tree)))),
        rules=BEFORE_SIGNATURES | {Rule.BAD_SIGNATURE},
        harmless=True,  # the part that was cut out may have been put back
    ),
    "damaged before it was signed": Mutation(
        make=lambda draw, tree, setting: setting.sealed(draw(damage(packed(tree)))), rules=ANY, harmless=True
    ),
    "distorted before it was signed": Mutation(
        make=lambda draw, tree, setting: setting.sealed(packed(distort(draw, tree))), rules=ANY, harmless=True
    ),
    "fields left out": Mutation(make=_cut, rules=SHAPE),
    "fields of its own": Mutation(make=_wordy, rules=SHAPE, harmless=True),
    "of another lease": Mutation(
        make=_field("lease", lambda draw, tree, setting: setting.other_lease), rules=frozenset({Rule.UNKNOWN_LEASE})
    ),
    "of no lease": Mutation(
        make=_field("lease", lambda draw, tree, setting: draw(st.binary(min_size=16, max_size=16))),
        rules=frozenset({Rule.UNKNOWN_LEASE}),
    ),
    "an index beyond the seeds": Mutation(
        make=_field("index", lambda draw, tree, setting: draw(st.integers(setting.seeds, 1023))),
        rules=frozenset({Rule.SETTINGS}),
    ),
    "an index that is none": Mutation(
        make=_field("index", lambda draw, tree, setting: draw(st.sampled_from([-1, 1024, 2**63, 0.0, "0", None]))),
        rules=SHAPE,
    ),
    "signed by another": Mutation(
        make=lambda draw, tree, setting: setting.sealed(packed(tree), by=setting.other),
        rules=frozenset({Rule.WRONG_PEER}),
    ),
    "signed as something else": Mutation(
        make=lambda draw, tree, setting: setting.sealed(
            packed(tree), kind=draw(st.sampled_from([kind for kind in Kind if kind is not Kind.RECORD]))
        ),
        rules=SHAPE,
    ),
    "signed for another swarm": Mutation(
        make=lambda draw, tree, setting: seal(
            setting.author, SwarmId(draw(st.binary(min_size=32, max_size=32))), Kind.RECORD, packed(tree)
        ),
        rules=SHAPE,
    ),
    "of a version that never was": Mutation(
        make=_spoken_with(_never_published), rules=frozenset({Rule.UNKNOWN_VERSION})
    ),
    "of a version of another past": Mutation(
        make=_spoken_with(_beyond_the_chain),
        rules=frozenset({Rule.UNKNOWN_VERSION, Rule.ORPHANED, Rule.STALE, Rule.SETTINGS}),
    ),
    "of a version that is too old": Mutation(
        make=_spoken_with(lambda draw, setting: setting.stale), rules=frozenset({Rule.STALE})
    ),
    "of a version that was cut off": Mutation(
        make=_spoken_with(lambda draw, setting: setting.orphaned), rules=frozenset({Rule.ORPHANED})
    ),
    "with another manifest": Mutation(
        make=lambda draw, tree, setting: setting.sealed(
            packed(tree | {"spans": [[*span[:3], draw(st.binary(min_size=32, max_size=32))] for span in tree["spans"]]})
        ),
        rules=frozenset({Rule.UNKNOWN_VERSION}),
    ),
    "spans that do not fit": Mutation(make=_field("spans", _odd_spans), rules=SHAPE),
    "another temperature": Mutation(
        make=_field(
            "sampler", lambda draw, tree, setting: {"temperature": draw(st.floats(0.01, 100).filter(lambda t: t != 1))}
        ),
        rules=frozenset({Rule.SETTINGS}),
    ),
    "a temperature that is none": Mutation(
        make=_field(
            "sampler",
            lambda draw, tree, setting: {"temperature": draw(st.sampled_from([0, -1, math.nan, math.inf, 101, "1"]))},
        ),
        rules=SHAPE,
    ),
    "longer than the budget": Mutation(make=_completion(_too_long), rules=frozenset({Rule.SETTINGS})),
    "a million tokens": Mutation(
        make=_completion(lambda draw, setting: [1] * 1_000_000), rules=frozenset({Rule.OVERSIZED})
    ),
    "tokens that do not exist": Mutation(
        make=_completion(lambda draw, setting: [draw(st.integers(setting.vocabulary, MAX_TOKEN_ID)), setting.stop]),
        rules=frozenset({Rule.SETTINGS}),
    ),
    "an end that is none": Mutation(make=_completion(_badly_ended), rules=frozenset({Rule.SETTINGS})),
    "no tokens": Mutation(make=_completion(lambda draw, setting: []), rules=SHAPE),
    "logprobs that are none": Mutation(make=_field("logprobs", _odd_logprobs), rules=SHAPE),
    "a time that is none": Mutation(
        make=_field(
            "timing", lambda draw, tree, setting: {"started_ms": _of_junk(draw), "generation_ms": _of_junk(draw)}
        ),
        rules=SHAPE,
        harmless=True,
    ),
    "a cost that is none": Mutation(
        make=_field("cost", lambda draw, tree, setting: {"engine_s": _of_junk(draw)}), rules=SHAPE, harmless=True
    ),
    "a reward of its own": Mutation(
        make=_field("reward", lambda draw, tree, setting: draw(st.floats() | st.sampled_from(JUNK))),
        rules=SHAPE,
        harmless=True,
    ),
}
