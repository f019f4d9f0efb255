"""Conclude what a machine can do for a swarm, what is missing, and how long it would take to fetch the newest version.

A pure core: it turns findings into a conclusion.

Invariants:

- A machine can take part if and only if nothing is listed as missing.
- "Serve others" is said only if a dial-back arrived.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from node.config.common import GB
from node.config.engine_requirements import TELL_EXPERTS, accepted_dtypes, in_words, quantization_advice
from node.doctor.connection import Connection, Mapping, judge_connection, why_nothing_outside
from node.doctor.findings import Contact, EngineFailed, EngineFinding, Findings, Listening, NotKnown, Rate
from node.doctor.quota import COMFORTABLE, Fit, fit_of
from node.doctor.router_advice import advise
from node.network.newcomer import Found
from node.runtime.formatting import plain_name, size
from protocol.versions.formats import STORED, taken_formats
from protocol.work import EXPERTS


class Ability(Enum):
    """The ability of a node on this machine."""

    SERVES = "serves"
    PUNCHABLE = "punchable"
    ROLLS_OUT = "rolls_out"
    NOT_KNOWN = "not_known"
    NOTHING = "nothing"


WORDS = {
    Ability.SERVES: "It can take part and serve others: they can connect to it.",
    Ability.PUNCHABLE: "It can take part; others can reach it by hole punching (both connect at the same moment).",
    Ability.ROLLS_OUT: "It can only generate rollouts: it can connect to others, but they cannot connect to it.",
    Ability.NOT_KNOWN: "It can take part; whether others can reach it is not known.",
    Ability.NOTHING: "It cannot take part.",
}

PERHAPS = "It can take part; others can probably reach it by hole punching (both connect at the same moment)."


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """The conclusion about a machine: its ability, and how to improve it.

    Args:
        is_sure: whether no part of it is a guess.
        why: the reason, a clause.
        missing: sentences, each with the next step.
        version_s: seconds that the newest version would take to fetch; None if that is not known.
        advice: what to do at the router.
    """

    connection: Connection
    ability: Ability
    is_sure: bool
    why: str
    missing: tuple[str, ...]
    version_s: float | None
    advice: tuple[str, ...]

    @property
    def can_take_part(self) -> bool:
        """Whether nothing prevents it, as far as that was checked."""
        return not self.missing

    @property
    def sentence(self) -> str:
        """Return the verdict for people."""
        words = WORDS[self.ability] if self.is_sure or self.ability is not Ability.PUNCHABLE else PERHAPS
        return f"{words} Why: {self.why}." if self.why else words


def conclude(findings: Findings) -> Conclusion:
    """Return what follows from the findings."""
    connection = judge_connection(findings)
    missing = tuple(_missing(findings))
    ability, why, is_sure = (Ability.NOTHING, "", True) if missing else _ability(findings, connection)
    return Conclusion(
        connection=connection,
        ability=ability,
        is_sure=is_sure,
        why=why,
        missing=missing,
        version_s=_version_s(findings),
        advice=tuple(advise(findings, connection)),
    )


def _ability(findings: Findings, connection: Connection) -> tuple[Ability, str, bool]:
    """Return the ability, the reason, and whether it is sure."""
    if connection.reached:
        one = connection.reached[0]
        by = ", through a port that its router opened" if one.sources == {"mapped"} else ""
        return Ability.SERVES, f"{one.address} was dialled from outside{by}", True
    if why := why_nothing_outside(findings):
        return Ability.NOT_KNOWN, why, True
    if not isinstance(findings.listening, Listening) or not findings.listening.ports:
        return Ability.ROLLS_OUT, "it does not listen", True
    match connection.mapping:
        case Mapping.ANOTHER_PORT:
            return Ability.ROLLS_OUT, "its router shows each peer a different port, so hole punching fails", True
        case Mapping.SAME_PORT:
            return Ability.PUNCHABLE, "its router shows all peers the same port, and blocks unasked connections", True
        case Mapping.NONE:
            return Ability.PUNCHABLE, "its address is not translated, and a firewall blocks unasked connections", True
        case Mapping.NOT_KNOWN if connection.seen_at and connection.kept_port:
            why = "only one observer, and it sees the port that the node listens on, as all do with most routers"
            return Ability.PUNCHABLE, why, False
        case Mapping.NOT_KNOWN if connection.seen_at:
            why = "only one observer, and it sees another port than the node listens on. If each observer sees"
            return Ability.NOT_KNOWN, f"{why} a different one, hole punching fails", True
        case _:
            return Ability.NOT_KNOWN, connection.mapping_why, True


def _missing(findings: Findings) -> list[str]:
    """Return what prevents the machine from taking part, a sentence for each."""
    found = []
    if not (findings.network.ip4 or findings.network.ip6 or isinstance(findings.contact, Contact)):
        found.append("This machine is in no network: it has only loopback or link-local addresses. Connect it.")
    if findings.failure:
        found.append(findings.failure)
    if isinstance(findings.engine, NotKnown):
        found.append(findings.engine.why)
    if isinstance(findings.speed, EngineFailed):
        found.append(
            f"No engine here can work with the swarm's model: {findings.speed.why.rstrip('.')}. Install newer "
            "libraries in the engine's environment, or set another [engine] kind."
        )
    if isinstance(findings.contact, Contact):
        found += _unfit(findings.contact.found, findings)
    return found


def _unfit(told: Found, findings: Findings) -> list[str]:
    """Return where this machine does not meet the swarm's requirements, a sentence for each."""
    found = []
    if told.newest is not None:
        total, disk = told.newest.manifest.total_bytes, findings.disk
        if fit_of(total, disk.quota_bytes) is Fit.NOT:
            found.append(
                f"[store] quota_gb: {size(disk.quota_bytes)} cannot hold two versions of {size(total)}. Raise it to "
                f"{COMFORTABLE * total / GB:.3g} or more."
            )
        if disk.free_bytes < 2 * total:
            found.append(
                f"{disk.place} has {size(disk.free_bytes)} free, and two versions take {size(2 * total)}. Make room, "
                "or name another directory with --state."
            )
    if isinstance(findings.engine, EngineFinding) and told.terms is not None:
        dtypes = accepted_dtypes(told.terms.ext)
        form, taken = findings.engine.scheme or STORED, taken_formats(told.terms.ext)
        if form not in taken:
            advice = quantization_advice(taken)
            found.append(
                f"[engine] quantization: this swarm refuses {in_words(form)}. {advice[0].upper()}{advice[1:]}."
            )
        if dtypes and findings.engine.compute_dtype not in dtypes:
            found.append(f'[engine] compute_dtype: this swarm wants "{plain_name(dtypes[0])}". Set it to that.')
        if EXPERTS in told.terms.ext and findings.engine.kind not in TELL_EXPERTS:
            kinds = " or ".join(f'"{kind}"' for kind in TELL_EXPERTS)
            found.append(f"[engine] kind: this swarm needs an engine that reports its experts. Set it to {kinds}.")
    return found


def _version_s(findings: Findings) -> float | None:
    """Return the seconds that the newest version takes at the measured download rate; None if that is not known."""
    if not isinstance(findings.contact, Contact) or not isinstance(findings.down, Rate):
        return None
    newest = findings.contact.found.newest
    return None if newest is None else newest.manifest.total_bytes / findings.down.bytes_per_s
