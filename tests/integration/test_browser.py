"""The page in a real browser, without a screen: read by axe, sorted by keyboard, as wide as a desk and as a phone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect

from node.reports import SwarmReport, own_report, write_html
from node.reports.text.peer_columns import sections
from node.state.receipts import Receipts
from protocol.accounting.claims import Price
from protocol.core.ids import short
from protocol.work import Rule
from tests.node.state.test_receipts import receipt
from tests.support.ledgers import ALPHA, BETA, START_MS
from tests.support.page_stories import HOSTILE, NAMES, TAKEN, banned_report, rich_report

DESK, TABLET, PHONE = (1280, 900), (768, 1024), (390, 844)
SIZES = {"desk": DESK, "tablet": TABLET, "phone": PHONE}
SCHEMES = ("light", "dark")

expect.set_options(timeout=120_000)  # milliseconds after which an expected change in the browser counts as a failure


@dataclass
class Reading:
    """An open page, and the messages and requests that it has made."""

    page: Page
    address: str
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def on_console(self, message: ConsoleMessage) -> None:
        self.said.append(message.text)

    def on_request(self, request: Request) -> None:
        self.asked.append(request.url)

    def go(self, fragment: str = "") -> None:
        self.page.goto(self.address + fragment)

    def shows_peer(self, name: str = "") -> None:
        """Wait until only the part of this peer is shown; a browser handles a new address a moment later."""
        expect(self.page.locator("#overview")).to_be_hidden()
        expect(self.page.locator("section.peer:visible")).to_have_count(1)
        expect(self.page.locator("section.peer:visible h2")).to_contain_text(name)

    def shows_overview(self) -> None:
        """Wait until no peer's part is shown."""
        expect(self.page.locator("#overview")).to_be_visible()
        expect(self.page.locator("section.peer:visible")).to_have_count(0)


Open = Callable[..., Reading]


@pytest.fixture
def read(browser: Browser) -> Iterator[Open]:
    """Open files, and check at the end that nothing but the file was requested, and that there was no error."""
    contexts, readings = [], []

    def opened(path: Path, *, size: tuple[int, int] = DESK, scheme: str = "light", script: bool = True) -> Reading:
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme=scheme,  # type: ignore[arg-type]
            java_script_enabled=script,
            reduced_motion="reduce",
        )
        contexts.append(context)
        reading = Reading(page=context.new_page(), address=path.as_uri())
        readings.append(reading)
        reading.page.on("console", reading.on_console)
        reading.page.on("pageerror", lambda error: reading.said.append(str(error)))
        reading.page.on("dialog", lambda dialog: reading.said.append(dialog.message))
        reading.page.on("request", reading.on_request)
        reading.go()
        return reading

    yield opened
    for reading in readings:
        assert {url.partition("#")[0] for url in reading.asked} == {reading.address}
        assert reading.said == []
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> SwarmReport:
    return rich_report(tmp_path_factory.mktemp("run") / "ledger.sqlite", detail=NAMES[3])


@pytest.fixture(scope="module")
def run(report: SwarmReport, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "run.html"
    write_html(report, path)
    return path


@pytest.fixture(scope="module")
def banned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with audits, in which a peer was banned."""
    path = tmp_path_factory.mktemp("banned") / "run.html"
    write_html(banned_report(path.with_name("ledger.sqlite")), path)
    return path


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("own")
    books = Receipts(directory / "receipts.sqlite")
    presence = books.session_began(Price(micros_per_hour=1_000_000), START_MS)
    books.session_lasts(presence, START_MS + 3_600_000, bytes_up=1, bytes_down=2, energy=TAKEN)
    for number in range(1, 40):
        books.add(receipt(START_MS // 1000 + 60 * number, Rule.ADMITTED, Rule.STALE, tokens=7), b"raw", engine_s=1.0)
    write_html(own_report(books, peer=ALPHA, name=NAMES[0], with_history=True, per_kwh=0.3), directory / "own.html")
    return directory / "own.html"


# Accessibility


def findings(page: Page) -> list[str]:
    """Return the findings of axe, of any severity."""
    found = Axe().run(page).response["violations"]
    return [f"{one['impact']}: {one['id']}: {node['html']}" for one in found for node in one["nodes"]]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("size", ["desk", "phone", pytest.param("tablet", marks=pytest.mark.slow)])
def test_axe_finds_nothing(read: Open, run: Path, banned: Path, own: Path, size: str, scheme: str) -> None:
    for path in (run, banned):
        reading = read(path, size=SIZES[size], scheme=scheme)
        assert findings(reading.page) == []
        reading.go(f"#peer={HOSTILE}")
        reading.shows_peer()
        assert findings(reading.page) == []
    assert findings(read(own, size=SIZES[size], scheme=scheme).page) == []


@pytest.mark.slow
@pytest.mark.parametrize("size", ["desk", "phone"])
def test_axe_finds_nothing_in_the_numbers_of_plots(read: Open, run: Path, size: str) -> None:
    page = read(run, size=SIZES[size]).page
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert findings(page) == []


def test_axe_finds_what_is_wrong(read: Open, run: Path) -> None:
    """Check that axe works here: it finds faint text, and a drawing without a name."""
    page = read(run).page
    page.evaluate("document.querySelector('h1').style.color = '#ddd'")
    page.evaluate("document.querySelectorAll('svg[role=img]').forEach((one) => one.removeAttribute('aria-labelledby'))")
    page.evaluate("document.querySelectorAll('svg title').forEach((one) => one.remove())")
    found = " ".join(findings(page))
    assert "color-contrast" in found
    assert "svg-img-alt" in found


@pytest.mark.parametrize("width", [320, 390, 768, 1280, 1920])
def test_the_page_is_never_wider_than_the_screen(read: Open, run: Path, banned: Path, own: Path, width: int) -> None:
    wide = "document.documentElement.scrollWidth"
    for path in (run, banned, own):
        reading = read(path, size=(width, 800))
        reading.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert reading.page.evaluate(wide) == width
        if path is not own:
            reading.go(f"#peer={HOSTILE}")
            reading.shows_peer()
            assert reading.page.evaluate(wide) == width


BROKEN_WORDS = """() => [...document.querySelectorAll("section.peer:not([hidden]) .tiles b")].flatMap(
  (figure) => [...figure.textContent.matchAll(/\\S+/g)].filter((word) => {
    const range = document.createRange();
    range.setStart(figure.firstChild, word.index);
    range.setEnd(figure.firstChild, word.index + word[0].length);
    return range.getClientRects().length > 1;
  }).map((word) => word[0]))"""
"""Script that returns the words of the large numbers which break into a second line."""


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_no_word_of_a_figure_in_large_is_broken_and_what_follows_stands_apart(
    read: Open, banned: Path, width: int
) -> None:
    reading = read(banned, size=(width, 900))
    reading.go(f"#peer={HOSTILE}")
    reading.shows_peer()
    page = reading.page
    assert "1.3 million" in page.locator("section.peer:visible .tiles.small").first.inner_text()
    assert page.evaluate(BROKEN_WORDS) == []
    cards = page.locator("section.peer:visible .tiles.small").first
    said = page.locator("section.peer:visible .tiles.small + p").first
    above, below = cards.bounding_box(), said.bounding_box()
    assert above is not None
    assert below is not None
    assert below["y"] >= above["y"] + above["height"] + 8


def test_light_and_dark_differ(read: Open, run: Path) -> None:
    of = "getComputedStyle(document.body).backgroundColor"
    backs = {scheme: read(run, scheme=scheme).page.evaluate(of) for scheme in SCHEMES}
    assert backs["light"] != backs["dark"]


@pytest.mark.parametrize(("size", "shown", "hidden"), [(DESK, "wide", "narrow"), (PHONE, "narrow", "wide")])
def test_the_drawing_that_fits_is_shown(read: Open, run: Path, size: tuple[int, int], shown: str, hidden: str) -> None:
    page = read(run, size=size).page
    assert page.locator(f"#learned svg.{shown}").is_visible()
    assert not page.locator(f"#learned svg.{hidden}").is_visible()


def test_numbers_of_a_plot_open_by_keyboard(read: Open, run: Path) -> None:
    page = read(run).page
    summary = page.locator("#learned summary")
    table = page.locator("#learned details table").first
    assert not table.is_visible()
    summary.focus()
    page.keyboard.press("Enter")
    expect(table).to_be_visible()
    assert table.locator("thead th").all_inner_texts()[:2] == ["time since the start (s)", "reward of a step (0 to 1)"]


def test_values_below_the_pointer_are_those_of_the_table(read: Open, run: Path, report: SwarmReport) -> None:
    page = read(run).page
    box = page.locator("#learned .reading").last
    assert not box.is_visible()
    drawing = page.locator("#learned svg.wide")
    edges = drawing.bounding_box()
    assert edges is not None
    drawing.hover(position={"x": edges["width"] * 0.995 - 14, "y": edges["height"] / 2})
    last = report.surviving_evaluations[-1]
    expect(box).to_be_visible()
    assert [line for line in box.locator("p").all_inner_texts() if line.startswith(("greedy", "sampled"))] == [
        f"greedy: {last.greedy:.3g}",
        f"sampled: {last.sampled:.3g}",
    ]
    drawing.hover(position={"x": 2, "y": 2})
    expect(box).to_be_hidden()  # there is nothing left of the axis


def test_a_screen_reader_is_told_what_a_plot_shows(read: Open, run: Path) -> None:
    drawing = read(run).page.get_by_role("img", name="Lag of trained rollouts", exact=True)
    assert drawing.count() == 1
    described = drawing.get_attribute("aria-describedby") or ""
    assert "steps on average" in (drawing.locator(f"desc#{described}").text_content() or "")


# The table of peers


def order(page: Page) -> list[str]:
    """Return the ends of the peers' ids, in the order of the table."""
    return [text.split()[-1] for text in page.locator("#peer-table tbody th").all_inner_texts()]


def test_every_column_sorts_by_what_it_means(read: Open, run: Path, report: SwarmReport) -> None:
    page = read(run).page
    buttons = page.locator("#peer-table thead button")
    titles = [text.strip() for text in buttons.all_text_contents()]
    columns = {column.title: column for part in sections(report) for column in part.columns}
    assert set(titles) == {"peer", "engine", *columns}
    for place, title in enumerate(titles):
        column = columns.get(title)
        if column is None or column.left:
            continue
        values = {short(peer.peer): column.number(peer) for peer in report.peers}
        known = sum(value is not None for value in values.values())
        heading = page.locator("#peer-table thead tr.columns th").nth(place)
        for way, reverse in (("descending", True), ("ascending", False)):
            buttons.nth(place).click()
            assert heading.get_attribute("aria-sort") == way
            found = [values[peer] for peer in order(page)]
            numbers = [value for value in found if value is not None]
            assert numbers == sorted(numbers, reverse=reverse), title
            assert found[known:] == [None] * (len(found) - known), "unknown values must come last"
    assert page.locator("#peer-table [aria-sort=ascending], #peer-table [aria-sort=descending]").count() == 1


def test_sorting_by_keyboard_is_said_aloud(read: Open, run: Path) -> None:
    page = read(run).page
    before = order(page)
    page.get_by_role("button", name="peer", exact=True).focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "rollouts admitted"
    page.keyboard.press("Enter")
    assert page.get_by_role("status").inner_text() == "Sorted by rollouts admitted, descending."
    assert order(page)[0] == short(ALPHA)
    page.keyboard.press("Space")
    assert page.get_by_role("status").inner_text() == "Sorted by rollouts admitted, ascending."
    assert order(page) != before
    assert page.evaluate("document.activeElement.textContent") == "rollouts admitted", (
        "the button must keep the focus, so that it can be pressed again"
    )
    page.get_by_role("button", name="peer", exact=True).press("Enter")
    names = [text.lower() for text in page.locator("#peer-table tbody th").all_inner_texts()]
    assert names == page.evaluate("(all) => [...all].sort((a, b) => a.localeCompare(b))", names)


def test_a_peer_is_found(read: Open, run: Path, report: SwarmReport) -> None:
    page = read(run).page
    box = page.get_by_label("Find a peer")
    for words in ("borealis", BETA, short(BETA).upper()):
        box.fill(words)
        assert [short(BETA)] == [
            text.split()[-1] for text in page.locator("#peer-table tbody th:visible").all_inner_texts()
        ]
        assert page.get_by_role("status").inner_text() == f"1 of {len(report.peers)} peers."
    box.fill("")
    assert page.locator("#peer-table tbody th:visible").count() == len(report.peers)


# The page of a peer


def test_a_link_leads_to_a_peer_and_back_returns(read: Open, run: Path) -> None:
    reading = read(run)
    page = reading.page
    link = page.locator(f'#peer-table a[href="#peer={BETA}"]')
    link.focus()
    page.keyboard.press("Enter")
    reading.shows_peer("borealis")
    expect(page.locator("section.peer h2:visible")).to_be_focused()  # a screen reader goes on there
    assert page.title().startswith("borealis")
    page.go_back()
    reading.shows_overview()
    expect(link).to_be_focused()
    assert page.evaluate("window.scrollY") > 0
    page.go_forward()
    reading.shows_peer("borealis")
    page.get_by_role("link", name="All peers").click()
    reading.shows_overview()
    expect(page.locator("#peers")).to_be_in_viewport()


def test_a_link_from_elsewhere_opens_a_peers_page(read: Open, run: Path) -> None:
    reading = read(run)
    reading.go(f"#peer={ALPHA}")
    reading.page.reload()
    reading.shows_peer("atlas")
    reading.page.get_by_role("navigation").get_by_role("link", name="Rejected").click()
    reading.shows_overview()
    expect(reading.page.locator("#rejected")).to_be_in_viewport()


def test_the_jump_to_the_content_stays_with_the_peer(read: Open, run: Path) -> None:
    reading = read(run)
    reading.go(f"#peer={ALPHA}")
    reading.page.reload()
    reading.shows_peer("atlas")
    skip = reading.page.get_by_role("link", name="Skip to the content")
    skip.focus()
    expect(skip).to_be_in_viewport()
    reading.page.keyboard.press("Enter")
    expect(reading.page.locator("#main")).to_be_focused()
    assert "#peer=" in reading.page.url
    reading.shows_peer("atlas")


UNKNOWN = "This report has no page about that peer."


@pytest.mark.parametrize(
    ("fragment", "said"), [("#peer=nobody", UNKNOWN), ("#peer=", UNKNOWN), ("#peer=%", ""), ("#%E0%A4%A", "")]
)
def test_a_peer_that_is_not_there_is_the_overview(read: Open, run: Path, fragment: str, said: str) -> None:
    reading = read(run)
    reading.go(f"#peer={ALPHA}")
    reading.shows_peer("atlas")
    reading.go(fragment)
    reading.shows_overview()
    expect(reading.page.get_by_role("status")).to_have_text(said)


def test_without_the_script_all_can_be_read(read: Open, run: Path, report: SwarmReport) -> None:
    reading = read(run, script=False)
    assert reading.page.locator("#overview").is_visible()
    assert reading.page.locator("section.peer:visible").count() == len(report.peers)
    reading.page.locator(f'#peer-table a[href="#peer={BETA}"]').click()
    expect(reading.page.locator(f'[id="peer={BETA}"] h2')).to_be_in_viewport()
    assert reading.page.locator("#peer-table button").count() == 0, "a button without a function is shown"


def test_on_paper_there_is_nothing_to_click(read: Open, run: Path) -> None:
    page = read(run).page
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible()
    assert not page.locator("details").first.is_visible()
    assert page.locator("#learned svg[role=img]:visible").count() == 1


# Strangers


@pytest.mark.parametrize("name", NAMES)
def test_what_a_stranger_calls_itself_is_shown_and_does_nothing(read: Open, tmp_path: Path, name: str) -> None:
    path = tmp_path / "run.html"
    write_html(rich_report(tmp_path / "ledger.sqlite", name=name, detail=name), path)
    reading = read(path)
    assert reading.page.locator("h1").is_visible()
    reading.go(f"#peer={HOSTILE}")
    reading.shows_peer()
    assert reading.page.locator("section.peer h2:visible bdi").inner_text()[:3] == " ".join(name.split())[:3]
    assert reading.page.locator("#peer-table tbody tr").count() == 4 + 1 + 12


def test_nothing_that_gets_in_could_run_or_ask(browser: Browser, run: Path) -> None:
    """Check the content security policy itself: an element that should not be there has no effect."""
    page = browser.new_page()
    asked: list[str] = []
    stopped: list[tuple[str, str | None]] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("requestfailed", lambda request: stopped.append((request.url, request.failure)))
    page.goto(run.as_uri())
    page.evaluate(
        """() => {
            window.violations = [];
            addEventListener("securitypolicyviolation", (event) => violations.push(event.effectiveDirective));
            const script = document.createElement("script");
            script.textContent = "window.ran = true";
            document.body.append(script);
            const div = document.createElement("div");
            div.innerHTML = '<img src="http://192.0.2.1/x.png" onerror="window.ran = true">'
                + '<p style="position: fixed">x</p><a id="x" href="javascript:window.ran = true">x</a>';
            document.body.append(div);
            div.querySelector("a").click();
            fetch("http://192.0.2.1/").catch(() => {});
        }"""
    )
    page.wait_for_function("violations.length >= 5")
    assert page.evaluate("window.ran") is None
    assert page.evaluate("getComputedStyle(document.querySelector('body > div p')).position") == "static"
    assert [(url, "csp") for url in asked if not url.startswith("file:")] == stopped, (
        "the browser did not stop every request"
    )
    page.close()
