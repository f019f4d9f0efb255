"""Write reports in words and tables, for a terminal and for a file.

Pure: a report in, a string out. First the story in a few lines, then the tables (`node.reports.text.peer_columns`),
then an explanation of every rule that rejected a record. The form for a file has plain ASCII rules and no colours.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from rich.box import Box
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from learner.ledger.reach import VERDICTS
from node.config.swarm_config import regime
from node.reports.model.audits import ban_in_words, bans_in_words
from node.reports.model.costs import Reference, cents_per_thousand, money_for
from node.reports.model.objective_figures import RECENT, Spell, by_lag, recent, spells
from node.reports.model.report import SCORES, Evaluation, KeptCheckpoint, OwnReport, PeerReport, SwarmReport
from node.reports.model.time_words import kinds, trained
from node.reports.model.verdict_meanings import MEANINGS
from node.reports.text.columns import Section, drawn_sections
from node.reports.text.cost_table import account_tables, latest
from node.reports.text.peer_columns import NARROW_NAME_CHARS, ROOMY, known_as, left_out, listed, reach_columns, tables
from node.reports.text.reputation_text import advice, in_a_line
from node.reports.text.tables import DASHES, FILE_WIDTH, SCREEN, Strip, drawn, grid, pairs, table, titled
from node.runtime import formatting as words
from node.runtime.formatting import NAME_CHARS
from protocol.accounting.claims import MAX_WATTS, MICROS, EnergySource
from protocol.core.ids import short
from protocol.reach import MAX_REACH_CHARS
from protocol.work import Rule

MAX_LAGS_LISTED = 6
"""Lags in one line; a wider distribution is shown by its mean and maximum."""

AWAY_S = 1.0
"""Seconds. A shorter time without a learner is what a start and an end take beside what they record."""

ALARMS_LISTED = 12

CHECKPOINTS_LISTED = 24
"""Checkpoints in a few lines; the JSON form has all."""

LAGS_LISTED = 12
"""Rows of lags. The usual windows are smaller; the JSON form has all."""

BANS_LISTED = 20
"""Latest bans in a terminal. `--all` and the page have all, and `volery why` explains each."""

CHANGES_LISTED = 12
"""Latest changes of the plan; the JSON form has all."""

IMPLAUSIBLE_LISTED = 6
"""Peers with implausible joules that are named; the table marks each of them."""

SOURCES = {
    EnergySource.NVML: "by GPU meters",
    EnergySource.RAPL: "by processor meters",
    EnergySource.TABLE: "from a table of machines",
    EnergySource.OWNER: "as stated by owners",
    EnergySource.OTHER: "from other sources",
}
"""Names of the sources of a sum of joules."""

PEERS_LISTED = 6
"""Peers with which chunks were exchanged, in a few lines; the JSON form has more."""


def as_terminal(report: SwarmReport | OwnReport, *, width: int, color: bool = True, everyone: bool = False) -> str:
    """Return the report for a terminal of `width` columns, with escape sequences if `color`. `everyone`: each peer has
    a row, and each ban a line, however many there are."""
    return drawn(_parts(report, width, SCREEN, everyone=everyone), width, color=color)


def as_text(report: SwarmReport | OwnReport, *, width: int = FILE_WIDTH, everyone: bool = False) -> str:
    """Return the report without colours or line drawing, for files and pipes."""
    return drawn(_parts(report, width, DASHES, everyone=everyone), width)


def _parts(report: SwarmReport | OwnReport, width: int, box: Box, *, everyone: bool) -> Iterator[RenderableType]:
    if isinstance(report, OwnReport):
        yield titled(f"Work of {known_as(report.peer)}", pairs(own_story(report)), above=1)
        yield tables(report, width=width, box=box)
        if report.peer.generates:
            yield _legend(report.peer.verdicts)
        yield from _scored(report.peer)
        yield from _rejections(report)
        return
    yield titled(f"Swarm {short(report.swarm)}", pairs(story(report)), above=1)
    yield from _alarms(report)
    yield from _by_lag(report)
    if said := left_out(report, everyone=everyone):
        yield Padding(Text(said), (0, 0, 1, 1))
    if report.peers:
        yield tables(report, width=width, box=box, everyone=everyone)
        yield account_tables(report, width=width, box=box)
    yield _legend(report.verdicts)
    yield from _bans(report, everyone)
    yield from _plans(report)
    yield from _reach(report, width, box, everyone=everyone)


def story(report: SwarmReport) -> Iterator[tuple[str, str]]:
    began = datetime.fromtimestamp(report.started_ms / 1000, UTC)
    yield "time", f"{words.duration(report.wall_s)} from {began:%Y-%m-%d %H:%M} UTC"
    restarts = len(report.incarnations) - 1
    again = f"; the learner restarted {words.times(restarts)}" if restarts > 0 else ""
    each = f" of {words.size(report.weight_bytes)}" if report.versions else ""
    steps, versions = (
        words.counted(len(report.steps), "training step"),
        words.counted(len(report.versions), "version"),
    )
    yield "policy", f"{steps}, {versions}{each} published{again}"
    if scores := report.surviving_evaluations:
        first, last, once = scores[0], scores[-1], len(scores) == 1
        yield (
            "held-out score",
            f"greedy {words.risen(first.greedy, last.greedy, once=once)}, "
            f"sampled {words.risen(first.sampled, last.sampled, once=once)}"
            f"{_passes(first, last, once=once)} ({words.counted(last.prompts, 'held-out prompt')})",
        )
        for task, figures in last.tasks.items():
            before = {} if once else first.tasks.get(task, {})
            yield f" {words.plain_name(task, 12)}", ", ".join(_risen(metric, before, figures) for metric in figures)
        for name, figures in last.named.items():
            before = {} if once else first.named.get(name, {})
            of_name = ", ".join(_risen(metric, before, figures) for metric in figures)
            yield f" {words.plain_name(name, 12)}", f"{of_name} (one of {len(last.named)} rewards)"
    if report.staleness is not None:
        yield "mode", regime(report.staleness)
    if report.learner_time.wall_s:
        yield "learner", f"{trained(report.learner_time)}{_pace(report)}{_away(report)}"
        yield "learner's time", kinds(report.learner_time)
    old = report.dropped - report.uninformative
    unused = f", {old:,} of them too old when a batch formed" if old else ""
    alike = (
        f", {report.uninformative:,} in groups of equal rewards, which teach nothing" if report.uninformative else ""
    )
    later = f", {report.later_turns:,} of them later turns or parts of an episode" if report.later_turns else ""
    yield "rollouts", f"{report.admitted:,} admitted{later}{unused}{alike}, {report.rejected:,} rejected"
    if report.unable.nodes:
        yield "nodes", report.unable.text
    if report.fruitless is not None:
        yield "leases", str(report.fruitless)
    if report.reach.text:
        yield "reach", report.reach.text
    if report.bytes_carried:
        yield "circuits", f"{words.size(report.bytes_carried)} went between nodes over circuits through the learner"
    if report.verifying_share is not None:
        yield "verification", _verifying(report)
    if report.teacher_share is not None:
        scored = words.duration(report.engine_s[SCORES])
        yield "teacher", f"scored completions for {scored}: {words.share(report.teacher_share)} of the run"
    if (said := _trust(report)) is not None:
        yield "trust", said
    yield "lag", _lags(report)
    if said := objective_line(recent(report.steps)):
        yield "objective", f"{said}, mean of the {_recent_steps(report)}"
    if report.steps:
        yield "alarms", _alarm_counts(report)
    if report.checkpoints:
        yield "checkpoints", _checkpoints(report)
    yield "cost", _cost(report)
    if (reference := report.terms.reference) is not None:
        yield "reference", _against(report, reference)
    yield from _energy(report)


def _trust(report: SwarmReport) -> str | None:
    """Return who was banned and how many are in quarantine; None if no peer was ever audited."""
    waits = f"; {report.num_quarantined:,} in quarantine" if report.num_quarantined else ""
    if report.banned:
        trained = sum(peer.trained or 0 for peer in report.banned)
        reasons = bans_in_words(peer.audits for peer in report.banned if peer.audits is not None)
        who = f"banned {len(report.banned):,} of {words.counted(len(report.rollout_peers), 'rollout peer')} ({reasons})"
        theirs = (
            f"{trained:,} of the {words.counted(report.trained, 'rollout')} trained on {words.were(trained)} theirs"
        )
        return f"{who}{waits}; {theirs}"
    looked = any(peer.audits is not None for peer in report.peers)
    return f"no peer is banned{waits}" if looked or waits else None


def _verifying(report: SwarmReport) -> str:
    audits, choices = (report.engine_s.get(what, 0.0) for what in ("audits", "choices"))
    share = words.share(report.verifying_share)
    drawn = f" and tests for selective delivery {words.duration(choices)}" if choices else ""
    return f"audits {words.duration(audits)}{drawn} of engine time: {share} of the run"


def _passes(first: Evaluation, last: Evaluation, *, once: bool) -> str:
    """Return pass@k, unless there is only one sample, which already shows it."""
    if last.samples == 1:
        return ""
    before = {} if once else {f"pass@{k}": value for k, value in first.pass_at.items()}
    now = {f"pass@{k}": value for k, value in last.pass_at.items()}
    return "".join(f", {_risen(metric, before, now)}" for metric in now)


def _risen(metric: str, before: Mapping[str, float], now: Mapping[str, float]) -> str:
    begun = f"{before[metric]:.3f} to " if metric in before else ""
    return f"{metric} {begun}{now[metric]:.3f}"


def own_story(report: OwnReport) -> Iterator[tuple[str, str]]:
    yield "peer", report.peer.peer
    if report.newest is None:
        yield "receipts", "none yet: the learner has judged no work of this node"
        return
    yield "receipts", f"{report.receipts:,} from the learner, from its version {report.oldest} to {report.newest}"
    if report.sent_bytes is not None and report.received_bytes is not None:
        yield (
            "traffic",
            f"{words.size(report.sent_bytes)} sent, {words.size(report.received_bytes)} received, of which chunks of "
            f"model versions {words.size(report.peer.bytes_up)} and {words.size(report.peer.bytes_down)}",
        )
    if report.traffic:
        yield (
            "chunks",
            "; ".join(
                f"{short(one.peer)}: {words.size(one.bytes_up)} up, {words.size(one.bytes_down)} down"
                for one in report.traffic[:PEERS_LISTED]
            ),
        )
    yield "engine", f"{report.peer.worked} for {words.duration(report.peer.engine_s)}"
    yield from _energy(report)
    if report.peer.reputation is not None and report.reputed_ms is not None:
        found = f"{in_a_line(report.peer.reputation)} The learner stated this at {words.moment(report.reputed_ms)}."
        yield "reputation", " ".join([found, *advice(report.peer.reputation)])
    yield "not shown", "share of batches and credit for relaying: only the learner knows them"


def _lags(report: SwarmReport) -> str:
    """Return by how many steps the trained rollouts were behind the learner."""
    if not report.lags:
        return "all trained rollouts came from logs" if report.steps else "no rollout was trained on yet"
    if len(report.lags) > MAX_LAGS_LISTED:
        mean = sum(lag * number for lag, number in report.lags.items()) / report.trained
        return f"{mean:.1f} steps on average, at most {max(report.lags)}{_window(report)}"
    shares = ", ".join(f"{lag}: {words.share(number / report.trained)}" for lag, number in report.lags.items())
    return f"{shares} of trained rollouts, by lag in steps{_window(report)}"


def _window(report: SwarmReport) -> str:
    return "" if report.staleness is None else f" (the window is S = {report.staleness})"


def _pace(report: SwarmReport) -> str:
    return "" if report.mean_step_s is None else f"; a training step every {words.rate(report.mean_step_s)} s"


def _away(report: SwarmReport) -> str:
    return f"; no learner ran for {words.duration(report.away_s)}" if report.away_s >= AWAY_S else ""


def _cost(report: SwarmReport) -> str:
    if not report.costs:
        return "nothing: no peer asks for money"
    amounts = ", ".join(words.money_of(micros, currency) for currency, micros in report.costs.items())
    own = ", ".join(words.money_of(micros, currency) for currency, micros in report.learner_costs.items() if micros)
    of_it = f" ({own} of it for the learner)" if own else ""
    if not report.tokens:
        return f"{amounts}{of_it}"
    return f"{amounts}{of_it}, or {_cents(report.costs, report.tokens)} per 1000 admitted tokens"


def _cents(costs: Mapping[str, int], tokens: int) -> str:
    each = [(currency, cents_per_thousand(micros, tokens)) for currency, micros in costs.items()]
    return ", ".join(words.cents(cents, f"cents ({currency})") for currency, cents in each)


def _against(report: SwarmReport, reference: Reference) -> str:
    """Return what rollout peers cost, compared with a rented machine."""
    currency, asked = report.terms.currency, report.rollout_costs
    name = words.plain_name(reference.name, 48) or "a rented machine"
    rented = (
        f"{name}, at {words.money(reference.per_hour, currency)} an hour and {words.rate(reference.tokens_per_s)} "
        f"tokens per s, would cost {words.cents(100 * reference.per_1000_tokens, 'cents')} per 1000 tokens"
    )
    if not report.tokens:
        return rented
    each = _cents(asked, report.tokens) if asked else "nothing"
    both = {*asked} <= {currency} and reference.per_1000_tokens
    mine = asked.get(currency, 0) / MICROS / report.tokens * 1000
    share = f", {words.share(mine / reference.per_1000_tokens)} of that" if both else ""
    return f"{rented}; rollout peers cost {each} per 1000 admitted tokens{share}"


def _energy(report: SwarmReport | OwnReport) -> Iterator[tuple[str, str]]:
    """Yield joules by source, and what they cost; implausible reports get a line of their own."""
    sums: defaultdict[EnergySource, float] = defaultdict(float)
    for peer in report.peers:
        for source, joules in peer.energy.items():
            sums[source] += joules
    if sums:
        parts = [f"{words.kwh(sums[source])} {SOURCES[source]}" for source in EnergySource if source in sums]
        paid = money_for(sum(sums.values()), report.terms.per_kwh)
        price = "" if paid is None else f"; electricity cost {words.money(paid, report.terms.currency)}"
        yield "energy", f"{words.kwh(sum(sums.values()))} kWh, as reported: {', '.join(parts)}{price}"
    silent = [peer for peer in report.peers if peer.joules is None and not peer.joules_disbelieved]
    implausible = [peer for peer in report.peers if peer.joules_disbelieved]
    if sums and silent:
        yield "", f"{len(silent):,} of {len(report.peers):,} reported none, and are not included"
    if implausible:
        joules = sum(peer.joules_disbelieved for peer in implausible)
        who = ", ".join(known_as(peer) for peer in implausible[:IMPLAUSIBLE_LISTED])
        more = f" and {len(implausible) - IMPLAUSIBLE_LISTED:,} more" if len(implausible) > IMPLAUSIBLE_LISTED else ""
        yield (
            "" if sums else "energy",
            f"not included, because more than {MAX_WATTS / 1000:g} kW: {words.kwh(joules)} kWh reported by {who}{more}",
        )


def _scored(peer: PeerReport) -> Iterator[RenderableType]:
    """Yield how many groups of a teacher's scores were rejected."""
    if peer.scored is not None:
        groups = words.counted(peer.scored.groups + peer.scored.refused, "group")
        yield Padding(
            Text(f"Scored {groups}, of which {peer.scored.refused:,} {words.were(peer.scored.refused)} rejected."),
            (0, 0, 0, 1),
        )


def _legend(verdicts: Mapping[Rule, int]) -> RenderableType:
    """Return what each rule that rejected records means, with their number."""
    rejected = [(rule, number) for rule, number in verdicts.items() if rule is not Rule.ADMITTED]
    if not rejected:
        return Padding(Text(none_rejected(sum(verdicts.values()))), (0, 0, 0, 1))
    rows = []
    for rule, number in rejected:
        meaning = MEANINGS[rule]
        blame = Text("; counts against honesty", style="red") if meaning.blames else Text("")
        rows.append((rule.value, _to_the_right(words.count(number)), Text(meaning.words).append(blame)))
    return titled("Rejected records, by rule", grid(rows, fixed=2), below=0)


def _to_the_right(figure: str) -> Text:
    return Text(figure, justify="right")


def lag_rows(report: SwarmReport) -> list[tuple[str, ...]]:
    """Return the trainer's recent results by lag, a row for each; none if they are not known."""
    found = by_lag(report.steps)
    if not any("kl" in row for row in found.values()):
        return []
    return [
        (
            lag, words.count(round(row["tokens"])), words.figure(row.get("ratio")), _nats(row.get("kl")),
            words.share(row.get("clip_share")), words.share(row.get("ess")), words.figure(row.get("reward")),
        )
        for lag, row in found.items()
    ]  # fmt: skip


def _nats(kl: float | None) -> str:
    """Return a KL; below a millionth of a nat it is rounding of the computation."""
    return words.figure(None if kl is None else round(kl, 6) + 0.0)


def lag_title(report: SwarmReport) -> str:
    """Return the title above the rows of lags."""
    return f"Trained tokens by lag, {_recent_steps(report)}"


def _recent_steps(report: SwarmReport) -> str:
    number = min(RECENT, len(report.steps))
    return "last step" if number == 1 else f"last {number} steps"


def _by_lag(report: SwarmReport) -> Iterator[RenderableType]:
    if rows := lag_rows(report):
        headings = ["lag, steps", "tokens", "mean ratio", "KL, nats", "clipped", "effective", "reward"]
        more = len(rows) - LAGS_LISTED
        rest = [Text(f"and {words.counted(more, 'more lag')}, in the JSON form", style="dim")] if more > 0 else []
        yield titled(lag_title(report), table(headings, rows[:LAGS_LISTED], None, first_left=False), *rest)


def _alarm_counts(report: SwarmReport) -> str:
    found = spells(report.alarms)
    standing = sum(spell.ended is None for spell in found)
    return f"{len(found)} raised, {standing} of them active" if found else "none raised"


def _checkpoints(report: SwarmReport) -> str:
    """Return which checkpoints are kept, to continue from or go back to, with the scores of their versions."""
    told = [f"{one.step:,}{_reward(one)}" for one in report.checkpoints]
    more = len(told) - CHECKPOINTS_LISTED
    shown = ", ".join(told[:CHECKPOINTS_LISTED]) + (f", and {words.counted(more, 'newer one')}" if more > 0 else "")
    return f"kept from training {'step' if len(told) == 1 else 'steps'} {shown}"


def _reward(one: KeptCheckpoint) -> str:
    if one.sampled is None:
        return ""
    of = "" if one.evaluated == one.step else f" at {one.evaluated:,}"
    return f" (sampled {one.sampled:.3f}{of})"


def none_rejected(judged: int) -> str:
    """Return the sentence for a table without rejected records."""
    return "No record was rejected." if judged else "No record was judged yet."


def alarm_rows(report: SwarmReport) -> list[tuple[Spell, str, str]]:
    """Return each alarm, oldest first, with its name and when it was active."""
    return [
        (
            spell,
            spell.alarm.replace("_", " "),
            f"step {spell.began} on" if spell.ended is None else f"steps {spell.began} to {spell.ended}",
        )
        for spell in spells(report.alarms)
    ]


def _alarms(report: SwarmReport) -> Iterator[RenderableType]:
    """Yield the alarms: what differed from the usual."""
    if found := alarm_rows(report):
        rows = [
            (when, Text(name, style="red" if spell.ended is None else ""), spell.said)
            for spell, name, when in found[-ALARMS_LISTED:]
        ]
        yield titled(latest("Alarms", len(rows), len(found)), grid(rows, fixed=2))


def objective_line(figures: Mapping[str, float]) -> str:
    """Return an objective's numbers in a line; those that are not known are left out."""
    told = (
        ("entropy", "entropy {} nats", words.figure),
        ("mismatch_kl", "KL to the rollouts {} nats", words.figure),
        ("ess", "effective sample {}", words.share),
        ("weight_ess", "after bounds {}", words.share),
        ("clip_share", "clipped {}", words.share),
    )
    return ", ".join(form.format(show(figures[name])) for name, form, show in told if name in figures)


def _bans(report: SwarmReport, everyone: bool) -> Iterator[RenderableType]:
    """Yield who was banned, when, why, and what it cost: the latest bans, or all."""
    shown = report.banned if everyone else report.banned[-BANS_LISTED:]
    rows = []
    for peer in shown:
        assert peer.audits is not None
        said = ban_in_words(known_as(peer), peer.audits, judged=peer.judged, trained=peer.trained or 0)
        rows.append((_to_the_right(words.duration(peer.audits.banned_at_s or 0.0)), said))
    if rows:
        yield titled(latest("Bans", len(shown), len(report.banned)), grid(rows), above=1, below=0)


def _plans(report: SwarmReport) -> Iterator[RenderableType]:
    """Yield which peers were activated and deactivated, when and why."""
    changes = [(plan.at_s, reason) for plan in report.plans for reason in plan.reasons]
    if changes:
        rows = [
            (_to_the_right(words.duration(at_s)), words.plain_name(reason, 512))
            for at_s, reason in changes[-CHANGES_LISTED:]
        ]
        more = "" if len(rows) == len(changes) else f", the last {len(rows)} of {len(changes)} changes"
        yield titled(f"Plans{more}", grid(rows), above=1, below=0)


REACH_SAID = (
    "Peers report how others reach them, how they connected to the learner, and how many nodes they connected to in "
    "each way. The learner itself counted the bytes that went over circuits through it."
)
"""The text below the table of connections, here and on the page."""

REASONS_LISTED = 8
"""Reasons for a peer's reach that are shown, the most frequent ones."""


def reach_reasons(report: SwarmReport) -> list[tuple[str, str]]:
    """Return why peers are reached as they are: verdicts, each with a reason that peers report."""
    found = Counter((one.reach.verdict, one.reach.why) for one in report.peers if one.reach is not None)
    shown = {key for key, _ in found.most_common(REASONS_LISTED)}
    order = list(VERDICTS.values())
    return [
        (verdict, words.plain_name(why, MAX_REACH_CHARS))
        for verdict, why in sorted(shown, key=lambda key: (order.index(key[0]), key[1]))
        if why
    ]


def _reach(report: SwarmReport, width: int, box: Box, *, everyone: bool) -> Iterator[RenderableType]:
    """Yield the table of connections between nodes."""
    told = [peer for peer in listed(report, everyone=everyone) if peer.reach is not None]
    if told:
        limit = NAME_CHARS if width >= ROOMY else NARROW_NAME_CHARS
        names = Strip(heading="peer", cells=[known_as(peer, limit) for peer in told], left=True)
        section = Section(title="Connections between nodes", columns=reach_columns(report))
        yield Text("")
        yield from drawn_sections([section], told, [], names, width=width, box=box)
        yield Padding(grid(reach_reasons(report)), (0, 0, 1, 1))
        yield Padding(Text(REACH_SAID, style="dim"), (0, 0, 0, 1))


def _rejections(report: OwnReport) -> Iterator[RenderableType]:
    rows = [
        (
            f"{datetime.fromtimestamp(record.at_ms / 1000, UTC):%m-%d %H:%M:%S}",
            f"{short(record.lease)}/{record.index}",
            record.rule.value,
            words.plain_name(record.detail, 512),
        )
        for record in report.refused
    ]
    if rows:
        yield titled("Latest rejections, in the learner's words (UTC)", grid(rows, fixed=3), above=1, below=0)
