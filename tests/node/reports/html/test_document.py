"""The page is whole, the same each time, bounded in size, and safe for any name."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from node.cli.application import app
from node.reports import OwnReport, SwarmReport, as_html, own_report, swarm_report, write_html
from node.reports.charts.cost_curve import costs_of
from node.reports.charts.learning_curve import lead
from node.reports.charts.run_curves import plots
from node.reports.charts.scale import CURVE_POINTS
from node.reports.html import peer_table
from node.reports.html.charts.markup import escaped
from node.reports.model.history import PEERS_TOLD
from node.state.receipt_rows import PeerTraffic
from node.state.receipts import Receipts
from protocol.accounting.claims import Price
from protocol.core.ids import PeerId, PolicyVersion, short
from protocol.core.visible import visible
from protocol.work import Rule
from tests.node.reports.html.charts.test_markup import Reader
from tests.node.state.test_receipts import receipt
from tests.support.examples import examples
from tests.support.ledgers import ALPHA, BETA, LEARNER, START_MS, demo_run, key, open_story, peer_row
from tests.support.page_stories import HOSTILE, NAMES, TAKEN, banned_report, crowd, rich_report

OUTSIDE = re.compile(r"(?:https?:|//|url\(|@import|data:|file:)", re.IGNORECASE)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    return reader


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> SwarmReport:
    return rich_report(tmp_path_factory.mktemp("rich") / "ledger.sqlite")


@pytest.fixture(scope="module")
def page(rich: SwarmReport) -> str:
    return as_html(rich)


def own(directory: Path, *, name: str = "my node", detail: str = "") -> OwnReport:
    books = Receipts(directory / "receipts.sqlite")
    first = books.session_began(Price(micros_per_hour=1_000_000), START_MS)
    traffic = [PeerTraffic(peer=BETA, bytes_up=10, bytes_down=2000)]
    books.session_lasts(first, START_MS + 3_600_000, bytes_up=1, bytes_down=2, traffic=traffic, energy=TAKEN)
    for number in range(1, 40):
        one = receipt(START_MS // 1000 + 60 * number, Rule.ADMITTED, Rule.STALE, tokens=7)
        books.add(one, b"raw", engine_s=1.0)
    if detail:
        books._db.execute("UPDATE verdicts SET detail = ?", (detail,))
    return own_report(books, peer=ALPHA, name=name, engine=name, machine=name, with_history=True, per_kwh=0.3)


# What it tells


def test_each_peer_has_a_page_with_its_own_figures(rich: SwarmReport, page: str) -> None:
    pages = dict(re.findall(r'<section class="peer" id="peer=([^"]+)"(.*?)</section>', page, flags=re.DOTALL))
    assert set(pages) == {peer.peer for peer in rich.peers}
    for peer in rich.peers:
        assert f'href="#peer={peer.peer}"' in page
    alpha = next(peer for peer in rich.peers if peer.peer == ALPHA)
    for told in (f"{alpha.admitted:,}", f"{alpha.tokens:,}", "atlas", "2 cores", "0.2500 USD an hour", "once"):
        assert told in pages[ALPHA], told
    for rule in Rule:
        if rule is not Rule.ADMITTED:
            assert pages[HOSTILE].count(f"<code>{rule.value}</code>") == 1 + 3, "its count, and three of its records"
    assert "borealis" in pages[ALPHA], "the page must name the peer that signed for its relaying"
    assert "Leases" not in pages[LEARNER], "the learner generates nothing"


def test_the_overview_tells_what_was_learned_cost_and_planned(page: str) -> None:
    for told in (
        "Reward and evaluation", "greedy from 0.4", "Lag of trained rollouts", "Utilisation of the learner",
        "Cost of rollout peers", "of the plans in force", "restart, step 13", "Policy versions", "S = 2",
        "the operator wants everybody to work",
    ):  # fmt: skip
        assert told in page, told


def test_costs_are_told_by_start_day_and_version(page: str) -> None:
    section = page[page.index('id="costs"') : page.index("</section>", page.index('id="costs"'))]
    for kind in ("run", "day", "version"):
        assert f"<caption>Cost by {kind}" in section
    for told in ("electricity, USD", "cents per 1k tokens", "kWh", "learner&#x27;s", "2025-10-09", "total"):
        assert told in section, told
    assert 'href="#costs"' in page


def test_energy_is_told_of_whoever_told_it(page: str, tmp_path: Path) -> None:
    pages = dict(re.findall(r'<section class="peer" id="peer=([^"]+)"(.*?)</section>', page, flags=re.DOTALL))
    assert "processor" not in pages[ALPHA]
    for told in ("energy, as reported", "by GPU", "from a table of machines", "electricity", "against the reference"):
        assert told in pages[ALPHA], told
    assert "energy, not included" in pages[HOSTILE]
    assert "energy" not in pages[BETA]
    assert "1.1 kWh: 1 by GPU" in as_html(own(tmp_path))


def test_audits_have_no_section_while_there_are_none(page: str) -> None:
    assert "Audit" not in page


def test_bans_are_told_at_the_top_in_a_section_and_in_the_navigation(tmp_path: Path, page: str) -> None:
    banned = as_html(banned_report(tmp_path / "ledger.sqlite"))
    assert '<a href="#bans">Bans</a>' in banned
    assert "<dt>peers banned</dt><dd><b>1</b><span>1 in quarantine</span></dd>" in banned
    section = banned[banned.index('id="bans"') : banned.index('id="rejected"')]
    assert "1 of 4 rollout peers was banned." in section
    for told in (f"#peer={HOSTILE}", "20 of 28 tokens are not those of", "<td>audits</td>", "USD", escaped(NAMES[0])):
        assert told in section, told
    assert "<script>alert" not in section
    assert 'id="bans"' not in page
    assert "<dt>peers banned</dt><dd><b>0</b><span>1 in quarantine</span></dd>" in page


def test_large_odds_are_said_in_words(tmp_path: Path) -> None:
    assert "<dt>odds against honest work, to 1</dt><dd><b>1.3 million</b>" in as_html(
        banned_report(tmp_path / "ledger.sqlite")
    )


def test_every_number_of_the_peer_table_is_there_in_full_for_sorting(rich: SwarmReport, page: str) -> None:
    table = page[page.index('id="peer-table"') : page.index("</table>", page.index('id="peer-table"'))]
    headings = re.findall(r'<th scope="col"[^>]*>([^<]*)</th>', table)
    rows = {
        found[1]: found[2]
        for found in re.finditer(r'<tr><th scope="row" data-v="[^"]*?(\w{6})">.*?</th>(.*?)</tr>', table)
    }
    assert rows.keys() == {short(peer.peer) for peer in rich.peers}
    for peer in rich.peers:
        cells = re.findall(r"<td([^>]*)>([^<]*)</td>", rows[short(peer.peer)])
        assert len(cells) == len(headings) - 1
        values = dict(zip(headings[1:], cells, strict=True))
        if peer.admitted:
            assert values["tokens admitted"] == (f' data-v="{peer.tokens}"', f"{peer.tokens:,}")
        assert values["hours active"][0] == f' data-v="{peer.active_s:.12g}"'


def test_curves_show_what_was_measured(rich: SwarmReport) -> None:
    found = {line.name: line.points for line in lead(rich).lines}
    assert found["greedy"] == tuple((score.at_s, score.greedy) for score in rich.surviving_evaluations)
    assert found["sampled"] == tuple((score.at_s, score.sampled) for score in rich.surviving_evaluations)
    assert [y for _, y in found["reward of a step"]] == [step.reward for step in rich.steps]
    told = {plot.key: plot for plot in plots(rich, costs_of(rich))}
    shares = {str(lag): pytest.approx(number / rich.trained) for lag, number in rich.lags.items()}
    assert {bar.label: bar.value for bar in told["lags"].bars} == shares
    mean, largest = told["lag"].lines
    assert max(y for _, y in largest.points) == max(rich.lags)
    assert all(low <= high for (_, low), (_, high) in zip(mean.points, largest.points, strict=True))
    assert told["versions"].lines[0].points[-1][1] == rich.versions[-1].version.version


def test_rewards_that_are_no_shares_have_a_plot_of_their_own(rich: SwarmReport) -> None:
    steps = tuple(replace(step, reward=step.reward * 10 - 3) for step in rich.steps)
    other = replace(rich, steps=steps)
    assert [line.name for line in lead(other).lines] == ["greedy", "sampled"]
    assert "reward" in [plot.key for plot in plots(other, costs_of(other))]
    assert "Mean training reward" in as_html(other)


def test_figures_that_are_no_numbers_are_not_drawn(rich: SwarmReport) -> None:
    values = (float("nan"), float("inf"), -float("inf"), 0.5)
    steps = tuple(
        replace(step, reward=values[at % 4], metrics={"entropy": values[at % 4], "mismatch_kl": "much"})
        for at, step in enumerate(rich.steps)
    )
    page = as_html(replace(rich, steps=steps))
    assert "nan" not in page.lower().replace("finance", "")
    assert not re.search(r'="[^"]*\binf\b', page)


def test_a_volunteers_page(tmp_path: Path) -> None:
    page = as_html(own(tmp_path))
    for told in ("Work of my node", "39", "1.00 USD", "The newest rejected records", "because of stale", BETA):
        assert told in page, told
    assert 'id="peer-table"' not in page


# Nothing at all, and very much


def test_a_ledger_in_which_nothing_happened(tmp_path: Path) -> None:
    story = open_story(tmp_path / "ledger.sqlite")
    page = as_html(swarm_report(story.ledger.path, with_history=True))
    assert "No training step and no evaluation has ended yet." in page
    assert "No peer has joined yet." in page


def test_a_node_that_was_in_no_swarm(tmp_path: Path) -> None:
    books = Receipts(tmp_path / "receipts.sqlite")
    assert "This node has not been in a swarm yet." in as_html(own_report(books, peer=ALPHA, with_history=True))


def test_thousands_of_peers_are_a_page_that_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = crowd(tmp_path / "ledger.sqlite", 3000, blamed=150)
    monkeypatch.setattr(peer_table, "PEERS_LISTED", 400)
    page = as_html(report)
    assert page.count('<section class="peer"') == PEERS_TOLD
    assert len(page) < 12_000_000
    listed = 400 + 100  # half of the blamed peers have a page, and they come last
    assert page.count('<th scope="row" data-v=') == listed
    assert f"{3000 - listed:,} others" in page
    assert f"{3000 - PEERS_TOLD:,} have none." in page


def test_hundreds_of_thousands_of_steps_are_curves_of_few_points(rich: SwarmReport) -> None:
    first = rich.steps[0]
    steps = tuple(replace(first, step=number, at_s=number / 10) for number in range(1, 200_001))
    versions = tuple(
        replace(rich.versions[0], version=PolicyVersion(1, number), at_s=number / 10) for number in range(20_000)
    )
    scores = tuple(
        replace(rich.evaluations[0], version=PolicyVersion(1, number), at_s=float(number)) for number in range(20_000)
    )
    long = replace(
        rich, steps=steps, versions=versions, evaluations=scores, ended_ms=rich.started_ms + 20_000_000, alarms=()
    )
    found = [lead(long), *plots(long, costs_of(long))]
    assert all(len(line.points) <= CURVE_POINTS + 1 for plot in found for line in plot.lines)
    assert len(as_html(long)) < len(as_html(rich)) + 800_000


def test_restless_peers_plans_and_learners_are_a_page_that_opens(tmp_path: Path) -> None:
    """Peers that come and go, plans that change all the time with a reason for every peer, and a learner that dies
    often.
    """
    story = open_story(tmp_path / "ledger.sqlite")
    peers = [key(number).peer_id for number in range(10, 40)]
    with story.ledger.transaction() as db:
        for peer in peers:
            row = (peer, "comes and goes", "rollout", "fake", "", 0, "USD", START_MS, START_MS + 10**7, 0.0)
            db.execute(f"INSERT INTO peers VALUES ({', '.join('?' * len(row))})", row)
            presences = [(peer, START_MS + 5000 * number, START_MS + 5000 * number + 2000) for number in range(2000)]
            db.executemany("INSERT INTO presence (peer, began_ms, ended_ms) VALUES (?, ?, ?)", presences)
        restarts = [(number, 0, START_MS + 5000 * number) for number in range(2, 2000)]
        db.executemany("INSERT INTO incarnations VALUES (?, ?, ?)", restarts)
    for number in range(200):
        story.now_s = 50.0 * number
        story.plan(*peers[number % 2 :: 2], micros=1, reasons=("on: " + "because " * 200,) * 200)
    page = as_html(swarm_report(story.ledger.path, with_history=True))
    assert len(page) < 30 * 40_000 + 800_000
    assert "and 188 more" in page
    assert page.count("restart, step 0") < 60


def test_the_same_report_gives_the_same_page(rich: SwarmReport, page: str) -> None:
    assert as_html(rich) == page


# Things that a page may not do


def test_only_our_style_and_script_may_take_effect(page: str) -> None:
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.replace("&#x27;", "'").split(";"))
    assert rules["default-src"] == "'none'"
    assert set(rules) == {"default-src", "style-src", "script-src", "base-uri", "form-action"}
    for name, rule in (("style", "style-src"), ("script", "script-src")):
        (content,) = re.findall(rf"<{name}>(.*?)</{name}>", page, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert page.index("Content-Security-Policy") < page.index("<style>")


def test_the_page_names_nothing_outside_of_itself(page: str) -> None:
    assert OUTSIDE.findall(re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)) == []
    found = read(page)
    for name, attributes in found.elements:
        assert name not in {"img", "link", "iframe", "object", "embed", "base", "form", "image", "use"}, name
        for named, value in attributes.items():
            assert not named.startswith("on"), named
            assert named not in {"src", "style", "action", "srcset", "xlink:href"}, named
            assert named != "href" or (value or "").startswith("#"), value


def forms(page: str) -> Counter[tuple[str, tuple[str, ...]]]:
    """The elements of a page, with the names of their attributes."""
    return Counter((name, tuple(attributes)) for name, attributes in read(page).elements)


@pytest.mark.parametrize("name", NAMES)
def test_nobodys_name_and_nobodys_words_change_the_page(tmp_path: Path, name: str) -> None:
    plain = rich_report(tmp_path / "plain.sqlite", name="plain", detail="plain")
    hostile = rich_report(tmp_path / "hostile.sqlite", name=name, detail=name)
    page = as_html(hostile)
    assert forms(page) == forms(as_html(plain))
    assert not any(character in page for character in "\u202e\u2066\u200b\x1b\x00")


@settings(max_examples=examples(25))
@given(st.text(min_size=1))
def test_no_name_at_all_changes_a_volunteers_page(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    directory = tmp_path_factory.mktemp("own")
    report = own(directory)
    hostile = replace(report, peer=replace(report.peer, name=name, engine=name, machine=name))
    said = tuple(replace(one, detail=name) for one in report.refused)
    assert forms(as_html(replace(hostile, refused=said))) == forms(as_html(report))


def test_what_is_hidden_in_what_was_found_is_written_out(tmp_path: Path) -> None:
    page = as_html(rich_report(tmp_path / "ledger.sqlite", detail="a\u202eb"))
    assert visible("a\u202eb") == "a\\u202eb"
    assert "a\\u202eb" in page


def test_ids_are_there_once_and_all_that_names_one_finds_it(page: str) -> None:
    elements = [attributes for _, attributes in read(page).elements]
    ids = Counter(attributes["id"] for attributes in elements if "id" in attributes)
    assert [name for name, number in ids.items() if number > 1] == []
    named = [attributes.get(key) for attributes in elements for key in ("aria-labelledby", "aria-describedby")]
    named += [(attributes["href"] or "")[1:] for attributes in elements if "href" in attributes]
    assert [name for name in named if name is not None and name not in ids] == []


def test_every_drawing_has_a_title_a_description_and_a_table(page: str) -> None:
    figures = re.findall(r"<figure.*?</figure>", page, flags=re.DOTALL)
    assert len(figures) > 8
    for figure in figures:
        drawings = re.findall(r'<svg[^>]*role="img".*?</svg>', figure, flags=re.DOTALL)
        assert drawings
        assert all(re.search(r"<title[^>]*>[^<]+</title><desc[^>]*>[^<]+</desc>", drawing) for drawing in drawings)
        assert re.search(r"<details.*<table>.*<tbody>", figure, flags=re.DOTALL)


# The command


def test_the_command_writes_it_and_prints_the_report_as_ever(tmp_path: Path) -> None:
    state = tmp_path / "learner"
    state.mkdir()
    demo_run(state / "ledger.sqlite", steps=3)
    (state / "learner.key").touch()
    path = tmp_path / "run.html"
    plain = CliRunner().invoke(app, ["report", str(state)])
    done = CliRunner().invoke(app, ["report", str(state), "--html", str(path)])
    assert (done.exit_code, done.stdout, done.stderr) == (0, plain.output, f"Wrote {path}\n")
    drawn = tmp_path / "run.png"
    assert CliRunner().invoke(app, ["report", str(state), "--picture", str(drawn)]).stderr == f"Wrote {drawn}\n"
    assert path.read_text().startswith("<!DOCTYPE html>")
    assert [entry.name for entry in tmp_path.iterdir() if "partial" in entry.name] == []


def test_the_page_is_written_whole_or_not_at_all(rich: SwarmReport, tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    path.write_text("what was there")
    with pytest.raises(OSError, match="directory"):
        write_html(rich, tmp_path / "nowhere" / "run.html")
    assert path.read_text() == "what was there"
    write_html(rich, path)
    assert path.read_text(encoding="utf-8") == as_html(rich)


def test_a_peer_whose_id_is_no_peer_id_is_still_one_row(tmp_path: Path) -> None:
    story = open_story(tmp_path / "ledger.sqlite")
    story.join(peer_row(PeerId('"><script>x</script>'), "odd"))
    page = as_html(swarm_report(story.ledger.path, with_history=True))
    assert page.count("<script") == 1
