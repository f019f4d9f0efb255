"""Views, status, reports and plans with none, one and two of everything say "1 peer", "2 peers", and never "0 of 0"."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from learner.provisioning.model.capacity import Clockwork
from learner.provisioning.model.machine_selection import Candidate
from learner.provisioning.planner import reasons
from learner.provisioning.planner.pool import Pool
from node.cli.status import show_status
from node.reports import as_html, as_text, own_report, swarm_report
from node.reports.explain.why import why_in_ledger, why_in_receipts
from node.reports.model.report import Role
from node.state.keys import load_or_create_key
from node.state.receipts import Receipts
from node.ui.live_view import ViewState
from node.ui.look import Look
from node.ui.picture import picture
from node.ui.plain_lines import status_line
from node.ui.view_updates import apply
from protocol.core.ids import PolicyVersion
from protocol.work import Receipt, Rule, Verdict
from tests.support.ledgers import ALPHA, LEARNER, key, open_story, peer_row
from tests.support.plan_calls import plan

NOUNS = (
    "rollout", "peer", "step", "version", "lease", "record", "token", "prompt", "machine", "completion", "group",
    "audit", "evaluation", "time", "node", "lag", "checkpoint", "milestone", "layer", "sample", "lap", "alarm",
)  # fmt: skip
"""Nouns whose plurals have an s."""

ADJECTIVES = r"(?:(?:training|rollout|held-out|policy|judged|admitted|open|more|newer|of its) )*"

WRONG = re.compile(
    rf"(?<![\d.,])(?:1 {ADJECTIVES}(?:{'|'.join(NOUNS)})s\b|[0234] {ADJECTIVES}(?:{'|'.join(NOUNS)})\b|0 of 0\b)"
    r"|\ball 1\b|\bonce in 1\b|\b1 times\b|(?<!step )(?<![\d.,])1 (?:[a-z-]+ )?(?:were|are)\b",
)
"""Wrong forms: a plural for one, a singular for several, and "none of none"."""


def require_words(text: str) -> None:
    plain = " ".join(text.split())
    found = [plain[max(0, one.start() - 40) : one.end() + 20] for one in WRONG.finditer(plain)]
    assert found == []


def require_words_of_page(page: str) -> None:
    """Check each text of a page by itself: neighbours in a table or in a plot do not form a sentence."""
    for text in re.split(r"<(?:style|script|svg)\b.*?</(?:style|script|svg)>|<[^>]*>", page, flags=re.S):
        require_words(text)


def test_what_is_wrong_is_found() -> None:
    for wrong in ("1 peers", "1 training steps", "2 lease", "all 1 machines", "once in 1 lives", "0 of 0", "1 are"):
        assert WRONG.search(wrong), wrong
    for right in ("1 peer", "2 peers", "0 steps", "11 peers", "1.1 steps", "step 1 was", "version 1.2"):
        assert not WRONG.search(right), right


def learners(n: int) -> ViewState:
    """Return a learner's view to which everything has happened with the number `n`."""
    state = ViewState(role=Role.LEARNER, title="demo", batch=n, steps=n, staleness=n)
    peers = [key(number + 2).peer_id for number in range(max(1, n))]
    apply(state, "incarnation_began", {"incarnation": n + 1, "step": n})
    apply(state, "buffer_recovered", {"rollouts": n, "episodes": 0})
    apply(state, "version_published", {"version": f"1.{n}"})
    for peer in peers:
        apply(state, "peer_joined", {"peer": peer, "name": "atlas"})
    peer = peers[0]
    apply(state, "delivery_judged", {"peer": peer, "admitted": n, "refused": n, "lag": 1, "tokens": n, "reason": "x"})
    apply(state, "leases_returned", {"peer": peer, "leases": n, "reason": "tired"})
    apply(state, "leases_recalled", {"peer": peer, "leases": n, "rollouts": n})
    apply(state, "peer_left", {"peer": peer, "reason": "silent", "leases_released": n})
    apply(state, "step", {"step": n, "buffered": n, "reward": 0.5})
    apply(state, "finished", {"steps": n})
    return state


def nodes(n: int) -> ViewState:
    """Return a rollout node's view."""
    state = ViewState(role=Role.ROLLOUT)
    apply(state, "joined", {"newest": "1.1"})
    apply(state, "work_pending", {"rollouts": n})
    apply(state, "receipt", {"lease": "8d13709a", "admitted": n, "refused": n, "reason": "x", "tokens": n})
    apply(state, "leases_given_back", {"leases": n, "reason": "over"})
    apply(state, "drain_began", {"leases": n})
    return state


def shown(state: ViewState) -> str:
    screen = ";\n".join(line.plain for line in picture(state, Look(), 200, 60).lines)
    notices = "\n".join(notice.text for notice in state.notices)
    return f"{screen}\n{status_line(state)}\n{notices}"


@pytest.mark.parametrize("n", [0, 1, 2])
def test_views(n: int) -> None:
    for state in (learners(n), nodes(n)):
        require_words(shown(state))


def test_a_first_start_says_nothing_of_a_restart() -> None:
    told = [notice.text for notice in learners(0).notices]
    assert "training begins" in told
    assert not [one for one in told if "restart" in one]
    assert "1 rollout from before the restart is in the rollout buffer again" in [
        notice.text for notice in learners(1).notices
    ]


def test_a_learner_says_what_it_does() -> None:
    state = ViewState(role=Role.LEARNER, batch=4)
    seen = [state.activity]

    def happens(event: str, **fields: object) -> None:
        apply(state, event, fields)  # type: ignore[arg-type]
        if seen[-1] != state.activity:
            seen.append(state.activity)

    happens("child_started", child="trainer")
    happens("starting", doing="loading the model")
    happens("starting", doing="loading the checkpoint of step 93")
    assert status_line(state) == "starting: loading the checkpoint of step 93, peers 0"
    happens("incarnation_began", incarnation=2, step=93)
    happens("peer_joined", peer=ALPHA, name="")
    happens("version_published", version="2.93")
    assert status_line(state).startswith("step 93, version 2.93, ")
    happens("step", step=1)
    happens("peer_left", peer=ALPHA)
    happens("step", step=2)
    happens("peer_joined", peer=ALPHA, name="")
    happens("trainer_restarted", reason="gone")
    happens("starting", doing="loading the model")
    happens("version_published", version="2.1")
    happens("finished", steps=4)
    happens("peer_left", peer=ALPHA)
    assert seen == [
        "starting", "starting: loading the model", "starting: loading the checkpoint of step 93", "at work",
        "waiting for nodes", "at work", "loading the model again", "starting: loading the model", "at work", "finished",
    ]  # fmt: skip
    logs = ViewState(role=Role.LEARNER)
    apply(logs, "version_published", {"version": "1.0"})
    assert logs.activity == "at work", "a learner that trains on logs alone waits for no node"
    assert "buffer" not in status_line(logs)


def test_a_node_says_what_is_pending() -> None:
    state = nodes(0)
    apply(state, "work_pending", {"rollouts": 48})
    assert "48 rollouts, not yet judged" in shown(state)
    assert "leased 48" in status_line(state)


def story(path: Path, n: int) -> None:
    """A run of `n` steps with `n` peers, each with `n` rollouts admitted and as many refused, and `n` banned."""
    written = open_story(path)
    written.join(peer_row(LEARNER, "learner", role="learner", micros=400_000))
    for number in range(n):
        peer = key(number + 2).peer_id
        written.join(peer_row(peer, "atlas", micros=1000))
        written.now_s += 1
        lease, late = written.lease(peer, n), written.lease(peer, n)
        written.deliver(lease, peer, *[Rule.ADMITTED] * n, version=PolicyVersion(1, 0), tokens=1)
        written.deliver(late, peer, *[Rule.STALE] * n, version=PolicyVersion(1, 0), tokens=1)
        by_lag = {"0": {"tokens": 1, "kl": 0.1, "reward": 0.5}}
        written.train(number + 1, {lease: 1}, metrics={"loss": 0.1, "by_lag": by_lag, "diverged": 1})
        written.publish(PolicyVersion(1, number + 1))
        written.evaluate(PolicyVersion(1, number + 1), 0.5, 0.5)
        written.checkpoint(number + 1)
        written.plan(*[peer] * (number + 1), reasons=("active: the only machine supplies 50 %",))
        written.here(peer, up=1, down=1)
    for _ in range(n):
        written.ledger.training.begin_incarnation(n, written.now_ms)
    written.ledger.close()


@pytest.mark.parametrize("n", [0, 1, 2])
def test_reports_of_a_run(tmp_path: Path, n: int) -> None:
    story(tmp_path / "ledger.sqlite", n)
    load_or_create_key(tmp_path / "learner.key")
    report = swarm_report(tmp_path / "ledger.sqlite", staleness=n, with_history=True)
    text = as_text(report, width=200)
    require_words(text)
    require_words_of_page(as_html(report))
    for line in show_status(tmp_path, as_json=False).splitlines():
        require_words(line)
    assert ("No record was judged yet." in text) == (n == 0)
    if n:
        require_words(why_in_ledger(tmp_path / "ledger.sqlite", ALPHA).text)
    assert ("0.500 to 0.500" in text) == (n == 2), "a rise must be shown only between two evaluations"


@pytest.mark.parametrize("n", [0, 1, 2])
def test_reports_of_a_node(tmp_path: Path, n: int) -> None:
    receipts = Receipts(tmp_path / "receipts.sqlite")
    for number in range(n):
        verdicts = [
            Verdict(record=bytes([number, index, *[0] * 30]), index=index, rule=rule)
            for index, rule in enumerate([Rule.ADMITTED] * n + [Rule.STALE] * n)
        ]
        receipt = Receipt(
            lease=bytes([number] * 16), peer=ALPHA, version=PolicyVersion(1, 1), issued_ms=1, tokens=n,
            verdicts=verdicts, certificate=b"",
        )  # fmt: skip
        receipts.add(receipt, b"raw", engine_s=1.0)
    report = own_report(receipts, peer=ALPHA, with_history=True)
    text = as_text(report, width=200)
    require_words(text)
    require_words_of_page(as_html(report))
    require_words(why_in_receipts(receipts, ALPHA, ALPHA))
    receipts.close()
    assert ("No record was judged yet." in text) == (n == 0)


CLOCK = Clockwork(train_s=10.0, rollouts=40, staleness=2, kappa=1)


def pool(count: int, price: float) -> Pool:
    """Return so many machines, and one more, `other`."""
    machines = [Candidate(name=f"m{number}", price=price, rate=1.0) for number in range(count)]
    return Pool(CLOCK, [*machines, Candidate(name="other", price=price, rate=0.5)])


@pytest.mark.parametrize("count", [1, 2])
def test_plans(tmp_path: Path, count: int) -> None:
    path = tmp_path / "pool.toml"
    for rate in (0.01, 6):
        path.write_text(
            "[swarm]\ntrain_s = 10\nrollouts = 2\nbroadcast_s = 3\ngeneration_s = 2\n"
            f'[[machine]]\nname = "box"\nprice = 1\nrate = {rate}\ncount = {count}\n'
        )
        for staleness in (1, 3):
            require_words(plan(path, "--staleness", staleness).out)
            require_words(plan(path, "--staleness", staleness, "--broadcast-s", 40).out)


def said(count: int) -> Iterator[str]:
    yield reasons.chosen(count, 1.0, "USD")
    yield reasons.added(0.5, 30.0, count)
    yield reasons.succeeds(count, 60.0, 0.5)
    yield reasons.period(count, count + 1)
    yield reasons.period(count + 1, count)
    for price in (0.0, 1.0):
        found = pool(count, price)
        names = found.names - {"other"}
        yield reasons.active(found, names, "m0")
        yield reasons.not_enough(found.without({"other"}))
        for offered in (0.0, 0.5, 2.0):
            yield reasons.standing_by(found, names, "other", price=offered, currency="USD")


@pytest.mark.parametrize("count", [1, 2])
def test_what_a_plan_says_of_machines(count: int) -> None:
    for one in said(count):
        require_words(one)
