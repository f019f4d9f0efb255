"""The page server as a process of its own, asked over a socket: what it tells to whom, and how it begins and ends."""

from __future__ import annotations

import http.client
import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
import trio

from node.commands.page.app import HEADERS, MAX_QUERY_CHARS, MAX_WATCHERS
from node.commands.page.parts.peers import MOST_ROWS
from node.runtime.events import EventLog
from node.state.keys import load_or_create_key
from node.state.operator_orders import Change, OperatorDecisions, read_order
from node.state.order_files import MAX_ORDER_BYTES
from node.state.owner_orders import LimitOrders, read_limit
from node.web import address
from node.web.address import Listen, open_listener
from node.web.door import PageDoor
from node.web.terms import PageTerms
from tests.node.reports.html.test_document import own
from tests.support.ledgers import ALPHA
from tests.support.live_page import BEARER, SERVER, TOKEN, WAIT_S, LivePage, serving
from tests.support.page_stories import HOSTILE, NAMES, rich_report
from tests.support.statements import GENESIS

FAST = "import node.commands.page.feed as feed; feed.LOOK_S = 0.01; feed.LEAST_PAUSE_S = 0.2"
"""A server that looks for news more often than it does for people."""

READ = ("/content", "/numbers?plot=lag", "/peers", f"/peer?id={ALPHA}", "/samples", "/receipts.jsonl")
"""Everything that is read, but the document and the events."""


def events_of(state: Path) -> EventLog:
    return EventLog(state / "events.jsonl")


def begin(state: Path) -> EventLog:
    """Write what a learner's log has soon after its start."""
    log = events_of(state)
    log.emit("starting", doing="loading the model")
    log.emit("version_published", version="1.0")
    log.emit("peer_joined", peer=ALPHA, name="atlas", engine="fake", machine="SECRET-MACHINE")
    for step in (1, 2, 3):
        log.emit("step", step=step, buffered=4, reward=0.25 * step)
    log.emit("trouble", text="SECRET-NOTICE")
    return log


@pytest.fixture(scope="module")
def learner_state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    state = tmp_path_factory.mktemp("learner")
    rich_report(state / "ledger.sqlite")
    (state / "invite").write_text("volery1SECRETINVITE")
    begin(state).close()
    return state


@pytest.fixture(scope="module")
def page(learner_state: Path) -> Iterator[LivePage]:
    """The page of a learner, on this machine alone, whose report has been read."""
    with serving(learner_state, before=FAST) as served:
        served.wait_for('id="live-peers"')
        yield served


@pytest.fixture(scope="module")
def remote(learner_state: Path) -> Iterator[LivePage]:
    """The same for people elsewhere, with the token alone."""
    with serving(learner_state, before=FAST, is_local=False) as served:
        served.wait_for("live-peers", "/content", **BEARER)
        yield served


@pytest.fixture(scope="module")
def public(learner_state: Path) -> Iterator[LivePage]:
    """The same for everybody."""
    with serving(learner_state, before=FAST, is_local=False, public=True) as served:
        served.wait_for('id="live-peers"')
        yield served


@pytest.fixture(scope="module")
def node_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePage]:
    state = tmp_path_factory.mktemp("node")
    load_or_create_key(state / "node.key")
    own(state)
    (state / "store").mkdir()
    (state / "store" / "genesis").write_bytes(GENESIS)
    log = events_of(state)
    log.emit("joined", newest="1.4")
    log.emit("version_installed", version="1.4")
    log.close()
    with serving(state, kind="rollout", before=FAST) as served:
        served.wait_for('id="files-title"')
        yield served


def until(what: str, holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < ends, f"never: {what}"
        time.sleep(0.05)


# What is read


def test_the_document_is_whole_and_lets_nothing_else_take_effect(page: LivePage) -> None:
    answer = page.ask("/")
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/html")
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for part in ("head", "learned", "figures", "notices", "peers", "plots", "versions", "samples", "invite", "orders"):
        assert f'id="{part}"' in answer.text
    assert "Step 3" in answer.text
    assert NAMES[0] not in answer.text
    assert "Server" not in answer.headers


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/nowhere"), ("GET", "/orders"), ("POST", "/orders"), ("POST", "/events"), ("GET", "/peer?id=nobody"),
        ("HEAD", "/health"), ("GET", f"/?{'x' * 3000}"),
    ],
)  # fmt: skip
def test_every_answer_has_the_headers_once(page: LivePage, method: str, path: str) -> None:
    headers = page.ask(path, method=method).headers
    assert {name: headers.get_all(name) for name in HEADERS} == {name: [value] for name, value in HEADERS.items()}
    with page.watch() as watcher:
        assert all(watcher.answer.headers.get_all(name) == [value] for name, value in HEADERS.items())


def test_the_content_is_the_documents_and_tells_what_the_token_allows(page: LivePage) -> None:
    told = page.ask("/content").json
    assert told["may_change"] is False
    document = page.ask("/").text
    assert all(part in document for part in told["parts"] if 'id="peers"' not in part)
    assert page.ask("/content", **BEARER).json["may_change"] is True


def test_a_change_arrives(tmp_path: Path) -> None:
    log = begin(tmp_path)
    with serving(tmp_path) as page:
        page.wait_for("Step 3")
        with page.watch() as watcher:
            first = watcher.next()
            assert {part["id"] for part in first["parts"]} >= {"head", "notices", "versions"}
            log.emit("step", step=4, buffered=4, reward=0.9)
            told = watcher.until("Step 4", "head")
            assert told["revision"] > first["revision"]
            assert told["over"] is False
            assert {part["id"] for part in told["parts"]} == {"head"}, "what has not changed is not sent again"
        with page.watch(after=told["revision"]) as watcher:
            assert watcher.next()["parts"] == []
            log.emit("trouble", text="look at <b>this</b>")
            told = watcher.until("look at &lt;b&gt;this&lt;/b&gt;", "notices")
            log.emit("alarm_raised", alarm="too_stale", step=4, text="x")
            assert "ALARM" in watcher.until("ALARM", "head")["title"]


def test_numbers_of_a_plot(page: LivePage) -> None:
    answer = page.ask("/numbers?plot=lag")
    assert answer.status == 200
    assert "<table" in answer.text
    assert page.ask("/numbers?plot=nothing").status == page.ask("/numbers").status == 404


def test_rows_of_peers(page: LivePage) -> None:
    told = page.ask("/peers?count=5&by=admitted&way=up").json
    assert told["total"] == 16
    assert len(told["rows"]) == 5
    assert len(page.ask("/peers?first=14").json["rows"]) == 2
    assert page.ask("/peers?find=atlas").json["total"] == 1


@pytest.mark.parametrize(
    "question",
    ["first=-1", "first=99999999999999999999", "count=1000000", "count=x", "by=%00", "way=%F0", "find=" + "x" * 1900,
     "first=&count=", "first=1e3", "by=by&by=by", "%", "a=%ZZ"],
)  # fmt: skip
def test_any_question_gets_an_answer(page: LivePage, question: str) -> None:
    answer = page.ask(f"/peers?{question}")
    assert answer.status == 200
    assert len(answer.json["rows"]) <= MOST_ROWS
    assert page.ask(f"/samples?{question}").status == 200
    assert page.ask(f"/peer?{question}").status == 404
    assert page.ask(f"/numbers?{question}").status == 404


def test_the_page_of_a_peer(page: LivePage) -> None:
    answer = page.ask(f"/peer?id={HOSTILE}")
    assert answer.status == 200
    assert answer.text.startswith("<section")
    assert NAMES[0] not in answer.text
    assert page.ask("/peer?id=nobody").status == 404


def test_a_piece_that_a_person_opens_is_a_document(page: LivePage) -> None:
    for path, status in ((f"/peer?id={ALPHA}", 200), ("/samples", 200), ("/peer?id=nobody", 404)):
        answer = page.ask(path, Accept="text/html,*/*;q=0.8")
        assert (answer.status, answer.text[:15]) == (status, "<!DOCTYPE html>")
        assert "Content-Security-Policy" in answer.headers
        assert 'href="./"' in answer.text
        assert "data-revision" not in answer.text, "the script would put the whole page in its place"


def test_samples_that_are_not_there_are_told(page: LivePage) -> None:
    assert "holds no samples" in page.ask("/samples?version=7").text


def test_health_is_a_word(page: LivePage) -> None:
    answer = page.ask("/health")
    assert (answer.status, answer.text) == (200, "running\n")


def test_a_nodes_page_and_its_receipts(node_page: LivePage) -> None:
    document = node_page.ask("/").text
    for part in ("machine", "orders", "figures", "earnings", "files"):
        assert f'id="{part}"' in document
    answer = node_page.ask("/receipts.jsonl")
    assert "receipts.jsonl" in answer.headers["Content-Disposition"]
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert len(lines) > 2
    assert node_page.ask("/receipts.jsonl?proofs=1").status == 200
    assert node_page.ask("/peers").json == {"total": 0, "rows": []}
    assert node_page.ask("/samples").status == 404
    assert "<table" in node_page.ask("/numbers?plot=timeline").text


def test_receipts_that_cannot_be_written_say_why(page: LivePage) -> None:
    answer = page.ask("/receipts.jsonl")
    assert answer.status == 409
    assert len(answer.text) > 20


# Who may ask


@pytest.mark.parametrize("path", ["/", "/events", "/health", "/orders", "/no-such-page", *READ])
def test_another_name_site_or_origin_gets_nothing(page: LivePage, path: str) -> None:
    method = "POST" if path == "/orders" else "GET"
    own_host = f"127.0.0.1:{page.port}"
    for status, headers in (
        (421, {"Host": "evil.example"}),
        (421, {"Host": f"127.0.0.1.evil.example:{page.port}"}),
        (403, {"Origin": "http://evil.example"}),
        (403, {"Origin": "null"}),
        (403, {"Origin": f"http://localhost:{page.port}", "Host": own_host}),
        (403, {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}),
        (403, {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}),
    ):
        answer = page.ask(path, method=method, **headers, **BEARER)
        assert answer.status == status, headers
        assert len(answer.text) < 200
        assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize("path", ["/events", *READ])
def test_from_elsewhere_nothing_is_read_without_the_token(remote: LivePage, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": f"token={TOKEN}"}):
        answer = remote.ask(path, **headers)
        assert (answer.status, answer.text[:30]) == (401, "Open the page with the address")
    assert remote.ask(f"{path}{'&' if '?' in path else '?'}token={TOKEN}").status == 401


def test_from_elsewhere_the_document_is_a_frame_that_says_how_to_open_it(remote: LivePage) -> None:
    answer = remote.ask("/")
    assert answer.status == 200
    assert "it ends with a token" in answer.text
    assert "atlas" not in answer.text
    assert "a swarm" not in answer.text
    assert "atlas" in str(remote.ask("/content", **BEARER).json["parts"])
    with remote.watch(**BEARER) as watcher:
        assert watcher.next()["parts"]


def test_behind_a_proxy_the_token_is_needed_and_its_name_is_ours(learner_state: Path) -> None:
    with serving(learner_state, before=FAST, hosts=["Swarm.Example"]) as page:
        assert page.ask("/content").status == 401
        for host in ("swarm.example", "SWARM.EXAMPLE:443"):
            assert page.ask("/content", Host=host, **BEARER).status == 200
        told = page.ask("/orders", method="POST", body=b"{}", Origin="https://swarm.example", **BEARER)
        assert told.status == 422
        assert page.ask("/content", Host="other.example", **BEARER).status == 421


SECRETS = ("SECRET", "2 cores", 'engine="', "12D3KooWHOSTILE")


def test_a_public_page_shows_no_machine_address_invite_notice_or_sample(public: LivePage) -> None:
    document = public.ask("/").text
    with public.watch() as watcher:
        sent = json.dumps(watcher.next())
    rows = public.ask("/peers?count=100").text
    for told in (document, sent, rows, public.ask("/content").text):
        assert [secret for secret in SECRETS if secret in told] == []
    for part in ("invite", "notices", "samples", "orders", "reach", "plans"):
        assert f'id="{part}"' not in document
    assert "atlas" in rows
    assert public.ask("/peers?find=SECRET").json["total"] == 0
    for path in (f"/peer?id={ALPHA}", "/samples", "/receipts.jsonl"):
        assert public.ask(path).status == 401
        assert public.ask(path, **BEARER).status in (200, 409)
    assert "SECRET-NOTICE" in public.ask("/content", **BEARER).text, "the operator sees all"


# Orders


def order(page: LivePage, body: bytes | dict[str, object], **headers: str) -> tuple[int, str]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = page.ask("/orders", method="POST", body=raw, **headers)
    return answer.status, answer.text


def test_an_order_needs_the_token(page: LivePage, learner_state: Path) -> None:
    before = sorted(learner_state.rglob("*"))
    ban = {"order": "ban", "peer": ALPHA}
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": TOKEN}):
        status, _ = order(page, ban, **headers)
        assert status == 401
    assert page.ask("/orders", **BEARER).status == 405
    assert sorted(learner_state.rglob("*")) == before


def test_what_is_no_order_is_told_and_changes_nothing(page: LivePage, learner_state: Path) -> None:
    before = sorted(learner_state.rglob("*"))
    wrong: tuple[bytes | dict[str, object], ...] = (
        b"", b"{", b"\xff", b"[" * 9000, {}, {"order": "destroy"}, {"order": "ban"}, {"order": "ban", "peer": ""},
        {"order": "ban", "peer": 3}, {"order": "ban", "peer": "nobody here"}, {"order": "pause"},
        {"order": "ban", "peer": ALPHA, "surplus": 1}, {"order": "change", "key": "staleness", "value": 0},
        {"order": "change", "key": "learning_rate", "value": 5}, {"order": "change", "key": "seed", "value": 5},
    )  # fmt: skip
    for body in wrong:
        status, text = order(page, body, **BEARER)
        assert status == 422, body
        assert json.loads(text)["error"]
    assert sorted(learner_state.rglob("*")) == before


def test_a_change_is_told_in_words_and_left_for_the_learner(tmp_path: Path) -> None:
    rich_report(tmp_path / "ledger.sqlite")
    with serving(tmp_path) as page:
        status, text = order(page, {"order": "change", "key": "staleness", "value": 4}, **BEARER)
        assert (status, json.loads(text)["told"]) == (
            200, "Within a second, the staleness window is S = 4; a notice says when.",
        )  # fmt: skip
    (left,) = OperatorDecisions(tmp_path).waiting()
    assert read_order(left) == Change(key="staleness", value=4, by="the live page")


def test_too_much_is_not_read(page: LivePage) -> None:
    assert order(page, b"x" * (MAX_ORDER_BYTES + 1), **BEARER)[0] == 413
    assert page.ask("/peers?find=" + "x" * MAX_QUERY_CHARS).status == 414


def test_a_ban_is_left_for_the_learner(tmp_path: Path) -> None:
    rich_report(tmp_path / "ledger.sqlite")
    with serving(tmp_path) as page:
        status, text = order(page, {"order": "ban", "peer": ALPHA, "reason": "<b>"}, **BEARER)
        assert status == 200, text
        assert json.loads(text)["told"].startswith("Banned: ")
    left = [path.read_text("utf-8", "replace") for path in tmp_path.rglob("*") if path.suffix in (".json", ".jsonl")]
    assert any(ALPHA in text for text in left)


def test_limits_are_left_for_the_node(node_page: LivePage) -> None:
    orders = LimitOrders(node_page.log.parent)
    given: tuple[tuple[dict[str, object], str], ...] = (
        ({"key": "hours", "value": "19:00-07:30"}, '[engine] hours = "19:00-07:30", within a second'),
        ({"key": "upload_mbit", "value": 10}, "To keep that, write [network] upload_mbit = 10 in node.toml."),
        ({"key": "download_mbit"}, "no [network] download_mbit, within a second and until the node ends."),
        ({"key": "quota_gb", "value": 1.5}, "[store] quota_gb = 1.5"),
    )
    for fields, words in given:
        status, text = order(node_page, {"order": "limit", **fields}, **BEARER)
        assert status == 200, text
        assert words in json.loads(text)["told"]
    left = [read_limit(path) for path in orders.waiting()]
    assert [(one.key, one.value, one.by) for one in left] == [
        (fields["key"], fields.get("value"), "the live page") for fields, _ in given
    ]


def test_a_bad_limit_is_told_in_the_words_of_node_toml_and_left_for_nobody(node_page: LivePage) -> None:
    before = LimitOrders(node_page.log.parent).waiting()
    wrong: tuple[tuple[dict[str, object], str], ...] = (
        ({"key": "hours", "value": "19:00"}, "[engine] hours: '19:00' is not a range of hours."),
        ({"key": "hours", "value": 7}, "[engine] hours: expected `str`, got `float`. Write text in quotes."),
        ({"key": "upload_mbit", "value": 0}, "[network] upload_mbit: expected `float` >= 0.1."),
        ({"key": "upload_mbit", "value": "fast"}, "[network] upload_mbit: expected `float`, got `str`."),
        ({"key": "quota_gb"}, "[store] quota_gb: a store always has a quota."),
        ({"key": "threads", "value": 3}, "'threads' cannot be changed while the node runs."),
        ({"key": "k" * 33}, "This is no order: "),
        ({"key": "hours", "value": "1" * 257}, "This is no order: "),
        ({"key": "hours", "value": [1]}, "This is no order: "),
        ({"value": 1}, "This is no order: "),
    )
    for fields, words in wrong:
        status, text = order(node_page, {"order": "limit", **fields}, **BEARER)
        assert status == 422, text
        assert json.loads(text)["error"].startswith(words)
    assert order(node_page, {"order": "limit", "key": "hours", "value": ""})[0] == 401
    assert LimitOrders(node_page.log.parent).waiting() == before


# Bad watchers and bad bytes


def test_there_are_only_so_many_watchers(page: LivePage) -> None:
    with ExitStack() as stack:
        watchers = [stack.enter_context(page.watch()) for _ in range(MAX_WATCHERS)]
        assert all(watcher.next()["parts"] for watcher in watchers)
        answer = page.ask("/events")
        assert (answer.status, answer.headers["Retry-After"]) == (503, "10")
        assert page.ask("/health").status == 200, "who only reads is served"
    with page.watch() as watcher:
        until("room after they left", lambda: page_is_free(page))
        assert watcher is not None


def page_is_free(page: LivePage) -> bool:
    with page.watch() as watcher:
        return watcher.answer.status == 200


def stubborn(page: LivePage, path: str = "/events") -> socket.socket:
    """Return a connection that asks, and reads nothing."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    found.connect(("127.0.0.1", page.port))
    found.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    return found


def is_served(page: LivePage, connection: socket.socket) -> bool:
    """Whether the server still has this connection."""
    port = connection.getsockname()[1]
    return any(one.raddr and one.raddr.port == port for one in psutil.Process(page.process.pid).net_connections("tcp"))


@pytest.mark.skipif(sys.platform != "linux", reason="the system's timeout for data that nobody takes is Linux's")
def test_a_watcher_that_reads_nothing_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are served meanwhile, and the server does not grow with what it could not send."""
    monkeypatch.setattr(address, "UNREAD_MS", 1000)
    log, told = begin(tmp_path), "x" * 900
    with serving(tmp_path, before=FAST) as page, page.watch() as watcher:
        watcher.next()
        number, sent = 0, 0
        with stubborn(page) as connection:
            until("it is served", lambda: is_served(page, connection))
            memory = psutil.Process(page.process.pid).memory_info().rss
            while is_served(page, connection):
                number += 1
                assert number < 5000, "it is never dropped"
                log.emit("trouble", text=f"{number} {told}")
                sent += len(watcher.until(f"{number} xxx", "notices")["parts"][0]["html"])
        assert sent > 100_000
        assert psutil.Process(page.process.pid).memory_info().rss - memory < 48 << 20
        log.emit("trouble", text="still here")
        watcher.until("still here")


def test_a_watcher_that_reads_nothing_does_not_hold_the_port_after_the_end(tmp_path: Path) -> None:
    log, told = begin(tmp_path), "x" * 900
    with serving(tmp_path, before=FAST) as page, page.watch() as watcher, stubborn(page) as connection:
        until("it is served", lambda: is_served(page, connection))
        for number in range(200):  # more than the system's buffers hold
            log.emit("trouble", text=f"{number} {told}")
            watcher.until(f"{number} xxx", "notices")
        page.end_run()
        assert page.process.wait(WAIT_S) == 0
        with open_listener(Listen(host="127.0.0.1", port=page.port)):
            pass


@pytest.mark.parametrize(
    "sent",
    [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/9.9\r\n\r\n", b"\r\n\r\n\r\n", b"x" * 100_000,
     b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n",
     b"POST /orders HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
     b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
     b"GET /\xff HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
     b"GET http://evil.example/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"],
)  # fmt: skip
def test_bytes_that_are_no_question_harm_nobody(page: LivePage, sent: bytes) -> None:
    with (
        socket.create_connection(("127.0.0.1", page.port), timeout=WAIT_S) as connection,
        suppress(ConnectionError),  # it need not hear all of it
    ):
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 16):
            pass
    assert page.ask("/health").status == 200


def test_other_protocols_are_refused(page: LivePage) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
               "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}  # fmt: skip
    assert page.ask("/events", **upgrade).status >= 400
    for method in ("POST", "HEAD", "PUT"):
        assert page.ask("/events", method=method).status == 405
    assert page.ask("/health").status == 200


# Beginning and end


def test_before_there_is_a_ledger_or_a_log_there_is_a_page(tmp_path: Path) -> None:
    with serving(tmp_path, before=FAST) as page:
        assert "starting" in page.ask("/").text
        assert "Reading the ledger..." in page.ask("/").text
        with page.watch() as watcher:
            watcher.next()
            begin(tmp_path)
            watcher.until("Step 3", "head")
            rich_report(tmp_path / "ledger.sqlite")
            watcher.until("live-peers", "peers")


def test_a_config_that_somebody_spoils_costs_no_page(tmp_path: Path) -> None:
    begin(tmp_path)
    (tmp_path / "swarm.toml").write_text("[swarm")
    with serving(tmp_path, config=str(tmp_path / "swarm.toml")) as page:
        page.wait_for("Step 3")


def test_the_end_of_the_run_is_told_and_the_server_ends(tmp_path: Path) -> None:
    begin(tmp_path)
    with serving(tmp_path, before=FAST) as page, page.watch() as watcher:
        watcher.next()
        page.end_run()
        told = watcher.until("stopped", "head")
        while not told["over"]:
            told = watcher.next()
        assert told["title"].startswith("stopped: ")
        with pytest.raises((EOFError, http.client.IncompleteRead)):
            watcher.next()
        assert page.process.wait(WAIT_S) == 0
    assert page.log.read_text() == ""


def test_after_a_restart_the_page_is_at_the_same_place_and_earlier_starts_do_not_count(tmp_path: Path) -> None:
    log = begin(tmp_path)
    with serving(tmp_path, before=FAST) as page:
        port = page.port
        log.emit("finished", steps=3)
        page.wait_for("finished", "/health")
        page.end_run()
        page.process.wait(WAIT_S)
    with serving(tmp_path, port=port, before=FAST, began=time.time()) as page:
        assert page.ask("/health").text == "starting\n"
        assert "finished after 3 steps" in page.ask("/").text, "its notices are still there"
        begin(tmp_path)
        page.wait_for("running", "/health")


async def test_a_server_that_nobody_asks_ends_and_the_next_browser_starts_another(tmp_path: Path) -> None:
    begin(tmp_path).close()
    listener = open_listener(Listen(host="127.0.0.1"))
    terms = PageTerms(socket=listener.fileno(), kind="learner", title="x", state=str(tmp_path), token=TOKEN)
    quick = "import node.commands.page.program as p; p.IDLE_S = 3.0; p.LOOK_S = 0.05"
    door = PageDoor(
        listener=listener, terms=terms, events=EventLog(), command=(sys.executable, "-c", f"{quick}\n{SERVER}")
    )
    page = LivePage(process=None, port=listener.getsockname()[1], log=tmp_path)  # type: ignore[arg-type]

    def servers() -> set[int]:
        alive = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
        return {child.pid for child in alive}

    before, seen = servers(), set[int]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(door.run)
        for _ in range(2):
            answer = await trio.to_thread.run_sync(partial(page.ask, "/health"))
            assert answer.status == 200
            (pid,) = servers() - before
            seen.add(pid)
            with trio.fail_after(WAIT_S):
                while servers() - before:
                    await trio.sleep(0.05)
        assert len(seen) == 2
        nursery.cancel_scope.cancel()
