"""The live page in a real browser, without a screen: with and without scripts, at two widths, in two colours, by
keyboard and for axe; with a thousand peers; while it is read; and over the end and the restart of its program.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect

from learner.ledger.ledger import Ledger
from node.commands.page.parts.peers import FIRST_ROWS
from node.config.live_limits import SECTIONS, with_limit
from node.config.node_config import NodeConfig
from node.rollout_role.resource_limits import RunningLimits
from node.runtime.events import EventLog
from node.state.keys import load_or_create_key
from node.state.owner_orders import LimitOrders, read_limit
from node.state.status_file import NodeStatus, StatusFile
from protocol.core.ids import PolicyVersion
from protocol.work import Rule
from tests.integration.test_live_page import FAST, begin, events_of
from tests.node.reports.html.test_document import own
from tests.support.ledgers import ALPHA, SWARM, Story
from tests.support.live_page import TOKEN, WAIT_S, LivePage, serving
from tests.support.page_stories import NAMES, crowd, rich_report
from tests.support.statements import GENESIS

DESK, PHONE = (1280, 900), (390, 844)
SIZES = {"desk": DESK, "phone": PHONE}
SCHEMES = ("light", "dark")

expect.set_options(timeout=120_000)  # milliseconds after which an expected change in the browser counts as a failure


@dataclass
class Look:
    """An open page, what it has said to its console, and other hosts that it has asked."""

    page: Page
    said: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def on_console(self, message: ConsoleMessage) -> None:
        self.said.append(message.text)


Open = Callable[..., Look]


@pytest.fixture
def look(browser: Browser) -> Iterator[Open]:
    """Open live pages, and check at the end that they said nothing, and asked nobody but their own program."""
    contexts: list[BrowserContext] = []
    looks: list[Look] = []

    def opened(
        served: LivePage,
        *,
        size: tuple[int, int] = DESK,
        scheme: str = "light",
        script: bool = True,
        token: str = TOKEN,
        path: str = "",
    ) -> Look:
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme=scheme,  # type: ignore[arg-type]
            java_script_enabled=script,
            reduced_motion="reduce",
        )
        contexts.append(context)
        found = Look(page=context.new_page())
        looks.append(found)
        found.page.on("console", found.on_console)
        found.page.on("pageerror", lambda error: found.said.append(str(error)))
        found.page.on("dialog", lambda dialog: found.said.append(dialog.message))
        found.page.on(
            "request", lambda asked: None if asked.url.startswith(served.url) else found.foreign.append(asked.url)
        )
        found.page.goto(served.url + path + (f"#token={token}" if token else ""))
        return found

    yield opened
    for one in looks:
        assert one.foreign == []
        assert one.said == []
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("learner")
    rich_report(found / "ledger.sqlite", detail=NAMES[3])
    (found / "invite").write_text("volery1" + "AbC9" * 60)
    log = begin(found)
    for name in NAMES:
        log.emit("trouble", text=f"something about {name}")
    log.close()
    return found


@pytest.fixture(scope="module")
def learner(state: Path) -> Iterator[LivePage]:
    with serving(state, before=FAST) as served:
        served.wait_for('id="live-peers"')
        yield served


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePage]:
    found = tmp_path_factory.mktemp("node")
    load_or_create_key(found / "node.key")
    own(found, name=NAMES[0], detail=NAMES[4])
    log = events_of(found)
    log.emit("joined", newest="1.4")
    log.emit("trouble", text=f"something about {NAMES[6]}")
    log.close()
    show_limits(found, NodeConfig())
    with serving(found, kind="rollout", before=FAST) as served:
        served.wait_for('id="files-title"')
        yield served


def show_limits(state: Path, config: NodeConfig) -> None:
    """Let this process be the node in `state`, with these limits."""
    limits = RunningLimits(config=NodeConfig(), setters=dict.fromkeys(SECTIONS, nothing), events=EventLog())
    limits.config = config
    board = StatusFile(state)
    board.show(NodeStatus(doing="at work", limits=limits.shown, changeable=limits.changeable))


async def nothing(config: NodeConfig) -> None: ...


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePage]:
    """A learner with a thousand peers."""
    found = tmp_path_factory.mktemp("many")
    crowd(found / "ledger.sqlite", 1000)
    begin(found).close()
    with serving(found, before=FAST) as served:
        served.wait_for('id="live-peers"')
        yield served


def ready(page: Page) -> Page:
    """Wait until the script has what the token allows, and follows the run."""
    expect(page.locator("html.may-change")).to_have_count(1)
    expect(page.locator("#connection")).to_be_hidden()
    return page


# For everybody


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("size", SIZES)
def test_axe_finds_nothing(look: Open, learner: LivePage, node: LivePage, size: str, scheme: str) -> None:
    for served in (learner, node):
        page = ready(look(served, size=SIZES[size], scheme=scheme).page)
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        expect(page.locator("details.numbers .scroll").first).to_be_visible()
        found = Axe().run(page).response["violations"]
        assert [f"{one['impact']}: {one['id']}: {n['html'][:200]}" for one in found for n in one["nodes"]] == []


def test_axe_finds_nothing_in_an_opened_peer_and_in_a_page_for_readers(look: Open, learner: LivePage) -> None:
    page = ready(look(learner).page)
    page.locator("#live-peers tbody a").first.click()
    expect(page.locator("#opened section.peer")).to_be_visible()
    readers = look(learner, token="").page
    alone = look(learner, token="", path=f"peer?id={ALPHA}").page
    for one in (page, readers, alone):
        found = Axe().run(one).response["violations"]
        assert [f"{v['impact']}: {v['id']}: {n['html'][:200]}" for v in found for n in v["nodes"]] == []


@pytest.mark.parametrize("width", [320, 390, 768, 1280, 1920])
def test_the_page_is_never_wider_than_the_screen(
    look: Open, learner: LivePage, node: LivePage, many: LivePage, width: int
) -> None:
    wide = "document.documentElement.scrollWidth"
    for served in (learner, node, many):
        page = ready(look(served, size=(width, 800)).page)
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        if served is not node:
            page.locator("#live-peers tbody a").first.click()
            expect(page.locator("#opened section.peer")).to_be_visible()
        assert page.evaluate(wide) == width


def test_light_and_dark_differ(look: Open, learner: LivePage) -> None:
    of = "getComputedStyle(document.body).backgroundColor"
    backs = {scheme: look(learner, scheme=scheme).page.evaluate(of) for scheme in SCHEMES}
    assert backs["light"] != backs["dark"]


def test_without_a_script_all_is_there_and_the_page_loads_itself_again(look: Open, tmp_path: Path) -> None:
    rich_report(tmp_path / "ledger.sqlite")
    log = begin(tmp_path)
    quick = "import node.commands.page.document as d; d.RELOAD_S = 1"
    with serving(tmp_path, before=f"{FAST}\n{quick}") as served:
        served.wait_for('id="live-peers"')
        page = look(served, script=False, token="").page
        for part in ("head", "learned", "figures", "peers", "plots", "versions", "samples", "orders"):
            expect(page.locator(f"#{part}")).to_be_visible()
        expect(page.locator("#orders .locked")).to_be_visible()
        expect(page.locator("form.order").first).to_be_hidden()
        assert page.locator("#live-peers tbody tr").count() == 16
        log.emit("step", step=4, buffered=4, reward=0.5)
        expect(page.locator("#head")).to_contain_text("Step 4")
        page.goto(f"{served.url}peer?id={ALPHA}")
        expect(page.locator("section.peer h2")).to_contain_text("atlas")
        page.locator("nav a").click()
        expect(page.locator("#peers")).to_be_visible()
        page.locator("#learned summary").click()
        page.locator("#learned details a").click()
        expect(page.locator("table")).to_be_visible()


def test_from_elsewhere_the_address_with_the_token_opens_the_page(look: Open, state: Path) -> None:
    with serving(state, before=FAST, is_local=False) as served:
        served.wait_for("live-peers", "/content", Authorization=f"Bearer {TOKEN}")
        page = ready(look(served).page)
        expect(page.locator("#live-peers")).to_be_visible()
        assert TOKEN not in page.url, "it is not left in the address"
        page.reload()
        expect(ready(page).locator("#live-peers")).to_be_visible()
        stranger = look(served, token="wrong-token")
        expect(stranger.page.locator("#connection")).to_contain_text("it ends with a token")
        expect(stranger.page.locator("#live-peers")).to_have_count(0)
        stranger.said.clear()  # the browser logs that it was refused


def test_a_proxy_may_show_the_page_below_a_path(look: Open, learner: LivePage) -> None:
    page = ready(look(learner).page)
    absolute = "[...document.querySelectorAll('[href],[src],[action]')].map((one) => one.getAttribute('href') || \
        one.getAttribute('src') || one.getAttribute('action')).filter((one) => /^(\\/|[a-z]+:)/.test(one))"
    assert page.evaluate(absolute) == []


# By keyboard


def test_by_keyboard_one_reaches_the_content_a_peer_and_its_place_again(look: Open, learner: LivePage) -> None:
    page = ready(look(learner).page)
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    link = page.locator("#live-peers tbody a").nth(1)
    name = link.inner_text()
    link.focus()
    page.keyboard.press("Enter")
    opened = page.locator("#opened")
    expect(opened).to_be_focused()
    expect(opened.locator("h2")).to_contain_text(name.split()[0])
    expect(opened).to_be_in_viewport()
    top = "document.querySelector('body > nav').getBoundingClientRect().bottom"
    assert opened.evaluate("(one) => one.getBoundingClientRect().top") >= page.evaluate(top) - 1, "nothing covers it"
    opened.get_by_role("button", name="Close").focus()
    page.keyboard.press("Enter")
    expect(opened).to_have_count(0)
    expect(page.locator("#live-peers tbody a").nth(1)).to_be_focused()


def test_peers_that_an_opened_peer_names_open_in_its_place(look: Open, learner: LivePage) -> None:
    page = ready(look(learner).page)
    page.locator("#live-peers tbody a", has_text="atlas").click()
    other = page.locator('#opened a[href^="#peer="]').first
    name = other.inner_text().split()[0]
    other.click()
    expect(page.locator("#opened h2")).to_contain_text(name)
    expect(page.locator("#opened h2")).not_to_contain_text("atlas")


def test_numbers_of_a_plot_open_by_keyboard(look: Open, learner: LivePage) -> None:
    page = ready(look(learner).page)
    page.locator("#learned summary").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#learned details table")).to_be_visible()


# A thousand peers


def shown(page: Page) -> list[str]:
    return page.locator("#live-peers tbody tr[data-peer] th bdi").all_inner_texts()


def test_of_a_thousand_peers_a_window_of_rows_is_there(look: Open, many: LivePage) -> None:
    page = ready(look(many).page)
    table = page.locator("#live-peers")
    expect(table).to_have_attribute("aria-rowcount", "1001")
    assert FIRST_ROWS <= len(shown(page)) <= 60
    scroll = page.locator(".window > .scroll")
    for place in (0.5, 1.0, 0.25):
        scroll.evaluate(f"(one) => {{ one.scrollTop = {place} * (one.scrollHeight - one.clientHeight); }}")
        row = page.locator(f'#live-peers tr[aria-rowindex="{2 + round(place * 985)}"]')
        expect(row).to_be_visible()
        assert len(shown(page)) <= 60
    assert scroll.evaluate("(one) => one.scrollHeight") > 1000 * 33
    heights = "new Set([...document.querySelectorAll('#live-peers tr[data-peer]')].map((row) => row.offsetHeight)).size"
    assert page.evaluate(heights) == 1, "the window's place is counted in rows of one height"


def test_a_thousand_peers_are_searched_and_sorted(look: Open, many: LivePage) -> None:
    page = ready(look(many).page)
    search = page.get_by_label("Find a peer by name, id or engine")
    search.fill("peer 99")
    expect(page.locator("#live-peers tbody tr[data-peer]")).to_have_count(11)
    expect(page.locator("#said")).to_have_text("11 peers.")
    heading = page.get_by_role("button", name="peer", exact=True)
    for sort, first in (("descending", "peer 999"), ("ascending", "peer 99")):
        heading.click()
        expect(page.locator('#live-peers th[data-key="peer"]')).to_have_attribute("aria-sort", sort)
        expect(page.locator("#live-peers tbody tr[data-peer] th bdi").first).to_have_text(first)
    search.fill("nobody at all")
    expect(page.locator("#live-peers tbody tr[data-peer]")).to_have_count(0)
    search.fill("")
    expect(page.locator("#live-peers")).to_have_attribute("aria-rowcount", "1001")
    assert shown(page)[0] == "peer 0", "the order stays"


# While it is read


@dataclass
class Run:
    """A learner of this test's own, whose report and log change."""

    state: Path
    served: LivePage

    def tell(self, event: str, **fields: object) -> None:
        log = events_of(self.state)
        log.emit(event, **fields)  # type: ignore[arg-type]
        log.close()

    def step(self, number: int) -> None:
        self.tell("step", step=number, buffered=4, reward=0.5)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    rich_report(tmp_path / "ledger.sqlite")
    begin(tmp_path).close()
    with serving(tmp_path, before=FAST) as served:
        served.wait_for('id="live-peers"')
        yield Run(tmp_path, served)


@pytest.fixture
def configured(tmp_path: Path) -> Iterator[Run]:
    """The same of a learner with a swarm.toml, whose settings may change."""
    (tmp_path / "swarm.toml").write_text(
        '[swarm]\nname = "a swarm"\n[model]\ndirectory = "model"\n[task]\nspec = "reverse"\n[learn]\nsteps = 100\n',
        encoding="utf-8",
    )
    rich_report(tmp_path / "ledger.sqlite")
    begin(tmp_path).close()
    with serving(tmp_path, before=FAST, config=str(tmp_path / "swarm.toml")) as served:
        served.wait_for('value="staleness"')
        yield Run(tmp_path, served)


def test_changes_reach_the_screen(look: Open, run: Run) -> None:
    page = ready(look(run.served).page)
    run.step(7)
    expect(page.locator("#head")).to_contain_text("Step 7")
    run.tell("alarm_raised", alarm="too_stale", step=7, text="the KL is too high")
    expect(page.locator(".badge")).to_have_text("ALARM")
    expect(page.locator("#notices li").first).to_contain_text("the KL is too high")
    assert page.title().startswith("ALARM: ")


def test_what_is_selected_stays_until_the_selection_ends(look: Open, run: Run) -> None:
    page = ready(look(run.served).page)
    page.evaluate("getSelection().selectAllChildren(document.querySelector('#notices li span'))")
    before = page.evaluate("getSelection().toString()")
    run.tell("trouble", text="news")
    run.step(8)
    expect(page.locator("#head")).to_contain_text("Step 8")  # what is not read goes on
    assert page.evaluate("getSelection().toString()") == before
    expect(page.locator("#notices li").first).not_to_contain_text("news")
    page.evaluate("getSelection().removeAllRanges()")
    expect(page.locator("#notices li").first).to_contain_text("news")


def test_what_is_opened_and_scrolled_stays(look: Open, run: Run) -> None:
    page = ready(look(run.served, size=PHONE).page)
    for number in range(9, 30):
        run.tell("trouble", text=f"notice {number}")
    expect(page.locator("#notices li").first).to_contain_text("notice 29")
    page.locator("#notices summary").click()
    table = page.locator("#versions .scroll")
    scrolled = table.evaluate("(one) => { one.scrollLeft = 40; return one.scrollLeft; }")
    assert scrolled > 0
    page.locator("#notices summary").focus()
    run.tell("trouble", text="more")
    expect(page.locator("#notices li").first).to_contain_text("more")
    assert page.locator("#notices details").evaluate("(one) => one.open")
    expect(page.locator("#notices summary")).to_be_focused()
    run.tell("heartbeat", peer=ALPHA, installed="1.30", pending=0, bytes_up=0, bytes_down=0)
    run.step(31)
    expect(page.locator("#head")).to_contain_text("Step 31")
    assert table.evaluate("(one) => one.scrollLeft") == scrolled


def test_what_is_typed_stays_and_a_form_is_not_replaced_under_the_hand(look: Open, run: Run) -> None:
    page = ready(look(run.served).page)
    field_ = page.locator("#orders input[name=reason]").first
    field_.fill("because")
    (run.state / "invite").write_text("volery1" + "B" * 80)
    expect(page.locator("#recipe")).to_contain_text("BBBB")  # the report was read again
    expect(field_).to_have_value("because")
    expect(field_).to_be_focused()


def test_an_opened_peer_a_search_and_asked_samples_stay(look: Open, run: Run) -> None:
    page = ready(look(run.served).page)
    page.get_by_label("Find a peer by name, id or engine").fill("atlas")
    expect(page.locator("#live-peers tbody tr[data-peer]")).to_have_count(1)
    page.locator("#live-peers tbody a").click()
    expect(page.locator("#opened h2")).to_contain_text("atlas")
    page.locator("#samples input[name=version]").fill("77")
    page.locator("#samples button").click()
    expect(page.locator("#said")).to_have_text("The samples are shown.")
    (run.state / "samples.sqlite-wal").write_bytes(b"x")
    (run.state / "invite").write_text("volery1" + "C" * 80)
    expect(page.locator("#recipe")).to_contain_text("CCCC")
    expect(page.locator("#opened h2")).to_contain_text("atlas")
    expect(page.locator("#live-peers tbody tr[data-peer]")).to_have_count(1)
    expect(page.locator("#samples input[name=version]")).to_have_value("77")


# Orders


def test_an_order_is_given_and_its_answer_stays_beside_it(look: Open, run: Run) -> None:
    one = look(run.served)
    page = ready(one.page)
    ban = page.locator('form[data-order="ban"]')
    ban.locator("input[name=peer]").fill("nobody here")
    ban.locator("button").click()
    expect(ban.locator("output")).to_contain_text("nobody here")
    one.said.clear()  # the browser logs the 422
    ban.locator("input[name=peer]").fill(ALPHA)
    ban.locator("button").click()
    expect(ban.locator("output")).to_contain_text("Banned: ")
    run.step(9)
    expect(page.locator("#head")).to_contain_text("Step 9")
    expect(page.locator('form[data-order="ban"] output')).to_contain_text("Banned: ")


def test_limits_are_changed_by_keyboard(look: Open, node: LivePage) -> None:
    state = node.log.parent
    orders = LimitOrders(state)
    one = look(node)
    page = ready(one.page)
    upload = page.get_by_role("spinbutton", name="Upload")
    expect(upload).to_have_value("")
    upload.focus()
    page.keyboard.type("0.01")
    page.keyboard.press("Enter")
    assert upload.evaluate("(one) => one.validity.rangeUnderflow"), "the browser says so, and asks nobody"
    upload.fill("12.5")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Change: Upload")).to_be_focused()
    page.keyboard.press("Enter")
    said = page.locator("form.limit", has=upload).locator("output")
    expect(said).to_contain_text("[network] upload_mbit = 12.5, within a second and until the node ends.")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    hours = page.get_by_role("textbox", name="Hours")
    hours.fill("19:00")
    page.keyboard.press("Enter")
    expect(page.locator("form.limit", has=hours).locator("output")).to_contain_text("is not a range of hours")
    one.said.clear()  # the browser logs the 422
    hours.fill("19:00-07:30")
    page.keyboard.press("Enter")
    expect(page.locator("form.limit", has=hours).locator("output")).to_contain_text("To keep that, write")
    assert [(order.key, order.value) for order in map(read_limit, orders.waiting())] == [
        ("upload_mbit", 12.5),
        ("hours", "19:00-07:30"),
    ]
    show_limits(state, with_limit(with_limit(NodeConfig(), "upload_mbit", 12.5), "hours", "19:00-07:30"))
    page.locator("h1").click()  # the form is left
    remark = "In force: 12.5 Mbit/s (until the node ends; at its start: none)"
    expect(page.locator("form.limit", has=upload)).to_contain_text(remark)
    expect(upload).to_have_value("12.5")
    upload.fill("")
    page.keyboard.press("Enter")
    expect(page.locator("form.limit", has=upload).locator("output")).to_contain_text("no [network] upload_mbit")
    last = read_limit(orders.waiting()[-1])
    assert (last.key, last.value) == ("upload_mbit", None)


def test_without_the_token_the_forms_are_closed_and_it_says_why(look: Open, learner: LivePage) -> None:
    page = look(learner, token="").page
    expect(page.locator("#orders .locked")).to_be_visible()
    expect(page.locator("form.order").first).to_be_hidden()


# The end, and the beginning again


def test_the_page_says_that_the_program_ended_and_comes_back(look: Open, tmp_path: Path) -> None:
    rich_report(tmp_path / "ledger.sqlite")
    begin(tmp_path).close()
    with ExitStack() as stack:
        served = stack.enter_context(serving(tmp_path, before=FAST))
        one = look(served)
        page, port = ready(one.page), served.port
        expect(page.locator("#live-peers")).to_be_visible()
        served.end_run()
        expect(page.locator("#connection")).to_contain_text("The program has ended.")
        expect(page.locator(".badge")).to_have_text("stopped")
        expect(page.locator("#live-peers")).to_be_visible()
        assert served.process.wait(WAIT_S) == 0
        again = stack.enter_context(serving(tmp_path, port=port, before=FAST, began=time.time()))
        expect(page.locator("#connection")).to_be_hidden()
        expect(page.locator(".badge")).to_have_text("starting")
        log = begin(tmp_path)
        log.emit("step", step=44, buffered=4, reward=0.5)
        expect(page.locator("#head")).to_contain_text("Step 44")
        assert again.process.poll() is None
        assert all("ERR_CONNECTION_REFUSED" in text or "ERR_INCOMPLETE" in text for text in one.said), one.said
        one.said.clear()  # the browser logs each try


def test_a_program_that_vanished_is_told_too(look: Open, tmp_path: Path) -> None:
    begin(tmp_path).close()
    with serving(tmp_path, before=FAST) as served:
        one = look(served)
        page = ready(one.page)
        served.process.kill()
        expect(page.locator("#connection")).to_contain_text("The program does not answer.")
        one.said.clear()


def test_too_many_watchers_are_told_so(look: Open, learner: LivePage) -> None:
    with ExitStack() as stack:
        for _ in range(64):
            stack.enter_context(learner.watch()).next()
        one = look(learner)
        expect(one.page.locator("#connection")).to_contain_text("64 browsers follow this page already.")
        expect(one.page.locator("#live-peers")).to_be_visible()
        one.said.clear()  # the browser logs the 503
    ready(one.page)


def test_receipts_are_downloaded_with_the_token_that_a_link_cannot_carry(look: Open, node: LivePage) -> None:
    with serving(node.log.parent, kind="rollout", before=FAST, is_local=False) as served:
        served.wait_for("files-title", "/content", Authorization=f"Bearer {TOKEN}")
        page = ready(look(served).page)
        (node.log.parent / "store").mkdir(exist_ok=True)
        (node.log.parent / "store" / "genesis").write_bytes(GENESIS)
        with page.expect_download() as got:
            page.get_by_role("link", name="Receipts", exact=True).last.click()
        assert got.value.suggested_filename == "receipts.jsonl"
        assert len(Path(got.value.path()).read_bytes().splitlines()) > 2


# What is kept, and what is not


def test_elements_stay_when_a_part_changes(look: Open, run: Run) -> None:
    """Chromium keeps something of each <thead> that was ever shown, so a day of new ones would fill it."""
    page = ready(look(run.served).page)
    page.evaluate(
        "document.querySelectorAll('#main thead, #main tfoot, #main svg').forEach((one) => { one.kept = 1; })"
    )
    count = "[...document.querySelectorAll('#main thead, #main tfoot, #main svg')].filter((one) => !one.kept).length"
    story = Story(ledger=Ledger(run.state / "ledger.sqlite", swarm=SWARM), now_s=600, leases=2 * 10**6)
    before = page.locator("#figures").inner_text()
    for _ in range(3):
        story.deliver(story.lease(ALPHA), ALPHA, *[Rule.ADMITTED] * 2, version=PolicyVersion(2, 20))
        story.now_s += 1
    story.ledger.close()
    expect(page.locator("#figures")).not_to_have_text(before)
    run.step(9)
    expect(page.locator("#head")).to_contain_text("Step 9")
    assert page.evaluate(count) == 0


def test_numbers_that_are_read_stay_and_others_are_asked_for_again(look: Open, run: Run) -> None:
    page = ready(look(run.served).page)
    details = page.locator("#learned details")
    details.locator("summary").click()
    expect(details.locator("table")).to_be_visible()
    (run.state / "invite").write_text("volery1" + "D" * 80)
    expect(page.locator("#recipe")).to_contain_text("DDDD")
    expect(details.locator("table")).to_be_visible()
    details.locator("summary").click()
    expect(details.locator("table")).to_be_hidden()
    details.locator("summary").click()
    expect(details.locator("table")).to_be_visible()


def test_a_button_says_what_it_does_next_though_it_has_the_focus(look: Open, configured: Run) -> None:
    page = ready(look(configured.served).page)
    form = page.locator("form", has=page.locator('input[value="publish"]'))
    expect(form.locator("button")).to_have_text("Hold back new versions")
    form.locator("button").click()
    expect(form.locator("output")).to_contain_text("new versions are held back")
    configured.tell("setting_changed", key="publish", value=0, by="the live page")
    expect(form.locator("button")).to_have_text("Publish versions again")
    expect(form.locator("button")).to_be_focused()
    expect(form.locator("output")).to_contain_text("new versions are held back")


def test_a_value_that_cannot_be_is_told_beside_it(look: Open, configured: Run) -> None:
    one = look(configured.served)
    page = ready(one.page)
    form = page.locator("form", has=page.locator('input[value="learning_rate"]'))
    form.locator("input[name=value]").fill("7")
    form.locator("button").click()
    expect(form.locator("output")).to_contain_text("at most 1")
    expect(form.locator("input[name=value]")).to_have_value("7")
    one.said.clear()  # the browser logs the 422


def test_a_changed_setting_shows_its_value_and_the_next_start_that_of_its_file(look: Open, configured: Run) -> None:
    page = ready(look(configured.served).page)
    form = page.locator("form", has=page.locator('input[value="staleness"]'))
    field_ = form.locator("input[name=value]")
    expect(field_).to_have_value("3")
    field_.fill("5")
    form.locator("button").click()
    expect(form.locator("output")).to_contain_text("S = 5")
    configured.tell("setting_changed", key="staleness", value=5, by="the live page")
    expect(page.locator("#notices li").first).to_contain_text("S = 5")
    configured.tell("setting_changed", key="staleness", value=4, by="another page")
    expect(page.locator("#notices li").first).to_contain_text("S = 4")
    expect(field_).to_have_value("4")


def test_an_order_that_reaches_nobody_says_so(look: Open, tmp_path: Path) -> None:
    rich_report(tmp_path / "ledger.sqlite")
    begin(tmp_path).close()
    with ExitStack() as stack:
        served = stack.enter_context(serving(tmp_path, before=FAST))
        one = look(served)
        page = ready(one.page)
        stop = page.locator('form[data-order="stop"]')
        expect(stop).to_be_visible()
        served.process.kill()
        expect(page.locator("#connection")).to_contain_text("The program does not answer.")
        stop.locator("button").click()
        expect(stop.locator("output")).to_have_text("The program does not answer. The order was not given.")
        stack.enter_context(serving(tmp_path, port=served.port, before=FAST))
        expect(page.locator("#connection")).to_be_hidden()
        expect(stop.locator("output")).to_have_count(0)
        assert all("ERR_" in text for text in one.said), one.said
        one.said.clear()  # the browser logs each try
