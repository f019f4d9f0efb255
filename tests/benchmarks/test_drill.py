"""How runs of the drill become bars."""

from __future__ import annotations

from collections import Counter

from benchmarks.drill import CLEAN, EARLY, FEW, MANY, POISONED, Played, Scene, verdict
from benchmarks.drills.lifetimes import Lives
from node.commands.drill.attacks import Attack
from node.commands.drill.results import Key, Outcome
from protocol.core.ids import PeerId

NOBODY = Lives(peer_days=1000, audits=1, failed=0, choices=1, banned=0)


def key(*, attack: Attack | None = None, trained_late: int = 0, banned: str = "") -> Key:
    return Key(
        peer=PeerId("k"),
        attack=attack,
        made=400,
        rejected=Counter(),
        trained=400,
        trained_late=trained_late,
        rejected_after=None,
        failed_after=None,
        banned_after=None,
        banned=banned,
    )


def played(
    scene: Scene,
    repetition: int = 0,
    *,
    late: int = 0,
    greedy: float = 1.0,
    sampled: float = 0.8,
    poisoned: float = 0.0,
    banned: bool = False,
) -> Played:
    keys = (key(banned="an audit" if banned else ""), key(attack=Attack.BEST_VERSION, trained_late=late))
    outcome = Outcome(keys=keys, trained=1000, greedy=greedy, sampled=sampled)
    return Played(scene=scene, repetition=repetition, outcome=outcome, poisoned=poisoned, seconds=1.0)


def bars(*runs: Played, honest: Lives = NOBODY) -> dict[str, float | None]:
    return {bar.name: bar.value for bar in verdict(runs, [honest])}


def test_of_what_cheats_made_the_median_over_the_seeds_counts_of_the_worse_share_of_cheats() -> None:
    few = [played(FEW, repetition, late=late) for repetition, late in enumerate((1, 2, 30))]
    many = [played(MANY, repetition, late=late) for repetition, late in enumerate((4, 9, 8))]
    assert bars(*few, *many)["cheater_share_pct"] == 0.8


def test_a_policy_is_compared_with_that_of_its_own_seed() -> None:
    clean = [played(CLEAN, repetition, sampled=sampled) for repetition, sampled in enumerate((0.7, 0.8, 0.9))]
    attacked = [played(MANY, repetition, sampled=sampled) for repetition, sampled in enumerate((0.69, 0.79, 0.5))]
    found = bars(*clean, *attacked)["eval_loss_points"]
    assert found is not None
    assert round(found, 6) == 1.0


def test_the_worst_counts_of_greedy_and_sampled_and_of_both_shares_of_cheats() -> None:
    runs = [played(CLEAN), played(FEW, greedy=0.95), played(MANY, sampled=0.79)]
    found = bars(*runs)["eval_loss_points"]
    assert found is not None
    assert round(found, 6) == 5.0


def test_a_policy_that_is_better_beside_cheats_has_lost_nothing() -> None:
    assert bars(played(CLEAN), played(MANY, sampled=0.9, greedy=1.0))["eval_loss_points"] == 0.0


def test_one_honest_ban_counts_in_whatever_run() -> None:
    assert bars(*(played(CLEAN, repetition, banned=repetition == 2) for repetition in range(3)))["honest_bans"] == 1
    lives = Lives(peer_days=1000, audits=1, failed=0, choices=1, banned=2)
    assert bars(played(CLEAN), honest=lives)["honest_bans"] == 2


def test_what_was_not_run_is_not_known() -> None:
    found = bars(played(POISONED, poisoned=0.03))
    assert found["poison_success_pct"] == 3.0
    assert found["cheater_share_pct"] is None
    assert found["eval_loss_points"] is None


def test_of_the_first_steps_all_that_cheats_made_counts() -> None:
    assert bars(*(played(EARLY, repetition) for repetition in range(3)))["early_false_pct"] == 40.0
    assert bars(played(CLEAN))["early_false_pct"] is None
