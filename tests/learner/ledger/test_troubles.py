"""Nodes' reports of work that they cannot do are kept within bounds, made harmless, and shown in one sentence."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from learner.ledger.troubles import MOST_PEERS, NEWS_EVERY_S, Troubles, Unable, in_words
from learner.monitoring.fruitless_leases import ALARM
from learner.scheduling.lease_backoff import FREE_LEASES
from node.learner_role.metrics.board import Series
from node.learner_role.metrics.monitor import LOOK_S, NODES_AGAIN_S
from node.learner_role.metrics.stall_detector import waits_for
from node.reports.readers.ledger_report import swarm_report
from node.reports.text.report_text import as_text
from protocol.core.ids import PeerId, PolicyVersion
from protocol.core.visible import HIDDEN
from protocol.trouble import MAX_TROUBLE_CHARS, Trouble, TroubleKind
from protocol.work import IN_GOOD_ORDER, Heartbeat, LeaseRequest, LeaseReturn, open_lease
from tests.support.learner_fixture import Learner, Settings, hello, open_learner, until
from tests.support.trainer_fixture import NOW_MS, OTHER, PEER, SWARM

INSTALL, LEASE, ENGINE = TroubleKind.INSTALL, TroubleKind.LEASE, TroubleKind.ENGINE
HERE, THERE, GONE = PEER.peer_id, OTHER.peer_id, PeerId("12D3KooW" + "g" * 44)
NEWEST, OLDER = PolicyVersion(1, 3), PolicyVersion(1, 2)
NO = "attention 'x' is not supported"


def hear(made: Troubles, peer: PeerId, *troubles: Trouble, now_s: float = 0.0) -> list[Trouble]:
    return made.record(peer, troubles, now_s=now_s, now_ms=NOW_MS + round(1000 * now_s), present=(HERE, THERE))


def unable(made: Troubles, *, owing: Sequence[PeerId] = ()) -> str:
    return made.unable((HERE, THERE), NEWEST, owing=owing).text


# The sentence


def test_it_says_how_many_of_how_many_and_why() -> None:
    made = Troubles()
    assert made.unable((HERE, THERE), NEWEST) == Unable(of=2)
    hear(made, HERE, Trouble(INSTALL, 1, NO, NEWEST))
    assert unable(made) == f"1 of 2 nodes cannot install 1.3: {NO}"
    assert not made.unable((HERE, THERE), NEWEST).is_everyone
    hear(made, THERE, Trouble(INSTALL, 4, NO, NEWEST))
    both = Unable(text=f"2 of 2 nodes cannot install 1.3: {NO}", nodes=2, of=2, idle=2)
    assert made.unable((HERE, THERE), NEWEST) == both
    assert both.is_everyone
    hear(made, HERE)
    hear(made, THERE)
    assert made.unable((HERE, THERE), NEWEST) == Unable(of=2)


def test_who_has_an_older_version_in_service_is_not_idle() -> None:
    made, install = Troubles(), Trouble(INSTALL, 1, NO, NEWEST)
    hear(made, HERE, install)
    found = made.unable((HERE,), NEWEST, serving=[HERE])
    assert (found.nodes, found.idle, found.is_everyone) == (1, 0, False)
    hear(made, HERE, install, Trouble(LEASE, 2, "too long", OLDER))
    found = made.unable((HERE,), NEWEST, serving=[HERE])
    assert (found.text, found.is_everyone) == ("1 of 1 nodes cannot use their leases: too long", True)


def test_what_concerns_an_older_version_alone_is_over() -> None:
    made = Troubles()
    hear(made, HERE, Trouble(INSTALL, 9, NO, OLDER))
    assert unable(made) == ""
    assert made.unable((HERE,), OLDER).nodes == 1
    assert made.unable((HERE,), None).nodes == 1


def test_one_batch_that_failed_is_not_told() -> None:
    made = Troubles()
    hear(made, HERE, Trouble(LEASE, 1, "too long", OLDER))
    assert unable(made) == ""
    hear(made, HERE, Trouble(LEASE, 2, "too long", OLDER))
    assert unable(made) == "1 of 2 nodes cannot use their leases: too long"


def test_a_version_that_cannot_be_fetched_is_told_while_it_is_the_newest() -> None:
    made, fetch = Troubles(), TroubleKind.FETCH
    hear(made, HERE, Trouble(fetch, 1, "no room", NEWEST))
    assert unable(made) == ""
    hear(made, HERE, Trouble(fetch, 2, "no room", NEWEST))
    assert unable(made) == "1 of 2 nodes cannot fetch 1.3: no room"
    assert made.unable((HERE,), PolicyVersion(1, 4)) == Unable(of=1)


def test_who_gave_up_and_left_counts_until_the_next_version() -> None:
    made = Troubles()
    hear(made, GONE, Trouble(INSTALL, 9, NO, NEWEST))
    assert made.unable((), NEWEST).text == f"1 of 1 nodes cannot install 1.3: {NO}"
    assert made.unable((HERE,), NEWEST).text == f"1 of 2 nodes cannot install 1.3: {NO}"
    assert made.unable((HERE,), PolicyVersion(1, 4)) == Unable(of=1)


def test_of_several_troubles_of_a_node_the_first_one_counts() -> None:
    made = Troubles()
    hear(made, HERE, Trouble(LEASE, 3, "x", NEWEST), Trouble(INSTALL, 3, NO, NEWEST), Trouble(ENGINE, 3, "y", NEWEST))
    assert unable(made) == f"1 of 2 nodes cannot install 1.3: {NO}"


def test_different_troubles_and_reasons_are_told_apart() -> None:
    made, peers = Troubles(), [PeerId(f"peer {number}") for number in range(6)]
    for number, peer in enumerate(peers[:4]):
        hear(made, peer, Trouble(INSTALL, 1, NO if number else "no memory.", NEWEST))
    hear(made, peers[4], Trouble(TroubleKind.OTHER, 2, "rain", NEWEST))
    hear(made, peers[5], Trouble(ENGINE, 2, "killed", NEWEST))
    assert made.unable(peers, NEWEST).text == (
        f"4 of 6 nodes cannot install 1.3: {NO} (and 1 other reason); 1 of 6 nodes cannot work: rain"
    )


def test_who_is_too_old_to_say_it_is_seen_by_its_leases() -> None:
    made = Troubles()
    assert unable(made, owing=[HERE]) == "1 of 2 nodes cannot use their leases: they are not delivered in time"
    made.gave_back(HERE, "a prompt leaves the vocabulary\nof 320")
    assert unable(made, owing=[HERE]) == "1 of 2 nodes cannot use their leases: a prompt leaves the vocabulary of 320"
    assert unable(made) == ""


def test_a_node_says_it_of_itself() -> None:
    assert in_words([]) == ""
    assert in_words([Trouble(INSTALL, 2, NO, NEWEST), Trouble(LEASE, 2, "no")]) == (
        f"cannot install 1.3: {NO}; cannot use its leases: no"
    )


# What strangers say


def test_a_reason_can_do_nothing_to_a_terminal() -> None:
    made = Troubles()
    hear(made, HERE, Trouble(INSTALL, 1, "\x1b[2J\u202e\nvolery: all is well", NEWEST))
    assert unable(made) == "1 of 2 nodes cannot install 1.3: \\x1b[2J\\u202e volery: all is well"
    made.gave_back(HERE, "\x9b31m\r")
    assert made.gave_back_for == "\\x9b31m\\x0d"


KINDS = list(TroubleKind)
SAID = st.lists(
    st.builds(
        Trouble,
        st.sampled_from(KINDS),
        st.integers(0, (1 << 53) - 1),
        st.text(max_size=MAX_TROUBLE_CHARS),
        st.sampled_from([None, NEWEST, OLDER]),
    ),
    max_size=5,
)


@given(st.lists(st.tuples(st.floats(0, 20), st.sampled_from([HERE, THERE, GONE]), SAID), max_size=80))
def test_whatever_peers_say_news_are_seldom_and_texts_are_harmless(
    happened: list[tuple[float, PeerId, list[Trouble]]],
) -> None:
    made, now_s = Troubles(), 0.0
    news: dict[tuple[PeerId, TroubleKind], int] = {}
    rows = 0
    for passed_s, peer, troubles in happened:
        now_s += passed_s
        for one in hear(made, peer, *troubles, now_s=now_s):
            news[peer, one.kind] = news.get((peer, one.kind), 0) + 1
            assert len(one.reason) <= MAX_TROUBLE_CHARS
        written = made.unwritten()
        rows += len(written)
        assert len({(row.peer, row.kind) for row in written}) == len(written)
        text = unable(made, owing=[THERE])
        assert not [character for character in text if unicodedata.category(character) in HIDDEN]
        assert len(text) < 2 * (MAX_TROUBLE_CHARS + 100)
    assert all(number <= 1 + now_s / NEWS_EVERY_S for number in news.values())
    assert rows <= 2 * sum(news.values()), "each is written when it is news, and when it is over"


def test_so_many_are_remembered_and_those_who_left_go_first() -> None:
    made = Troubles()
    for number in range(2 * MOST_PEERS):
        hear(made, PeerId(str(number)), Trouble(INSTALL, 1, NO, NEWEST))
        hear(made, HERE, Trouble(INSTALL, 1, NO, NEWEST))
    assert made.unable((HERE,), NEWEST).nodes == MOST_PEERS
    assert made.count([HERE])[INSTALL] == 1


def test_what_fails_twice_as_often_is_news_again() -> None:
    made, told = Troubles(), []
    for times in range(1, 20):
        told += [one.times for one in hear(made, HERE, Trouble(LEASE, times, "no"), now_s=NEWS_EVERY_S * times)]
    assert told == [1, 2, 4, 8, 16]


# The learner


async def answer_heartbeats(learner: Learner, clock: MockClock, looks: int, *troubles: Trouble) -> None:
    """So many times is looked at the nodes, who say this meanwhile, often enough to be heard."""
    for _ in range(2 * looks):
        for peer in list(learner.run.present):
            learner.sessions.take_heartbeat(peer, Heartbeat(troubles=list(troubles)))
        await wait_all_tasks_blocked()
        learner.wall.ms += round(500 * LOOK_S)
        clock.jump(LOOK_S / 2)
        await wait_all_tasks_blocked()


async def test_the_log_the_ledger_the_report_and_the_metrics_say_what_nodes_say(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    trouble = Trouble(INSTALL, 1, NO, PolicyVersion(1, 0))
    async with open_learner(tmp_path, Settings()) as learner, trio.open_nursery() as nursery:
        await learner.training.begin()
        nursery.start_soon(learner.watch.run)
        nursery.start_soon(learner.sessions.run)
        for peer in (HERE, THERE):
            await learner.sessions.welcome(peer, hello())
        await answer_heartbeats(learner, mock_clock, 3, trouble)
        told = [(fields["peer"], fields["kind"], fields["reason"]) for fields in learner.logged("node_trouble")]
        assert told == [(HERE, "install", NO), (THERE, "install", NO)]
        sentence = f"2 of 2 nodes cannot install 1.0: {NO}"
        assert [fields["text"] for fields in learner.logged("nodes_unable")] == [sentence]
        assert learner.logged("nodes_unable")[0]["everyone"] is True
        assert learner.watch.board.values()[Series("nodes_troubled", ("install",))] == 2
        assert f"No node can work: {sentence}." in waits_for(learner.run, learner.wall.ms)
        await until(lambda: swarm_report(learner.ledger.path).unable.nodes == 2)
        report = swarm_report(learner.ledger.path)
        assert report.unable == Unable(text=sentence, nodes=2, of=2, idle=2)
        assert sentence in " ".join(as_text(report).split())

        learner.sessions.note_departure(HERE, IN_GOOD_ORDER)
        learner.sessions.note_departure(THERE, IN_GOOD_ORDER)
        assert f"No node can work: {sentence}. They have left." in waits_for(learner.run, learner.wall.ms)
        await learner.sessions.welcome(HERE, hello())
        await learner.sessions.welcome(THERE, hello())
        await answer_heartbeats(learner, mock_clock, 2)
        assert len(learner.logged("nodes_able")) == 1
        assert learner.watch.board.values()[Series("nodes_troubled", ("install",))] == 0
        await until(lambda: swarm_report(learner.ledger.path).unable.nodes == 0)
        assert [row.ended_ms is None for row in swarm_report(learner.ledger.path).troubles] == [False, False]
        nursery.cancel_scope.cancel()


async def test_a_node_that_changes_its_story_does_not_fill_the_log(tmp_path: Path, mock_clock: MockClock) -> None:
    async with open_learner(tmp_path, Settings()) as learner, trio.open_nursery() as nursery:
        await learner.training.begin()
        nursery.start_soon(learner.watch.run)
        await learner.sessions.welcome(HERE, hello())
        for number in range(60):
            story = Trouble(INSTALL, number, f"story {number}", PolicyVersion(1, 0))
            await answer_heartbeats(learner, mock_clock, 1, story)
        seconds = 60 * LOOK_S
        assert 2 <= len(learner.logged("node_trouble")) <= 1 + seconds / NEWS_EVERY_S
        assert 2 <= len(learner.logged("nodes_unable")) <= 1 + seconds / NODES_AGAIN_S
        nursery.cancel_scope.cancel()


async def give_back_all(learner: Learner, peer: PeerId, reason: str) -> int:
    """Ask once, and give back what comes; return how many leases that was."""
    with trio.move_on_after(0.5):
        grant = await learner.sessions.grant(peer, LeaseRequest(rollouts=4))
        ids: list[bytes] = [
            open_lease(raw, SWARM.authority.swarm, learner=SWARM.learner.peer_id).id for raw in grant.leases
        ]
        if ids:
            learner.sessions.take_return(peer, LeaseReturn(leases=ids, reason=reason))
        return len(ids)
    return 0


async def test_a_node_that_says_nothing_and_gives_all_back_is_an_alarm_and_costs_next_to_nothing(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    """Thousands of requests in half a minute, as an old node makes them that is refused by its engine."""

    async def beat(learner: Learner) -> None:
        """However far the clock jumps while the ledger is written, no heartbeat is late."""
        while True:
            learner.sessions.take_heartbeat(HERE, Heartbeat())
            await trio.sleep(0.5)

    async with open_learner(tmp_path, Settings(ahead=2.0)) as learner, trio.open_nursery() as nursery:
        await learner.training.begin()
        nursery.start_soon(learner.watch.run)
        nursery.start_soon(learner.sessions.run)
        nursery.start_soon(learner.sessions.leases.run)
        await learner.sessions.welcome(HERE, hello())
        nursery.start_soon(beat, learner)
        leases = 0
        while leases < FREE_LEASES:  # these take no time
            leases += await give_back_all(learner, HERE, "a prompt leaves the vocabulary of 320")
        mock_clock.autojump_threshold = 0.02
        began_s = trio.current_time()
        while trio.current_time() < began_s + 60:
            before_s = trio.current_time()
            assert HERE in learner.run.present
            leases += await give_back_all(learner, HERE, "a prompt leaves the vocabulary of 320")
            learner.wall.ms += round(1000 * (trio.current_time() - before_s))
            await trio.lowlevel.checkpoint()
        assert FREE_LEASES < leases <= FREE_LEASES + 12
        await until(lambda: ALARM in [fields["alarm"] for fields in learner.logged("alarm_raised")])
        text = str(learner.logged("alarm_raised")[0]["text"])
        assert "returned" in text
        assert "1 of 1 nodes cannot use their leases: a prompt leaves the vocabulary of 320" in text
        assert learner.watch.board.values()[Series("alarm", (ALARM,))] == 1
        assert "No node can work: 1 of 1 nodes cannot use their leases" in waits_for(learner.run, learner.wall.ms)
        report = swarm_report(learner.ledger.path)
        assert report.fruitless is not None
        assert report.fruitless.leases <= leases
        assert "brought no record" in " ".join(as_text(report).split())
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("heartbeat", "reason"),
    [
        (Heartbeat(hours_left_s=0.0), "1 of 1 nodes are outside their owners' hours, or paused"),
        (Heartbeat(), "1 of 1 nodes are without a version yet"),
        (Heartbeat(installed=PolicyVersion(1, 0)), "no peer requests leases, or may have any"),
    ],
)
async def test_a_run_that_stands_still_says_why_nothing_is_leased(
    tmp_path: Path, mock_clock: MockClock, heartbeat: Heartbeat, reason: str
) -> None:
    async with open_learner(tmp_path, Settings()) as learner:
        await learner.training.begin()
        await learner.sessions.welcome(HERE, hello())
        learner.sessions.take_heartbeat(HERE, heartbeat)
        assert f"Nothing is leased: {reason}" in waits_for(learner.run, learner.wall.ms)
