"""The parts of both pages: no name or word of a stranger becomes markup; a public page tells nothing of machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.commands.page.event_tail import Logged
from node.commands.page.live_run import LiveRun
from node.commands.page.parts import invite, learner_head, learner_page, node_page, orders, peers, samples, versions
from node.commands.page.parts.learner_head import READING
from node.commands.page.parts.samples import Wanted
from node.energy.machine_load import GpuLoad, Load
from node.reports import OwnReport, SwarmReport
from node.reports.html.charts.markup import Fragment
from node.reports.model.report import Role
from node.state.status_file import NodeStatus
from node.ui.live_view import ViewState
from protocol.accounting.claims import Price
from protocol.core.visible import visible
from tests.node.commands.samples.test_text import group, shown
from tests.node.reports.html.charts.test_markup import Reader
from tests.node.reports.html.test_document import own
from tests.support.examples import examples
from tests.support.page_stories import NAMES, banned_report, rich_report

Elements = list[tuple[str, list[str]]]
Parts = Mapping[str, Fragment]


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader


def form(parts: Parts) -> dict[str, Elements]:
    """Return the elements of each part with the names of their attributes: what no text may change."""
    found = {}
    for key, part in parts.items():
        reader = read(part.text)
        assert reader.others == []
        found[key] = [(tag, sorted(attributes)) for tag, attributes in reader.elements]
    return found


def live(role: Role, text: str) -> LiveRun:
    """Return a run in which a stranger says `text` wherever one can."""
    run = LiveRun(view=ViewState(role=role, title=text, steps=9))
    peer = {"peer": "12D3KooWabc"}
    for event, fields in (
        ("starting", {"doing": text}),
        ("version_published", {"version": "1.0"}),
        ("peer_joined", {**peer, "name": text, "engine": text, "machine": text}),
        ("heartbeat", {**peer, "installed": "1.0", "pending": 1, "bytes_up": 1, "bytes_down": 1}),
        ("step", {"step": 1, "buffered": 0, "reward": 0.25}),
        ("step", {"step": 2, "buffered": 0, "reward": 0.5}),
        (
            "delivery_judged",
            {**peer, "refused": 1, "admitted": 1, "tokens": 3, "lag": 0, "reason": "x", "detail": text},
        ),
        ("peer_banned", {**peer, "reason": text}),
        ("nodes_unable", {"text": text, "everyone": False}),
        ("reach_told", {"kind": "not", "text": text}),
        ("trouble", {"text": text}),
        ("peer_left", {**peer, "reason": text, "leases_released": 1}),
    ):
        run.take([Logged(at=1000.0, event=event, fields=fields)])
    run.tick(1010.0)
    return run


def learner_parts(report: SwarmReport | None, text: str, *, is_public: bool) -> dict[str, Fragment]:
    slow = (
        {} if report is None else {**learner_page.slow_parts(report), "peers": peers.part(report, is_public=is_public)}
    )
    parts = {**slow, **learner_page.live_parts(live(Role.LEARNER, text), report)}
    return {key: part for key, part in parts.items() if key in learner_page.visible_keys(is_public=is_public)}


def node_parts(report: OwnReport, text: str) -> dict[str, Fragment]:
    load = Load(cpu=0.5, cores=2, memory_bytes=9, all_memory_bytes=99, gpus=[GpuLoad(name=text, busy=0.5, celsius=70)])
    changed = f"{text} (until the node ends; at its start: always)"
    status = NodeStatus(
        doing=text,
        limits={"upload": text, "[engine] hours": changed},
        changeable={"hours": text, "quota_gb": 64.0, "of another version": text},
        notice=text,
        reach=text,
    )
    return {
        **node_page.slow_parts(report),
        **node_page.live_parts(live(Role.ROLLOUT, text), load, status),
        "orders": orders.node_orders(status, is_paused=False),
    }


def test_a_node_shows_its_rank_if_it_was_told_one() -> None:
    run = live(Role.ROLLOUT, "x")
    assert "<dt>rank</dt>" not in node_page.live_parts(run, Load(), None)["machine"].text
    told = {"place": 3, "peers": 12, "admitted": 5, "admitted_by_all": 20}
    run.take([Logged(at=1020.0, event="rank_told", fields=told)])
    shown = node_page.live_parts(run, Load(), None)["machine"].text
    assert "<dt>rank</dt><dd><b>3 of 12</b><span>nodes, with 25.0% of admitted rollouts</span></dd>" in shown


Rich = Callable[[str], SwarmReport]


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Rich:
    made: dict[str, SwarmReport] = {}

    def report(name: str) -> SwarmReport:
        if name not in made:
            made[name] = rich_report(tmp_path_factory.mktemp("rich") / "ledger.sqlite", name=name, detail=name)
        return made[name]

    return report


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_public", [False, True])
def test_no_name_changes_a_learners_page(rich: Rich, name: str, is_public: bool) -> None:
    hostile = learner_parts(rich(name), name, is_public=is_public)
    assert form(hostile) == form(learner_parts(rich("plain"), "plain", is_public=is_public))
    whole = "".join(part.text for part in hostile.values())
    assert not any(character in whole for character in "\u202e\u2066\u200b\x1b\x00")


@pytest.mark.parametrize("name", NAMES)
def test_no_name_changes_a_row_or_a_search(rich: Rich, name: str) -> None:
    for find in ("", name):
        question = peers.Question(count=100, find=find)
        found = {str(i): Fragment(row) for i, row in enumerate(peers.rows(rich(name), question, is_public=False).html)}
        assert set(map(str, form(found).values())) == {str(next(iter(form(found).values())))} if found else find


@settings(max_examples=examples(40))
@given(st.text(min_size=1))
def test_no_text_at_all_changes_a_nodes_page(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    report = own(tmp_path_factory.mktemp("own"))
    hostile = replace(report, peer=replace(report.peer, name=text, engine=text, machine=text))
    said = tuple(replace(one, detail=text) for one in report.refused)
    assert form(node_parts(replace(hostile, refused=said), text)) == form(node_parts(report, "plain"))


@settings(max_examples=examples(100))
@given(st.text())
def test_no_completion_becomes_markup(text: str) -> None:
    """Nor a prompt, nor what somebody looks for."""
    group_shown = shown(group(1, 0.5))
    one = group_shown.groups[0]
    completion = replace(one.completions[0], parts=tuple(replace(p, text=text) for p in one.completions[0].parts))
    hostile = replace(one, completions=(completion,), prompt=replace(one.prompt, text=text), task=text, peer_name="x")
    part = samples.part_of(replace(group_shown, groups=(hostile,)), Wanted(find=text, version=text))
    plain = samples.part_of(group_shown, Wanted(find="a", version="b"))
    elements = [tag for tag, _ in read(part.text).elements]
    assert elements == [tag for tag, _ in read(plain.text).elements]
    assert visible(text[: samples.MAX_TEXT_CHARS]).replace("\r", "") in read(part.text).text.replace("\r", "")


def test_a_completion_is_bounded_and_what_an_environment_said_is_marked() -> None:
    part = samples.part_of(shown(group(1, 0.5)), Wanted()).text
    assert '<q class="environment">look: it rains\n</q>' in part
    assert "<span>cba&lt;eos&gt;</span>" in part
    one = shown(group(1, 0.5)).groups[0].completions[0]
    long = replace(one, parts=tuple(replace(piece, text="x" * 3000) for piece in one.parts))
    assert sum(len(piece.text) for piece in samples._text(long)) < samples.MAX_TEXT_CHARS + 200


def test_samples_of_a_run_that_has_none_say_why(tmp_path: Path) -> None:
    assert "holds no samples" in samples.part(tmp_path, Wanted()).text


def test_samples_are_read_again_only_when_there_are_others(tmp_path: Path) -> None:
    newest = samples.NewestSamples(tmp_path)
    assert newest.part() is not None
    assert newest.part() is None
    (tmp_path / f"{samples.FILE}-wal").write_bytes(b"x")
    assert newest.part() is not None
    assert newest.part() is None


SECRETS = ("SECRET-MACHINE", "SECRET-WORD")


def test_a_public_page_shows_no_machine_notice_sample_invite_or_control(rich: Rich) -> None:
    report = rich("plain")
    peers_ = tuple(
        replace(peer, machine="SECRET-MACHINE", engine="SECRET-MACHINE", reach=replace(peer.reach, why="SECRET-WORD"))
        if peer.reach
        else replace(peer, machine="SECRET-MACHINE", engine="SECRET-MACHINE")
        for peer in report.peers
    )
    parts = learner_parts(replace(report, peers=peers_), "SECRET-WORD", is_public=True)
    parts.pop("head")  # its title is the swarm's name, which is "SECRET-WORD" here
    whole = "".join(part.text for part in parts.values())
    assert [secret for secret in SECRETS if secret in whole] == []
    assert not {"notices", "samples", "invite", "orders", "reach", "plans", "bans", "rejected", "alarms"} & set(parts)
    assert {"learned", "figures", "peers", "versions", "plots"} <= set(parts)
    private = "".join(part.text for part in learner_parts(report, "SECRET-WORD", is_public=False).values())
    assert "SECRET-WORD" in private


def test_before_the_ledger_is_read_the_page_says_so() -> None:
    parts = learner_parts(None, "a swarm", is_public=False)
    for key in ("learned", "versions"):
        assert READING in parts[key].text
    empty = learner_head.head(LiveRun(view=ViewState(role=Role.LEARNER)), None).text
    assert READING in empty
    assert "not evaluated yet" not in empty


def test_every_part_of_the_report_has_a_place(rich: Rich) -> None:
    report = rich("plain")
    assert set(learner_page.slow_parts(report)) == set(learner_page.OF_REPORT) <= set(learner_page.ORDER)
    assert {key for key, _ in learner_page.NAVIGATION} <= set(learner_page.ORDER)
    assert {key for key, _ in node_page.NAVIGATION} <= set(node_page.ORDER)


def test_every_part_of_a_nodes_page_has_a_place(tmp_path: Path) -> None:
    assert set(node_parts(own(tmp_path), "x")) <= set(node_page.ORDER)


def test_each_part_is_one_element_with_its_own_id(rich: Rich, tmp_path: Path) -> None:
    """The script replaces a part by its id, so that markup beside the element would be lost."""
    found = {**learner_parts(rich(NAMES[0]), NAMES[0], is_public=False)}
    for key, part in (*found.items(), *node_parts(own(tmp_path), NAMES[0]).items()):
        (tag, attributes), *_ = read(part.text).elements
        assert attributes["id"] == key
        assert part.text.endswith(f"</{tag}>")
        assert part.text.startswith(f"<{tag} ")


def test_the_time_bar_adds_up_and_the_spark_line_names_its_values(rich: Rich) -> None:
    html = learner_head.head(live(Role.LEARNER, "x"), rich("plain")).text
    widths = [float(one["width"] or 0) for tag, one in read(html).elements if tag == "rect"]
    assert sum(widths) == pytest.approx(100, abs=0.5)
    assert "Training reward of the last 2 steps, from 0.250 to 0.500" in html
    assert "training reward of the last 2 steps, 0.25 to 0.50" in html


def test_numbers_of_every_plot_are_there_and_of_no_other(rich: Rich, tmp_path: Path) -> None:
    report = rich("plain")
    parts = learner_page.slow_parts(report)
    keys = [
        str(attributes["data-plot"])
        for part in parts.values()
        for tag, attributes in read(part.text).elements
        if tag == "details" and "data-plot" in attributes
    ]
    assert len(keys) > 5
    for key in keys:
        found = learner_page.numbers_of(report, key)
        assert found is not None
        assert "<table" in found.text
    assert learner_page.numbers_of(report, "../../etc/passwd") is None
    own_report = own(tmp_path)
    assert node_page.numbers_of(own_report, "timeline") is not None
    assert node_page.numbers_of(own_report, "x") is None


def test_the_invite_is_two_lines_to_type_and_a_picture() -> None:
    assert invite.part("") is None
    part = invite.part("volery1" + "A" * 300)
    assert part is not None
    text = read(part.text).text
    assert "uv tool install volery\nvolery join volery1AAA" in text
    assert '<svg role="img" aria-label="The invite as a QR code"' in part.text


def test_notices_are_the_newest_first_with_times_that_programs_read() -> None:
    run = LiveRun(view=ViewState(role=Role.LEARNER))
    for second in range(60):
        run.take([Logged(at=1_760_000_000.0 + second, event="trouble", fields={"text": f"notice {second}"})])
    html = learner_head.notices(run).text
    elements = read(html).elements
    times = [str(attributes["datetime"]) for tag, attributes in elements if tag == "time"]
    assert times[0] == "2025-10-09T08:54:19+00:00"
    assert times == sorted(times, reverse=True)
    assert len(times) == learner_head.NOTICES_SHOWN + learner_head.OLDER_SHOWN
    newest, older = html.split("<details>")
    assert newest.count("<li>") == learner_head.NOTICES_SHOWN
    assert "notice 59" in newest
    assert "notice 51" in older
    assert "Nothing has happened yet." in learner_head.notices(LiveRun(view=ViewState(role=Role.LEARNER))).text


def test_a_part_that_has_lost_its_content_is_an_empty_place(tmp_path: Path) -> None:
    """After a pardon nobody is banned: the section about bans must go."""
    report = banned_report(tmp_path / "ledger.sqlite")
    assert "<table" in learner_page.slow_parts(report)["bans"].text
    pardoned = [replace(peer, audits=None) for peer in report.peers]
    assert learner_page.slow_parts(replace(report, peers=pardoned))["bans"] == learner_page.empty("bans")


def test_the_head_says_that_versions_are_held_back() -> None:
    run = live(Role.LEARNER, "x")
    assert learner_head.HELD_BACK not in learner_head.head(run, None).text
    run.view.settings["publish"] = 0
    assert learner_head.HELD_BACK in learner_head.head(run, None).text


def test_a_start_is_told_without_saying_twice_that_it_is_one() -> None:
    for doing, told in (
        ("starting the trainer's process", "Starting the trainer's process."),
        ("opening the tasks", "Starting: opening the tasks."),
    ):
        run = LiveRun(view=ViewState(role=Role.LEARNER))
        run.take([Logged(at=1.0, event="starting", fields={"doing": doing})])
        assert learner_head.progress(run) == told


def test_nodes_stand_beside_their_versions_also_if_the_report_is_older(rich: Rich) -> None:
    report = rich("plain")
    newest = report.versions[-1].version
    run = LiveRun(view=ViewState(role=Role.LEARNER))
    newer = f"{newest.incarnation}.{newest.version + 2}"
    for peer, installed in (("a", newer), ("b", str(newest)), ("c", "1.0"), ("d", "nonsense"), ("e", "1.2.3")):
        run.take([Logged(at=1.0, event="peer_joined", fields={"peer": peer, "name": peer})])
        told = {"peer": peer, "installed": installed, "pending": 0, "bytes_up": 0, "bytes_down": 0}
        run.take([Logged(at=1.0, event="heartbeat", fields=told)])
    html = versions.part(run.view, report).text
    rows = [row.split("<td>") for row in html.partition("<tbody>")[2].split("</tr>")]
    assert (newer, "1") == (read(rows[0][0]).text, read(rows[0][-1]).text)
    assert (str(newest), "1") == (read(rows[1][0]).text, read(rows[1][-1]).text)
    assert "3 nodes with older ones." in html


def test_without_prices_there_is_no_column_of_nothing(rich: Rich) -> None:
    priced = rich("plain")
    free = replace(priced, peers=[replace(peer, price=Price()) for peer in priced.peers])
    for report, has_prices in ((priced, True), (free, False)):
        part, costs = peers.part(report, is_public=False).text, learner_page.slow_parts(report)["costs"].text
        assert ("cents per 1k tokens" in part, "cents per 1k tokens" in costs) == (has_prices, has_prices)
        assert ("Cents per 1k tokens: what" in part) == has_prices
        assert ("nobody has set [price] per_hour" in costs) != has_prices
        assert "Share of batches: fraction" in part
