"""Which requests are answered: no foreign name, site or script gets anything, and nothing changes without the token."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from node.commands.page.access import FOREIGN_HOST, FOREIGN_ORIGIN, Access, Right

TOKEN = "0123456789abcdef-TOKEN_x"
LOCAL = Access(token=TOKEN)
OPEN = Access(token=TOKEN, is_local=False)
PUBLIC = Access(token=TOKEN, is_local=False, public=True)
PROXIED = Access(token=TOKEN, hosts=frozenset({"swarm.example"}))
ALL = (LOCAL, OPEN, PUBLIC, PROXIED)

accesses = st.sampled_from(ALL)
texts = st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=60)
names = st.one_of(texts, st.sampled_from(["localhost", "127.0.0.1", "[::1]", "swarm.example", "evil.example"]))
hosts = st.one_of(texts, names, st.builds("{}:{}".format, names, st.integers(0, 70_000)))
methods = st.sampled_from(["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"])
OURS = ["127.0.0.1", "127.0.0.1:7463", "localhost:7463", "[::1]:7463", "[::1]", "192.0.2.7:7463", "LOCALHOST"]


@pytest.mark.parametrize("host", OURS)
def test_addresses_and_localhost_are_ours(host: str) -> None:
    for access in ALL:
        assert access.refusal("GET", {"host": host}) is None


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:7463", "localhost.evil.example", "127.0.0.1.evil.example:7463", "swarm.example",
     "user@127.0.0.1", "127.0.0.1@evil.example", "[evil.example]:7463", "2130706433", "0x7f.1", "127.1",
     "local\u00a0host"],
)  # fmt: skip
def test_other_names_are_not(host: str) -> None:
    assert LOCAL.refusal("GET", {"host": host}) == FOREIGN_HOST


def test_a_proxys_name_is_ours_in_any_case_and_with_any_port() -> None:
    for host in ("swarm.example", "SWARM.example:443"):
        assert PROXIED.refusal("GET", {"host": host}) is None
    assert PROXIED.refusal("GET", {"host": "other.example"}) == FOREIGN_HOST


@given(accesses, methods, hosts, st.dictionaries(texts, texts, max_size=4))
def test_no_name_but_ours_gets_past(access: Access, method: str, host: str, more: dict[str, str]) -> None:
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0].lower()
    is_address = bool(name) and all(character in "0123456789abcdefABCDEF.:%" or "%" in name for character in name)
    assume(not is_address and name not in ("localhost", *access.hosts))
    assert access.refusal(method, {**more, "host": host}) == FOREIGN_HOST


@given(accesses, methods, st.sampled_from(OURS), texts.filter(bool))
def test_no_other_origin_gets_past(access: Access, method: str, host: str, origin: str) -> None:
    assume(origin.partition("://")[2].lower() != host.lower())
    assume(origin.partition("://")[2].partition(":")[0].lower() not in access.hosts)
    for site in ({}, {"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}):
        headers = {"host": host, "origin": origin, "authorization": f"Bearer {TOKEN}", **site}
        assert access.refusal(method, headers) == FOREIGN_ORIGIN


@given(accesses, methods, texts.filter(lambda site: site not in ("same-origin", "none")), texts)
def test_no_other_sites_script_gets_past(access: Access, method: str, site: str, mode: str) -> None:
    assume((method, mode) != ("GET", "navigate"))
    headers = {"host": "127.0.0.1:7463", "sec-fetch-site": site, "sec-fetch-mode": mode}
    assert access.refusal(method, headers) == FOREIGN_ORIGIN


def test_our_own_page_may_ask() -> None:
    for host in OURS:
        headers = {"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}
        assert LOCAL.refusal("POST", headers) is None


def test_a_person_who_follows_a_link_from_elsewhere_may_read() -> None:
    headers = {"host": "localhost:7463", "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert LOCAL.refusal("GET", headers) is None
    assert LOCAL.refusal("POST", headers) == FOREIGN_ORIGIN


def test_a_proxy_may_give_the_program_another_host() -> None:
    headers = {"host": "127.0.0.1:7463", "origin": "https://swarm.example", "sec-fetch-site": "same-origin"}
    assert PROXIED.refusal("POST", headers) is None
    assert LOCAL.refusal("POST", headers) == FOREIGN_ORIGIN


@pytest.mark.parametrize(
    ("access", "right"),
    [(LOCAL, Right.READ), (OPEN, Right.NOTHING), (PUBLIC, Right.READ_PUBLIC), (PROXIED, Right.NOTHING)],
)
def test_without_the_token_a_page_is_read_here_alone_or_by_all_if_it_is_public(access: Access, right: Right) -> None:
    assert access.right_of({}) is right


def test_the_token_in_its_header_allows_changes() -> None:
    for access in ALL:
        for scheme in ("Bearer", "bearer"):
            assert access.right_of({"authorization": f"{scheme} {TOKEN}"}) is Right.CHANGE


@given(
    accesses, texts, st.dictionaries(texts, st.one_of(texts, st.just(TOKEN), st.just(f"Bearer {TOKEN}")), max_size=5)
)
def test_nothing_else_allows_changes(access: Access, given_: str, more: dict[str, str]) -> None:
    """Whatever stands in the header, and wherever else the token stands."""
    assume(given_.partition(" ")[2].strip() != TOKEN)
    more.pop("authorization", None)
    for headers in ({**more, "authorization": given_}, {**more, "cookie": f"token={TOKEN}", "x-token": TOKEN}):
        assert access.right_of(headers) is not Right.CHANGE


@pytest.mark.parametrize("given_", [f"Basic {TOKEN}", f"Bearer{TOKEN}", f"Bearer x{TOKEN}", f"Bearer {TOKEN[:-1]}",
                                    f"Bearer {TOKEN.lower()}", "Bearer", "Bearer ", TOKEN])  # fmt: skip
def test_nearly_the_token_is_not_the_token(given_: str) -> None:
    assert LOCAL.right_of({"authorization": given_}) is Right.READ
