"""What a machine can do for a swarm, what is missing for it, and how long the newest version would take.

A pure core: findings in, a conclusion out.

Invariants:
- Whoever can take part lacks nothing that is listed as missing.
- "Can serve others" is said only where a dial back arrived.
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
    """What a node on this machine would be able to do."""

    SERVES = "serves"
    PUNCHABLE = "punchable"
    ROLLS_OUT = "rolls_out"
    NOT_KNOWN = "not_known"
    NOTHING = "nothing"


WORDS = {
    Ability.SERVES: "It can take part, and serve others: they can dial it.",
    Ability.PUNCHABLE: "It can take part; others can reach it when both knock at the same time (hole punching).",
    Ability.ROLLS_OUT: "It can only roll out: it reaches those who can be dialled, and nobody reaches it.",
    Ability.NOT_KNOWN: "It can take part; whether others can reach it is not known.",
    Ability.NOTHING: "It cannot take part.",
}

PERHAPS = "It can take part; others can probably reach it when both knock at the same time (hole punching)."


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """`why` is a clause; `is_sure`: nothing of it is a guess. `missing` are sentences, each with the next step;
    `version_s` is how long the newest version would take, None where that is not known."""

    connection: Connection
    ability: Ability
    is_sure: bool
    why: str
    missing: tuple[str, ...]
    version_s: float | None
    advice: tuple[str, ...]

    @property
    def can_take_part(self) -> bool:
        """Whether nothing stands in the way, as far as that was looked at."""
        return not self.missing

    @property
    def sentence(self) -> str:
        """The verdict for people."""
        words = WORDS[self.ability] if self.is_sure or self.ability is not Ability.PUNCHABLE else PERHAPS
        return f"{words} Why: {self.why}." if self.why else words


def conclude(findings: Findings) -> Conclusion:
    """What follows from the findings."""
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
    """With the reason, and whether it is sure."""
    if connection.reached:
        one = connection.reached[0]
        by = ", a port that its router opened" if one.sources == {"mapped"} else ""
        return Ability.SERVES, f"{one.address} was dialled from outside{by}", True
    if why := why_nothing_outside(findings):
        return Ability.NOT_KNOWN, why, True
    if not isinstance(findings.listening, Listening) or not findings.listening.ports:
        return Ability.ROLLS_OUT, "it listens nowhere", True
    match connection.mapping:
        case Mapping.ANOTHER_PORT:
            return Ability.ROLLS_OUT, "its router shows everybody another port, so nobody knows where to knock", True
        case Mapping.SAME_PORT:
            return Ability.PUNCHABLE, "its router shows everybody the same port, and lets nobody in uncalled", True
        case Mapping.NONE:
            return Ability.PUNCHABLE, "its address is its own, and a firewall lets nobody in uncalled", True
        case Mapping.NOT_KNOWN if connection.seen_at and connection.kept_port:
            why = "one observer alone, to whom its router shows the port that it listens on, as most do for everybody"
            return Ability.PUNCHABLE, why, False
        case Mapping.NOT_KNOWN if connection.seen_at:
            why = "one observer alone, to whom its router shows another port than it listens on: perhaps to each one"
            return Ability.NOT_KNOWN, f"{why} a different one, and then nobody can knock", True
        case _:
            return Ability.NOT_KNOWN, connection.mapping_why, True


def _missing(findings: Findings) -> list[str]:
    """What stands in the way, a sentence each."""
    found = []
    if not (findings.network.ip4 or findings.network.ip6 or isinstance(findings.contact, Contact)):
        found.append("This machine is in no network: it has no address but those of its own links. Connect it.")
    if findings.failure:
        found.append(findings.failure)
    if isinstance(findings.engine, NotKnown):
        found.append(findings.engine.why)
    if isinstance(findings.speed, EngineFailed):
        found.append(
            f"No engine here can work with the swarm's model: {findings.speed.why.rstrip('.')}. Newer libraries in its "
            "environment, or another [engine] kind, may."
        )
    if isinstance(findings.contact, Contact):
        found += _unfit(findings.contact.found, findings)
    return found


def _unfit(told: Found, findings: Findings) -> list[str]:
    """What of this machine does not fit what the swarm asks for."""
    found = []
    if told.newest is not None:
        total, disk = told.newest.manifest.total_bytes, findings.disk
        if fit_of(total, disk.quota_bytes) is Fit.NOT:
            found.append(
                f"[store] quota_gb: {size(disk.quota_bytes)} do not hold two versions of {size(total)}. Raise it to "
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
            found.append(f"[engine] kind: this swarm wants engines that tell their experts. Set it to {kinds}.")
    return found


def _version_s(findings: Findings) -> float | None:
    """How long the newest version takes at the rate at which bytes came from the learner."""
    if not isinstance(findings.contact, Contact) or not isinstance(findings.down, Rate):
        return None
    newest = findings.contact.found.newest
    return None if newest is None else newest.manifest.total_bytes / findings.down.bytes_per_s
