"""`volery report --html --every` as a program of its own, and its page in a browser that a file server answers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from playwright.sync_api import Browser, Page, expect

from node.reports import as_html
from node.reports.html.document import write_page
from node.state.status_file import NodeStatus, StatusFile
from tests.e2e.programs import wait_for
from tests.support.ledgers import ALPHA, open_story, peer_row
from tests.support.page_stories import rich_report
from tests.support.paths import ROOT

ENDS_S = 30.0


def test_a_program_keeps_a_page_until_ctrl_c(tmp_path: Path) -> None:
    state, path, told = tmp_path / "state", tmp_path / "web" / "run.html", tmp_path / "told"
    for directory in (state, path.parent):
        directory.mkdir()
    (state / "learner.key").touch()
    story = open_story(state / "ledger.sqlite")
    StatusFile(state).show(NodeStatus(doing="at work", limits={}))  # this process stands for the learner
    with told.open("wb") as errors:
        program = subprocess.Popen(
            [sys.executable, "-m", "node", "report", str(state), "--html", str(path), "--every", "1"],
            stdout=subprocess.PIPE,
            stderr=errors,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
    try:
        wait_for("the first page", lambda: path.exists() and "Ctrl-C" in told.read_text())
        story.join(peer_row(ALPHA, "borealis"))
        wait_for("the second page", lambda: "borealis" in path.read_text(encoding="utf-8"))
        path.parent.rename(tmp_path / "aside")
        wait_for("the trouble", lambda: "cannot be written" in told.read_text())
        (tmp_path / "aside").rename(path.parent)
        wait_for("the end of the trouble", lambda: "up to date again" in told.read_text())
        program.send_signal(signal.SIGINT)
        assert program.wait(ENDS_S) == 130
    finally:
        program.kill()
        story.ledger.close()
    assert program.stdout is not None
    assert program.stdout.read() == b""
    assert len(told.read_text().splitlines()) == 3
    assert [entry.name for entry in path.parent.iterdir()] == ["run.html"]


# In a browser


class Quiet(SimpleHTTPRequestHandler):
    """Answers with the files of a directory, as any server of files does, and writes no log."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/run.html"
        server.shutdown()


@pytest.fixture
def page_text(tmp_path: Path) -> str:
    return as_html(rich_report(tmp_path / "ledger.sqlite"), again_s=1)


def write(path: Path, text: str, at_s: int) -> None:
    """Write a page whose time is a second of its own, since servers tell whole seconds."""
    write_page(text, path)
    os.utime(path, (at_s, at_s))


def stand_still(page: Page) -> None:
    """Stop the clock of a page that is not there yet: from now on only `run_for` moves it."""
    page.clock.install(time=1_700_000_200)
    page.clock.pause_at(1_700_000_201)


def newer(text: str) -> str:
    return text.replace("What was learned</h2>", "What is newer</h2>")


@pytest.mark.parametrize("has_script", [True, False])
def test_a_browser_shows_the_newer_page(
    browser: Browser, address: str, page_text: str, tmp_path: Path, has_script: bool
) -> None:
    write(tmp_path / "run.html", page_text, 1_700_000_000)
    page = browser.new_context(java_script_enabled=has_script).new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.goto(address)
    expect(page.locator("#learned h2")).to_have_text("What was learned")
    write(tmp_path / "run.html", newer(page_text), 1_700_000_100)
    expect(page.locator("#learned h2")).to_have_text("What is newer")
    assert said == [], "the page's own policy forbids what it does"
    page.context.close()


def test_a_reader_at_work_keeps_the_page(browser: Browser, address: str, page_text: str, tmp_path: Path) -> None:
    """While the reader is busy there are no requests, and afterwards the newer page comes."""
    write(tmp_path / "run.html", page_text, 1_700_000_000)
    page = browser.new_context().new_page()
    stand_still(page)
    page.goto(address)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.method))
    summary = page.locator("#learned summary").first
    summary.click()
    write(tmp_path / "run.html", newer(page_text), 1_700_000_100)
    page.clock.run_for(5000)
    assert asked == []
    summary.click()
    page.clock.run_for(1000)
    expect(page.locator("#learned h2")).to_have_text("What is newer")
    page.context.close()


def test_a_page_that_is_not_newer_is_asked_for_and_not_loaded(
    browser: Browser, address: str, page_text: str, tmp_path: Path
) -> None:
    write(tmp_path / "run.html", page_text, 1_700_000_000)
    page = browser.new_context().new_page()
    stand_still(page)
    page.goto(address)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.method))
    for _ in range(3):
        with page.expect_response(lambda response: response.request.method == "HEAD"):
            page.clock.run_for(1000)
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#again")).to_be_focused()
    page.clock.run_for(5000)
    assert asked == ["HEAD"] * 3
    page.context.close()
