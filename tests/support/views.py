"""Make views of a learner and a node that have been at work, for tests of what is shown."""

from __future__ import annotations

from node.energy.machine_load import Load
from node.reports.model.report import Role
from node.ui.live_view import ViewState
from node.ui.view_updates import apply
from protocol.core.ids import PeerId
from tests.support.ledgers import ALPHA, LEARNER

ADVICE = "Lower the learning rate, or raise the temperature, and look at samples of the last versions."


def busy_learner(num_peers: int = 30, steps: int = 75) -> ViewState:
    """Return a learner of 600 steps after `steps` of two seconds each, with an alarm and peers with all kinds of
    names."""
    state = ViewState(role=Role.LEARNER, title="words", batch=256, steps=600, staleness=2, me=LEARNER)
    apply(state, "incarnation_began", {"incarnation": 1, "step": 0})
    peers = [PeerId(f"12D3KooW{number:06}") for number in range(num_peers)]
    for number, peer in enumerate(peers):
        apply(state, "peer_joined", {"peer": peer, "name": f"node-{number}" if number % 7 else "機械機械機械機械"})
    for step in range(1, steps + 1):
        state.tick(2.0 * step)
        for number, peer in enumerate(peers):
            told = {"peer": peer, "admitted": 16, "refused": int(number % 3 == 0), "lag": number % 3, "tokens": 1120}
            if (step + number) % 10 == 0:
                apply(state, "delivery_judged", {**told, "lease": "8d13", "reason": "stale", "detail": "lag 3"})
        apply(
            state,
            "step",
            {
                "step": step, "buffered": 64, "reward": 0.2 + step / 200, "entropy": 1.0 - step / 200,
                "mismatch_kl": 0.004, "ess": 0.93, "clip_share": 0.02, "kl_by_lag": "0: 0.0001, 2: 0.01",
                "utilisation": 0.52, "waiting": 0.3, "blocked": 0.1,
            },
        )  # fmt: skip
    apply(state, "version_published", {"version": f"1.{steps}"})
    apply(state, "evaluated", {"version": f"1.{steps}", "greedy": 0.75, "sampled": 0.5, "pass_8": 0.9})
    apply(state, "alarm_raised", {"alarm": "entropy_falls", "step": steps, "text": f"The entropy falls. {ADVICE}"})
    return state


def busy_node() -> ViewState:
    """Return a node that has worked for a while, in this start and before."""
    state = ViewState(role=Role.ROLLOUT, title="words", me=ALPHA)
    apply(state, "engine_chosen", {"engine": "transformers", "why": "there is no NVIDIA GPU here"})
    apply(state, "receipts_opened", {"admitted": 25_000, "rejected": 1})
    apply(state, "session_began", {"worked_s": 10_700.0, "trained": 19_000, "per_hour": 0.08, "currency": "EUR"})
    apply(state, "joined", {"learner": LEARNER, "staleness": 2, "newest": "1.36"})
    apply(state, "version_installed", {"version": "1.35", "seconds": 0.2})
    apply(state, "speed_measured", {"tokens_per_s": 51.3})
    for second in range(101):
        state.tick(float(second))
        refused = {"refused": int(second % 9 == 0), "reason": "stale", "detail": "lag 3"}
        apply(state, "receipt", {"lease": "aa", "admitted": 10, "tokens": 900, **refused})
    apply(state, "proofs_kept", {"records": 500, "credit_notes": 0})
    state.load = Load(cpu=0.93, cores=2, memory_bytes=3 << 30, all_memory_bytes=8 << 30)
    apply(state, "reputation_told", {"band": "good", "score": 0.931})
    apply(state, "rank_told", {"place": 3, "peers": 12, "admitted": 26_010, "admitted_by_all": 321_000})
    return state
