"""Present the findings of an examination to people and to programs, both from the same rows.

Invariants:

- Each value is made once, with its words beside it. The text shows the words, and JSON has both.
- A value that is not known is `null` in JSON; for people a clause says why.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from node.config.common import GB
from node.config.engine_requirements import in_words
from node.doctor.connection import Connection, Filtering, Mapping, SecondRouter, why_nothing_outside
from node.doctor.findings import (
    ClockOffset,
    Contact,
    Disk,
    EngineFinding,
    EngineSpeed,
    Findings,
    Listening,
    NotKnown,
    PortMapping,
    Rate,
)
from node.doctor.quota import fit_of
from node.doctor.verdict import Conclusion
from node.installation.name_clashes import clash_sentence
from node.runtime.formatting import duration, figure, plain_name, rate, size
from protocol.versions.formats import STORED

Value = str | float | bool | None | list[str]

UNKNOWN = "not known"

CLOCK_TICK_S = 0.001
"""The learner reports its clock in whole milliseconds."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One finding: `key` is for programs, `label` for people, and `text` puts `value` into words."""

    key: str
    label: str
    value: Value
    text: str


@dataclass(frozen=True, kw_only=True)
class Section:
    """Rows that belong together."""

    key: str
    title: str
    rows: tuple[Row, ...]


MAPPINGS = {
    Mapping.NONE: "no router translates this machine's address",
    Mapping.SAME_PORT: "shows all peers the same port",
    Mapping.ANOTHER_PORT: "shows each peer a different port",
    Mapping.NOT_KNOWN: UNKNOWN,
}

FILTERINGS = {
    Filtering.LETS_IN: "lets others connect",
    Filtering.LETS_NOBODY_IN: "blocks connections that this machine did not ask for",
    Filtering.NOT_KNOWN: UNKNOWN,
}

SECONDS = {
    SecondRouter.NO: "no",
    SecondRouter.PERHAPS: "perhaps",
    SecondRouter.YES: "yes, so opening a port at your own router does not help",
    SecondRouter.NOT_KNOWN: UNKNOWN,
}


def connection_section(findings: Findings, connection: Connection) -> Section:
    """Return the rows on how this machine is connected."""
    network = findings.network
    here = (
        _addresses("ip4", "IPv4", network.ip4),
        _addresses("ip6", "IPv6", network.ip6),
        _addresses("routers", "routers", network.gateways),
    )
    title = "How this machine is connected"
    if not isinstance(findings.contact, Contact):
        asks = "a node asks its router to open a port" if findings.map_port else "not asked: [network] map_port = false"
        mapping = Row(key="port_mapping", label="port mapping", value=None, text=asks)
        return Section(key="connection", title=title, rows=(*here, mapping))
    rows = (
        *here,
        _listening(findings.listening),
        Row(
            key="seen_at",
            label="seen by peers at",
            value=list(connection.seen_at) or None,
            text=" and ".join(connection.seen_at) or f"{UNKNOWN}: {connection.mapping_why}",
        ),
        _judged("mapping", "router, outgoing", connection.mapping.value, MAPPINGS[connection.mapping],
                connection.mapping_why),
        _judged("filtering", "router, incoming", connection.filtering.value, FILTERINGS[connection.filtering],
                connection.filtering_why),
        _judged("second_router", "second router", connection.second_router.value, SECONDS[connection.second_router],
                connection.second_router_why),
        _port_mapping(findings.mapping),
        _dial_back(connection),
    )  # fmt: skip
    return Section(key="connection", title=title, rows=tuple(_said_once(rows, why_nothing_outside(findings))))


def _said_once(rows: Iterable[Row], why: str) -> Iterator[Row]:
    """Yield the rows, with the reason `why` only in the first of those that give it."""
    is_said = not why
    for row in rows:
        shorter = row.text.replace(f": {why}", "").replace(f" ({why})", "")
        yield replace(row, text=shorter) if is_said and why else row
        is_said = is_said or shorter != row.text


def _addresses(key: str, label: str, hosts: tuple[str, ...]) -> Row:
    named = [host if ipaddress.ip_address(host).is_global else f"{host} (private)" for host in hosts]
    return Row(key=key, label=label, value=list(hosts), text=", ".join(named) or "none")


def _judged(key: str, label: str, value: str, words: str, why: str) -> Row:
    return Row(
        key=key, label=label, value=None if words == UNKNOWN else value, text=f"{words} ({why})" if why else words
    )


def _listening(listening: Listening | NotKnown) -> Row:
    key, label = "listens", "listens on"
    if isinstance(listening, NotKnown):
        return Row(key=key, label=label, value=None, text=listening.why)
    ports = [str(port) for port in listening.ports]
    text = (
        f"TCP port{'s' if len(ports) > 1 else ''} {' and '.join(ports)}"
        if ports
        else "nothing: the node only connects to others"
    )
    if listening.instead_of:
        text += f", since {listening.instead_of} is in use on this machine"
    elif ports and not listening.is_fixed:
        text += ", this time: the node takes a free port at each start"
    return Row(key=key, label=label, value=ports, text=text)


def _port_mapping(mapping: PortMapping | NotKnown) -> Row:
    key, label = "port_mapping", "port mapping"
    if isinstance(mapping, NotKnown):
        return Row(key=key, label=label, value=None, text=f"not asked: {mapping.why}")
    if mapping.mapped:
        told = ", ".join(f"{one.protocol} opened {one.address} at {one.gateway}" for one in mapping.mapped)
        return Row(
            key=key, label=label, value=[one.address for one in mapping.mapped], text=f"{told}, and closed it again"
        )
    if mapping.refusals:
        told = "; ".join(f"{router}: {why}" if router else why for router, why in mapping.refusals)
        return Row(key=key, label=label, value=[], text=f"none ({told})")
    return Row(key=key, label=label, value=None, text="no router answered in time")


def _dial_back(connection: Connection) -> Row:
    key, label = "dial_back", "reached by peers"
    reached = [one.address for one in connection.reached]
    if reached:
        return Row(key=key, label=label, value=reached, text=f"yes: a peer outside connected to {reached[0]}")
    if connection.not_reached:
        tried = ", ".join(one.address for one in connection.not_reached)
        return Row(key=key, label=label, value=[], text=f"no: no peer could connect to {tried}")
    return Row(key=key, label=label, value=None, text=f"{UNKNOWN}: {connection.filtering_why}")


def learner_section(findings: Findings) -> Section:
    """Return the rows on the learner and the connection to it."""
    contact, title = findings.contact, "The learner, and the connection to it"
    if not isinstance(contact, Contact):
        row = Row(key="learner", label="learner", value=None, text=contact.why)
        return Section(key="learner", title=title, rows=(row,))
    name, learner = plain_name(contact.found.genesis.name), str(contact.found.learner)
    rows = (
        Row(key="swarm", label="swarm", value=name, text=repr(name)),
        Row(key="learner", label="learner", value=learner, text=f"{learner}, {contact.where.value}"),
        Row(
            key="members_reached",
            label="members reached",
            value=contact.num_members,
            text=f"{contact.num_members} besides the learner",
        ),
        *_clock(findings.clock),
        _rate("down_bytes_per_s", "download from it", findings.down),
        _rate("up_bytes_per_s", "upload to it", findings.up),
    )
    return Section(key="learner", title=title, rows=rows)


def _clock(clock: ClockOffset | NotKnown) -> Iterator[Row]:
    if isinstance(clock, NotKnown):
        yield Row(key="clock_ahead_s", label="clock", value=None, text=f"{UNKNOWN}: {clock.why}")
        return
    yield Row(
        key="round_trip_s",
        label="round trip",
        value=round(clock.round_trip_s, 6),
        text=f"{1000 * clock.round_trip_s:.3g} ms",
    )
    ahead, error_s = clock.ahead_s, max(clock.error_s, CLOCK_TICK_S)
    apart = f"{figure(abs(ahead))} s {'ahead of' if ahead > 0 else 'behind'} the learner's"
    yield Row(
        key="clock_ahead_s",
        label="clock",
        value=round(ahead, 6),
        text="agrees with the learner's" if abs(ahead) <= error_s else apart,
    )
    yield Row(
        key="clock_error_s",
        label="clock error",
        value=round(error_s, 6),
        text=f"at most {figure(error_s)} s, half of the shortest round trip",
    )


def _rate(key: str, label: str, measured: Rate | NotKnown) -> Row:
    if isinstance(measured, NotKnown):
        return Row(key=key, label=label, value=None, text=f"not measured: {measured.why}")
    mbit = 8 * measured.bytes_per_s / 1e6
    coarse = ", too few bytes for more than a rough figure" if measured.is_coarse else ""
    return Row(
        key=key,
        label=label,
        value=round(measured.bytes_per_s),
        text=f"{rate(mbit)} Mbit/s ({size(measured.size_bytes)} in {figure(measured.seconds)} s{coarse})",
    )


def machine_section(findings: Findings, conclusion: Conclusion) -> Section:
    """Return the rows on the installation, the engine and the disk."""
    disk = findings.disk
    rows = [
        _packages(findings.clashes),
        *_engine(findings.engine, findings.speed),
        Row(
            key="disk_free_bytes", label="disk", value=disk.free_bytes,
            text=f"{size(disk.free_bytes)} free at {disk.place}",
        ),
        Row(key="quota_bytes", label="disk quota", value=disk.quota_bytes, text=_quota(findings, disk)),
    ]  # fmt: skip
    if findings.is_with_invite:
        rows.append(_version(findings, conclusion))
    return Section(key="machine", title="Program, engine and disk", rows=tuple(rows))


def _packages(clashes: dict[str, str]) -> Row:
    key, label = "package_names", "packages"
    if clashes:
        return Row(key=key, label=label, value=list(clashes), text=f"warning: {clash_sentence(clashes)}")
    return Row(key=key, label=label, value=[], text="no other distribution here owns one of Volery's package names")


def _engine_text(engine: EngineFinding) -> str:
    why = f" ({engine.scheme_why})" if engine.scheme_why else ""
    held = f", {in_words(engine.scheme or STORED)}{why}" if engine.scheme or why else ""
    return f"{engine.kind} ({engine.why}), device {engine.device}{held}"


def _engine(engine: EngineFinding | NotKnown, speed: EngineSpeed | NotKnown) -> Iterator[Row]:
    if isinstance(engine, NotKnown):
        yield Row(key="engine", label="engine", value=None, text=f"none: {engine.why}")
        return
    yield Row(key="engine", label="engine", value=engine.kind, text=_engine_text(engine))
    if isinstance(speed, NotKnown):
        yield Row(key="tokens_per_s", label="speed", value=None, text=f"not measured: {speed.why}")
    else:
        how = "random weights of the model's shapes" if speed.is_of_stand_in else "a version on this machine"
        yield Row(
            key="tokens_per_s",
            label="speed",
            value=round(speed.tokens_per_s, 3),
            text=f"{rate(speed.tokens_per_s)} tokens a second, measured with {how}",
        )


def _quota(findings: Findings, disk: Disk) -> str:
    text = f"{disk.quota_bytes / GB:g} GB"
    if isinstance(findings.contact, Contact) and (newest := findings.contact.found.newest) is not None:
        total = newest.manifest.total_bytes
        text += f" for versions; the model, of {size(total)}, {fit_of(total, disk.quota_bytes).value}"
    return text


def _version(findings: Findings, conclusion: Conclusion) -> Row:
    key, label = "newest_version_s", "newest version"
    contact = findings.contact
    if not isinstance(contact, Contact) or contact.found.newest is None:
        why = "there is none yet" if isinstance(contact, Contact) else contact.why
        return Row(key=key, label=label, value=None, text=f"{UNKNOWN}: {why}")
    newest = contact.found.newest
    named = f"{newest.version}, {size(newest.manifest.total_bytes)}"
    if conclusion.version_s is None:
        return Row(key=key, label=label, value=None, text=f"{named}; how long the download takes is {UNKNOWN}")
    took = duration(conclusion.version_s) if conclusion.version_s >= 1 else f"{figure(conclusion.version_s)} s"
    return Row(
        key=key,
        label=label,
        value=round(conclusion.version_s, 3),
        text=f"{named}: a download of about {took} from the learner alone, less if other members serve it as well",
    )


def sections(findings: Findings, conclusion: Conclusion) -> list[Section]:
    """Return all sections but the verdict."""
    found = [connection_section(findings, conclusion.connection)]
    if findings.is_with_invite:
        found.append(learner_section(findings))
    return [*found, machine_section(findings, conclusion)]


def to_text(findings: Findings, conclusion: Conclusion) -> str:
    """Return the text for people."""
    lines: list[str] = []
    for section in sections(findings, conclusion):
        lines += section_lines(section)
    return "\n".join([*lines, *verdict_lines(conclusion, is_asked=findings.is_with_invite)])


def section_lines(section: Section) -> Iterator[str]:
    """Yield a section's title and rows, and an empty line."""
    width = max(len(row.label) for row in section.rows)
    yield section.title
    for row in section.rows:
        yield f"  {row.label:{width}}  {row.text}"
    yield ""


def verdict_lines(conclusion: Conclusion, *, is_asked: bool) -> Iterator[str]:
    """Yield what is missing, the verdict, and what to do at the router."""
    if conclusion.missing:
        yield "What is missing"
        yield from (f"  {one}" for one in conclusion.missing)
        yield ""
    yield "Verdict"
    yield f"  {conclusion.sentence if is_asked or conclusion.missing else NEEDS_INVITE}"
    if conclusion.advice:
        yield ""
        yield "At the router, so that others can dial this machine"
        yield from (f"  {number}. {line}" for number, line in enumerate(conclusion.advice, 1))


NEEDS_INVITE = (
    "This machine passed all checks that need no invite. `volery doctor INVITE` also checks how others reach it, its "
    "transfer rates, its clock, and the engine's speed with the swarm's model."
)


def to_json(findings: Findings, conclusion: Conclusion) -> str:
    """Return JSON for programs: each row's value and words by section and key, and the verdict."""
    told: dict[str, object] = {
        section.key: {row.key: {"value": row.value, "text": row.text} for row in section.rows}
        for section in sections(findings, conclusion)
    }
    told["missing"] = list(conclusion.missing)
    told["verdict"] = {
        "ability": conclusion.ability.value,
        "can_take_part": conclusion.can_take_part,
        "is_sure": conclusion.is_sure,
        "text": conclusion.sentence,
    }
    told["at_the_router"] = list(conclusion.advice)
    return json.dumps(told, indent=2)
