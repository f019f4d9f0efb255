"""A page's token and port: made once, kept over restarts, readable by their owner alone."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import trio

from node.config.common import LearnerWebSection, WebSection
from node.runtime.errors import UsageError
from node.runtime.events import EventLog
from node.web.address import Listen, open_listener
from node.web.door import PageDoor
from node.web.page import FILE, Page, open_page, page_server, serve_nothing
from node.web.terms import PageTerms


@contextmanager
def opened(state: Path, web: WebSection | None = None) -> Iterator[PageDoor]:
    page = open_page(web or WebSection(), kind="rollout", title="a swarm", state=state, events=EventLog())
    assert page.door is not None
    with page.door.listener:
        assert page.text == (
            f"Live page: http://127.0.0.1:{page.door.listener.getsockname()[1]}/#token={page.door.terms.token}"
        )
        yield page.door


def test_token_and_port_stay_over_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path) as door:
        first, port = door.terms, door.listener.getsockname()[1]
    with opened(tmp_path) as door:
        assert (door.terms.token, door.listener.getsockname()[1]) == (first.token, port)
    assert len(first.token) >= 16


def test_another_state_directory_has_another_token(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as one, opened(tmp_path / "b") as other:
        assert one.terms.token != other.terms.token
        assert one.listener.getsockname()[1] != other.listener.getsockname()[1]


def test_the_token_is_for_its_owner_alone(tmp_path: Path) -> None:
    (tmp_path / f".{FILE}.draft").write_text("left by a power cut")
    with opened(tmp_path):
        assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"port": 1e400, "token": "0123456789abcdef"}', '{"port": 70000, "token": 3}',
     '{"port": 0, "token": "short"}', '{"port": -5, "token": "0123456789abcdef<script>"}', "[" * 9000],
)  # fmt: skip
def test_a_file_that_somebody_spoilt_is_written_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with opened(tmp_path) as door:
        told = msgspec.json.decode((tmp_path / FILE).read_bytes())
        assert told == {"port": door.listener.getsockname()[1], "token": door.terms.token}
        assert door.terms.token.replace("-", "").replace("_", "").isalnum()


def test_where_nothing_can_be_written_there_is_a_page_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with opened(tmp_path / "file"):
        pass


def test_a_port_in_use_is_told_and_the_run_goes_on(tmp_path: Path) -> None:
    with open_listener(Listen(host="127.0.0.1")) as other:
        port = other.getsockname()[1]
        web = WebSection(listen=f"127.0.0.1:{port}")
        page = open_page(web, kind="rollout", title="x", state=tmp_path, events=EventLog())
    assert page.door is None
    assert page.text.startswith(f"There is no live page: 127.0.0.1: port {port} is in use")
    assert not (tmp_path / FILE).exists()


def test_no_address_opens_nothing_and_a_wrong_one_is_the_owners_error(tmp_path: Path) -> None:
    assert open_page(WebSection(listen=""), kind="rollout", title="x", state=tmp_path, events=EventLog()) == Page(
        text=""
    )
    with pytest.raises(UsageError, match="is no address"):
        open_page(WebSection(listen="here"), kind="rollout", title="x", state=tmp_path, events=EventLog())
    assert list(tmp_path.iterdir()) == []


def test_the_server_is_told_what_it_needs(tmp_path: Path) -> None:
    web = LearnerWebSection(listen="0.0.0.0", public=True, hosts=["swarm.example"])
    config = tmp_path / "swarm.toml"
    page = open_page(web, kind="learner", title="x", state=tmp_path, events=EventLog(), config=config)
    assert page.door is not None
    with page.door.listener as listener:
        terms = page.door.terms
        assert terms.socket == listener.fileno()
        assert (terms.kind, terms.title, terms.state, terms.config) == ("learner", "x", str(tmp_path), str(config))
        assert (terms.public, terms.is_local, terms.hosts) == (True, False, ["swarm.example"])
        assert terms.pid > 0
        assert terms.began > 1.7e9


def test_terms_travel_as_they_are_and_a_short_token_is_none(tmp_path: Path) -> None:
    with opened(tmp_path) as door:
        raw = msgspec.json.encode(door.terms)
        assert msgspec.json.decode(raw, type=PageTerms) == door.terms
    told = msgspec.json.decode(raw)
    for wrong in ({"token": ""}, {"token": "123456789012345"}, {"kind": "else"}, {"surplus": 1}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(msgspec.json.encode(told | wrong), type=PageTerms)


async def test_a_page_is_served_until_its_block_ends(tmp_path: Path, autojump_clock: object) -> None:
    page = open_page(WebSection(), kind="rollout", title="x", state=tmp_path, events=EventLog())
    assert page.door is not None
    async with page_server() as serve:
        serve(page)
        serve(Page(text="no port was free"))
        await trio.testing.wait_all_tasks_blocked()
        assert page.door.listener.fileno() >= 0
    assert page.door.listener.fileno() == -1
    serve_nothing(page)


async def test_what_the_block_raises_keeps_its_type() -> None:
    with pytest.raises(KeyError):
        async with page_server():
            raise KeyError("x")
