"""What each verdict means to the person whose record it was, and whether it counts against that person's honesty.

A flat table with a line for every rule. Staleness, a restart of the learner and slowness happen to honest peers: they
cost the record and nothing else (lateness shows in timeliness). What a working node never sends is counted against
honesty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.work import Rule


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """`words` complete the sentence "the record was not counted because ..."."""

    words: str
    blames: bool


def _fault(words: str) -> Meaning:
    return Meaning(words=words, blames=True)


def _misfortune(words: str) -> Meaning:
    return Meaning(words=words, blames=False)


MEANINGS: Mapping[Rule, Meaning] = {
    Rule.ADMITTED: _misfortune("it passed every rule and was counted"),
    Rule.OVERSIZED: _fault("it was larger than a record may be"),
    Rule.MALFORMED: _fault("it could not be read as a record"),
    Rule.UNKNOWN_LEASE: _misfortune(
        "its lease was no longer open: expired, returned, or withdrawn while the peer was away"
    ),
    Rule.LATE: _misfortune("it arrived after the deadline of its lease (lowers timeliness)"),
    Rule.DUPLICATE: _fault("the same completion of the lease had been delivered before"),
    Rule.UNKNOWN_VERSION: _fault("it names a policy version that was never published, or is long forgotten"),
    Rule.ORPHANED: _misfortune(
        "the version that made it was lost when the learner restarted; its tokens count all the same"
    ),
    Rule.STALE: _misfortune("it was made by a version older than the staleness window allows"),
    Rule.BAD_SIGNATURE: _fault("its signature does not match its bytes"),
    Rule.WRONG_PEER: _fault("another peer than its author delivered it"),
    Rule.SETTINGS: _fault("it was not generated as the lease says (sampler, stop tokens or length)"),
    Rule.INCOMPLETE: _fault("other completions of its group are missing or were refused; groups count whole"),
    Rule.REWARD: _fault("it claims a reward that the learner does not find"),
    Rule.AUDIT: _fault("an audit found tokens in it that the policy it names does not draw from its seed"),
    Rule.BANNED: _fault("its peer was banned before it was trained on"),
    Rule.OTHER: _misfortune("of a rule younger than this program; its detail says which"),
}
REFUSALS = tuple(rule for rule in Rule if rule is not Rule.ADMITTED)
BLAMED = frozenset(rule for rule, meaning in MEANINGS.items() if meaning.blames)
