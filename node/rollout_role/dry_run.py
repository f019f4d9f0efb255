"""Show what joining would mean (`volery join --dry-run`): operator, work, limits, and the data that would be sent.

How others reach this machine is found out as by `volery doctor`. It listens for some seconds, and may ask its router
for a port, which it gives back.

Invariants:

- Nothing is leased, installed, fetched or written, and no engine is started.
- The node's own key is not used, and nobody has joined. The learner sees an address, and a key that is then forgotten.
- The output separates what was checked from what the operator claims.
- A wrong invite gives the same message as in `volery join`.
"""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from node.config.common import GB
from node.config.engine_requirements import accepted_dtypes, in_words, quantization_advice
from node.config.node_config import NodeConfig
from node.doctor.examination import examine
from node.doctor.findings import Contact, Findings
from node.doctor.quota import fit_of
from node.doctor.telling import connection_section, section_lines, verdict_lines
from node.doctor.verdict import conclude
from node.engine import selection as engine_choice
from node.engine.weight_format import in_force_with
from node.network.newcomer import Found
from node.network.transport import machine_name
from node.notices.destination import destination_of
from node.rollout_role.resource_limits import in_force
from node.runtime.errors import RunError, UsageError
from node.runtime.formatting import moment, plain_name, size
from node.state.identities import require_node
from node.state.keys import load_key
from node.state.rollout_state import swarm_directory
from protocol.core.identity import peer_id_of
from protocol.core.ids import PublicKey
from protocol.core.invite import Invite
from protocol.scores import TEACHER
from protocol.versions import exchange
from protocol.versions.formats import STORED, taken_formats
from protocol.versions.manifest import SignedManifest
from protocol.work import EXPERTS

ABOUT_CHARS, FILES_SHOWN = 160, 8
"""Most characters shown of the operator's text about a task, and most files of a model: what fits a line or two."""

REFUSED_DTYPE = ', which this swarm refuses: set it to "{}"'
NO_TEACHERS = "this swarm accepts no scores of nodes: leave out --teacher and [teacher] directory"
NOT_TOLD = "not told before joining: the learner runs an older volery, or the connection broke"


async def look(invite: Invite, config: NodeConfig, wait_s: float) -> Found:
    """Ask the learner that `invite` names, and return its answers. Raises UsageError or RunError, as joining would."""
    _, contact = await _examine(invite, config, None, wait_s)
    return contact.found


async def _examine(invite: Invite, config: NodeConfig, state: Path | None, wait_s: float) -> tuple[Findings, Contact]:
    """Return the findings of `volery doctor`, without rates. Raises UsageError or RunError, as joining would."""
    findings = await examine(invite, config, state=state, wait_s=wait_s, is_thorough=False)
    if isinstance(findings.contact, Contact) and not findings.failure:
        return findings, findings.contact
    raise (UsageError if findings.is_usage else RunError)(findings.failure or "The learner did not answer in time.")


async def show_join(
    invite: Invite, config: NodeConfig, *, state: Path | None, wait_s: float, as_json: bool = False
) -> str:
    """Return what joining would mean, as text or as JSON. Raises UsageError or RunError."""
    if state is not None:
        require_node(state)
    choice = engine_choice.choose_engine(config.engine, engine_choice.look(config.engine))
    config = msgspec.structs.replace(config, engine=choice.section)
    findings, contact = await _examine(invite, config, state, wait_s)
    conclusion = conclude(findings)
    held = in_force_with(config, contact.found.terms, contact.found.newest)
    config = msgspec.structs.replace(config, engine=held.section)
    if as_json:
        parts = paragraphs(contact.found, invite, config, state=state, why=choice.why, held_why=held.why)
        reach = connection_section(findings, conclusion.connection)
        told: dict[str, object] = {title: dict(rows) for title, rows in parts}
        told |= {reach.title: {row.label: row.text for row in reach.rows}, "Missing": list(conclusion.missing)}
        told |= {"Verdict": conclusion.sentence, "At the router": list(conclusion.advice)}
        return json.dumps(told, indent=2)
    lines = [
        *story(contact.found, invite, config, state=state, why=choice.why, held_why=held.why),
        "",
        *section_lines(connection_section(findings, conclusion.connection)),
        *verdict_lines(conclusion, is_asked=True),
    ]
    return "\n".join(lines)


def story(
    found: Found, invite: Invite, config: NodeConfig, *, state: Path | None, why: str, held_why: str = ""
) -> Iterator[str]:
    """Yield the lines of the text. The arguments are those of `paragraphs`."""
    yield "Nothing was leased, fetched or written, and this node has not joined."
    for title, rows in paragraphs(found, invite, config, state=state, why=why, held_why=held_why):
        yield from _paragraph(title, rows)


def paragraphs(
    found: Found, invite: Invite, config: NodeConfig, *, state: Path | None, why: str, held_why: str = ""
) -> Iterator[tuple[str, Sequence[tuple[str, str]]]]:
    """Yield titles with rows.

    `why` says why the engine of `config` was chosen, and `held_why` why the format of its weights was.
    """
    yield "Operator and swarm, checked", _who(found, invite)
    yield "What would run, as the operator says", _claims(found.terms)
    yield "The model, from the signed manifest", _model(found.newest, config)
    yield "This node", _node(invite, config, state, why, held_why, found.terms)
    yield "Limits in force", list(in_force(config).items())
    yield "What would be sent", _sent(config)


def _paragraph(title: str, rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield ""
    yield title
    width = max(len(key) for key, _ in rows)
    for key, value in rows:
        yield f"  {key:{width}}  {value}".rstrip()


def _who(found: Found, invite: Invite) -> list[tuple[str, str]]:
    rows = [
        ("swarm", f"{plain_name(found.genesis.name)!r}, founded {_day(found.genesis.created_ms)}"),
        ("swarm id", invite.swarm.hex()),
        ("operator's key", f"{peer_id_of(PublicKey(invite.operator))}, as the invite has it: compare it with theirs"),
        ("invite", f"expires at {moment(invite.expires_ms)}" if invite.expires_ms else "does not expire"),
        ("learner", found.learner),
    ]
    if found.certificate is not None:
        rows.append(("", f"certified by the operator until {_day(found.certificate.not_after_ms)}"))
    return rows


def _claims(terms: exchange.TellTerms | None) -> list[tuple[str, str]]:
    if terms is None:
        return [("tasks", NOT_TOLD)]
    rows = [("model", plain_name(terms.model) or "without a name")]
    for task in terms.tasks:
        share = f"{100 * task.share:.0f} % of the prompts"
        rows.append(("task", f"{plain_name(task.name)}, {share}: {plain_name(task.about, ABOUT_CHARS)}"))
    if not terms.tasks:
        rows.append(("task", "none: this learner trains on logs, and grants no leases"))
    turns = f", in up to {terms.max_turns} turns" if terms.max_turns > 1 else ""
    tokens = f"at most {terms.max_new_tokens} tokens"
    rows.append(("work", f"{terms.group_size} completions of a prompt, of {tokens}{turns}"))
    engines = f"with {' or '.join(in_words(form) for form in taken_formats(terms.ext))}"
    if dtypes := accepted_dtypes(terms.ext):
        engines += f", computing in {plain_name(dtypes[0])}"
    if EXPERTS in terms.ext:
        engines += ", that report the experts they used"
    rows.append(("engines", engines))
    rows.append(("run", f"training step {terms.step} of {terms.steps}, staleness window {terms.staleness}"))
    return rows


def _model(newest: SignedManifest | None, config: NodeConfig) -> list[tuple[str, str]]:
    if newest is None:
        return [("version", "none is published yet, so the size is not known")]
    manifest = newest.manifest
    values: Counter[str] = Counter()
    for tensor in manifest.tensors:
        values[tensor.dtype] += math.prod(tensor.shape)
    kinds = ", ".join(f"{number:,} values in {dtype}" for dtype, number in values.most_common())
    total = manifest.total_bytes
    room = config.store.quota_gb * GB
    more = " ..." if len(manifest.files) > FILES_SHOWN else ""
    return [
        ("version", f"{newest.version}, published {_day(manifest.created_ms)}"),
        ("size", f"{size(total)} to fetch, in {len(manifest.files)} files; {fit_of(total, room).value} in the quota"),
        ("weights", kinds or "none"),
        ("files", f"{', '.join(entry.name for entry in manifest.files[:FILES_SHOWN])}{more}"),
    ]


def _node(
    invite: Invite,
    config: NodeConfig,
    state: Path | None,
    why: str,
    held_why: str,
    terms: exchange.TellTerms | None,
) -> list[tuple[str, str]]:
    home = state or swarm_directory(invite.authority.swarm) / "node-1"
    key = home / "node.key"
    free = shutil.disk_usage(next(parent for parent in (home, *home.absolute().parents) if parent.exists())).free
    short = ", less than the disk quota" if free < config.store.quota_gb * GB else ""
    engine = config.engine
    form = engine.scheme_in_force or STORED
    taken = None if terms is None else taken_formats(terms.ext)
    refused = "" if taken is None or form in taken else f", which this swarm refuses: {quantization_advice(taken)}"
    dtypes = () if terms is None else accepted_dtypes(terms.ext)
    dtype = engine.compute_dtype_in_force
    odd = bool(dtypes) and dtype not in dtypes
    teacher = config.teacher.directory
    takes_scores = terms is None or TEACHER in terms.ext
    scores = "scores with it and generates nothing"
    is_told = form != STORED or bool(refused) or bool(held_why)
    return [
        ("state", f"{home}{'' if state else ', or the next that is free'}; {size(free)} free there{short}"),
        ("key", str(load_key(key).peer_id) if key.exists() else "made when you join"),
        ("engine", f"{engine.kind} ({why}), device {engine.device}"),
        *([("", f"{in_words(form)}{refused or (f' ({held_why})' if held_why else '')}")] if is_told else []),
        *([("teacher", f"{teacher}: {scores if takes_scores else NO_TEACHERS}")] if teacher else []),
        *([("", f'compute_dtype "{dtype}"{REFUSED_DTYPE.format(plain_name(dtypes[0]))}')] if odd else []),
        ("listens", ", ".join(config.network.listen) or "nowhere: the node only dials out"),
    ]


def _sent(config: NodeConfig) -> list[tuple[str, str]]:
    price = config.price
    addresses = ", ".join(config.network.announce) or "those you listen on"
    to = destination_of(config.notify)
    joules = ", joules that the machine used while lent" if config.energy.report else ""
    return [
        ("to the learner", f"name {config.name!r}, price {price.per_hour:g} {price.currency} an hour,"),
        ("", f"engine {config.engine.kind!r} and how its weights are quantised, machine {machine_name()!r};"),
        ("", "every few seconds: installed version, pending work, bytes moved, seconds of generation,"),
        ("", f"tokens per second of a first test, time left of your hours{joules};"),
        ("", "signed completions with log probabilities and timings, and signed receipts for relayed chunks"),
        ("to every member", f"your peer id, IP address and addresses ({addresses}); chunks of the model that you hold"),
        *([("to you", f"notices ({', '.join(config.notify.events)}), to {to.description}")] if to is not None else []),
        ("to nobody", "anything else: no telemetry, no model hub, none of your files"),
    ]


def _day(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(min(at_ms, 253_370_764_800_000) / 1000, UTC):%Y-%m-%d}"
