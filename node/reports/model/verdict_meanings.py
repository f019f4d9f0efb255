"""What each verdict means to the person whose record it was, and whether it counts against that person's honesty.

A flat table with a line for every rule. Staleness, a restart of the learner and slowness happen to honest peers: they
cost the record and nothing else (lateness shows in timeliness). What a working node never sends is counted against
honesty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from learner.ledger.reputation import EXCUSED, Judging
from protocol.work import Rule


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """`words` complete the sentence "the record was not counted because ..."; `advice` says what its peer can do."""

    words: str
    blames: bool
    advice: str = ""


def _fault(words: str, advice: str) -> Meaning:
    return Meaning(words=words, blames=True, advice=advice)


def _misfortune(words: str, advice: str = "Nothing is to be done.") -> Meaning:
    return Meaning(words=words, blames=False, advice=advice)


MEANINGS: Mapping[Rule, Meaning] = {
    Rule.ADMITTED: _misfortune("it passed every rule and was counted"),
    Rule.OVERSIZED: _fault(
        "it was larger than a record may be",
        "It is a defect: report it.",
    ),
    Rule.MALFORMED: _fault(
        "it could not be read as a record",
        "Use a volery of the same version as the learner.",
    ),
    Rule.UNKNOWN_LEASE: _misfortune(
        "its lease was no longer open: expired, returned, or withdrawn while the peer was away",
        "If it happens often, look for a line that breaks.",
    ),
    Rule.LATE: _misfortune(
        "it arrived after the deadline of its lease (lowers timeliness)",
        "Lower [engine] batch_rollouts, or ask the operator for a longer [learn] lease_timeout_s.",
    ),
    Rule.DUPLICATE: _fault(
        "the same completion of the lease had been delivered before",
        "It is a defect: report it.",
    ),
    Rule.UNKNOWN_VERSION: _fault(
        "it names a policy version that was never published, or is long forgotten",
        "It is a defect, or the store is from another swarm: remove the node's store.",
    ),
    Rule.ORPHANED: _misfortune(
        "the version that made it was lost when the learner restarted; its tokens count all the same"
    ),
    Rule.STALE: _misfortune(
        "it was made by a version older than the staleness window allows",
        "Lower [engine] batch_rollouts; line or machine may be slow for this swarm.",
    ),
    Rule.BAD_SIGNATURE: _fault(
        "its signature does not match its bytes",
        "It is a defect, or bad memory: test the machine's.",
    ),
    Rule.WRONG_PEER: _fault(
        "another peer than its author delivered it",
        "Two nodes share a copied node.key: give each its own state directory.",
    ),
    Rule.SETTINGS: _fault(
        "it was not generated as the lease says (sampler, stop tokens or length)",
        "The engine was changed, or is of another version: install volery anew.",
    ),
    Rule.INCOMPLETE: _fault(
        "other completions of its group are missing or were refused; groups count whole",
        "Look at what refused the others of its group.",
    ),
    Rule.REWARD: _fault(
        "it claims a reward that the learner does not find",
        "Do not claim rewards: they are computed by the learner.",
    ),
    Rule.AUDIT: _fault(
        "an audit found tokens in it that the policy it names does not draw from its seed",
        "Look for memory that flips bits, a GPU that is clocked too high, or an engine that was changed, and tell the "
        "operator what you found.",
    ),
    Rule.BANNED: _fault(
        "its peer was banned before it was trained on",
        "Ask the operator to look at the evidence, if that is wrong.",
    ),
    Rule.OTHER: _misfortune(
        "of a rule younger than this program; its detail says which",
        "Update volery.",
    ),
}
REFUSALS = tuple(rule for rule in Rule if rule is not Rule.ADMITTED)
BLAMED = frozenset(rule for rule, meaning in MEANINGS.items() if meaning.blames)
JUDGING = Judging(blaming=BLAMED, excused=EXCUSED)
"""What counts against a peer's reputation."""
