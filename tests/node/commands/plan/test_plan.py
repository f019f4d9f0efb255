"""`volery plan` through the command line: its figures, its forms, and how it ends."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from node.commands.plan.command import answer
from node.commands.plan.text import as_terminal, as_text
from tests.support.plan_calls import EXAMPLES, TIMES, plan, planned, refusal

PAPER = ("--train-s", 1631.2, "--rollouts", 2048, "--broadcast-s", 1437)


@pytest.fixture
def nine_tenths(tmp_path: Path) -> Path:
    """Machines alike, as in the paper's main runs: RTX 5090 at 0.35 an hour."""
    path = tmp_path / "5090.csv"
    path.write_text("name,price,rate,count\nrtx5090,0.35,0.1,40\n")
    return path


def test_the_worked_table(nine_tenths: Path) -> None:
    """ECHO-2's own figures, and ours beside them."""
    windows = planned(nine_tenths, *PAPER, "--compare-echo2")["windows"]
    for staleness, kappa, over in ((3, 2, 1.787), (4, 3, 1.416), (6, 5, 1.214), (11, 10, 1.097)):
        paper, ours = windows[staleness]["paper"], windows[staleness]["ours"]
        assert paper["kappa"] == kappa
        assert paper["outcome"]["over_balance"] == pytest.approx(over, abs=5e-4)
        assert paper["outcome"]["lag_bound"] == staleness
        assert ours["over_balance"] == pytest.approx(1)
    assert (windows[3]["paper"]["outcome"]["machines"], windows[3]["ours"]["machines"]) == (
        {"rtx5090": 25},
        {"rtx5090": 14},
    )


def test_the_worked_table_is_printed(nine_tenths: Path) -> None:
    text = plan(nine_tenths, *PAPER, "--compare-echo2").out
    rows = {row.split()[0]: row.split() for row in text.splitlines() if re.match(r"^ *>?\d+ ", row)}
    assert [(s, rows[s][1], rows[s][5], rows[s][8]) for s in ("3", "4", "6", "11")] == [
        ("3", "1.000", "1.787", "3"),
        ("4", "1.000", "1.416", "4"),
        ("6", "1.000", "1.214", "6"),
        ("11", "1.000", "1.097", "11"),
    ]
    assert "It chooses 11 machines more, 79% more capacity: +3.85 USD an hour, +1.74 USD a step." in " ".join(
        text.split()
    )


def test_the_paper_s_rule_is_left_out_where_nobody_asks_for_it(nine_tenths: Path) -> None:
    found, compared = planned(nine_tenths, *PAPER), planned(nine_tenths, *PAPER, "--compare-echo2")
    assert compared.pop("greedy")["machines"] == {"rtx5090": 14}
    assert [window.pop("paper") is None for window in compared["windows"]] == [True] + [False] * 11
    assert found == compared
    text = plan(nine_tenths, *PAPER).out
    assert "paper" not in text
    assert "greedy" not in text


def test_costs_add_up_by_hand() -> None:
    found = planned(EXAMPLES / "pool.csv", *TIMES, "--learner-price", 3.06)
    ours = found["windows"][3]["ours"]
    prices = {row["name"]: row["price"] for row in found["pool"]}
    rates = {row["name"]: row["rate"] for row in found["pool"]}
    assert ours["price"] == pytest.approx(3.06 + sum(n * prices[name] for name, n in ours["machines"].items()))
    assert ours["rate"] == pytest.approx(sum(n * rates[name] for name, n in ours["machines"].items()))
    assert ours["cost_per_step"] == pytest.approx(ours["price"] * ours["period_s"] / 3600)
    assert ours["rate"] >= 1.05 * 256 / 60 * (1 - 1e-6)
    turns = found["windows"][0]["ours"]
    assert turns["period_s"] > ours["period_s"] == pytest.approx(60)
    assert turns["lag"] == 0


def test_one_file_may_hold_everything_and_the_command_line_wins() -> None:
    assert planned(EXAMPLES / "pool.toml")["terms"]["train_s"] == 60
    found = planned(EXAMPLES / "pool.toml", "--train-s", 120, "--staleness", 4, "--kappa", 2, "--max-staleness", 5)
    assert (found["terms"]["train_s"], found["staleness"], found["terms"]["kappa"]) == (120, 4, 2)
    assert [window["staleness"] for window in found["windows"]] == [0, 1, 2, 3, 4, 5]
    assert found["windows"][4]["ours"]["kappa"] == 2


def test_the_table_reaches_as_far_as_the_window_asked_for() -> None:
    assert planned(EXAMPLES / "pool.toml", "--staleness", 14, "--max-staleness", 2)["windows"][-1]["staleness"] == 14


def test_text_fits_a_hundred_columns_and_is_the_same_each_time() -> None:
    for more in (
        (),
        ("--compare-echo2",),
        ("--staleness", 1, "--compare-echo2"),
        ("--staleness", 1),
        ("--staleness", 0),
        ("--broadcast-s", 500),
    ):
        one, two = plan(EXAMPLES / "pool.toml", *more), plan(EXAMPLES / "pool.toml", *more)
        assert one.out == two.out
        assert max(map(len, one.out.splitlines())) <= 100
        assert one.out.endswith("\n")
        assert "inf" not in re.findall(r"[a-z]+", one.out)
        assert "nan" not in re.findall(r"[a-z]+", one.out)


def test_a_terminal_shows_the_same_in_colours() -> None:
    made = answer(EXAMPLES / "pool.toml", None, {})
    terminal, text = as_terminal(made, width=100), as_text(made)
    assert "\x1b[1m" in terminal

    def cells(shown: str) -> list[str]:
        return [word for word in re.sub(r"\x1b\[[0-9;]*m", "", shown).split() if not re.fullmatch("[-─]{2,}", word)]

    assert cells(terminal) == cells(text)


def test_a_pool_that_is_too_small_says_what_would_do_and_ends_with_1(tmp_path: Path) -> None:
    near = (EXAMPLES / "pool.toml", "--weights-mb", 480, "--staleness", 1)
    outcome = plan(*near, "--picture", tmp_path / "plan.png")
    assert (outcome.code, outcome.err) == (1, "")
    text = " ".join(outcome.out.split())
    assert "infeasible all machines together give 40.1% of the rate that the strictest condition needs" in text
    assert "R = 102; T_train = 73.29 s; T_bcast = 17.82 s" in text
    assert "S = 2" in text
    assert (tmp_path / "plan.png").exists(), "the plan must not be lost"
    for more in (("--rollouts", 102), ("--train-s", 73.3), ("--staleness", 2)):
        assert plan(*near, *more).code == 0


def test_machines_too_late_for_a_window_are_told_when_they_had_to_come() -> None:
    outcome = plan(EXAMPLES / "pool.toml", "--staleness", 1)
    assert outcome.code == 1
    text = " ".join(outcome.out.split())
    assert "the first rollouts of a version come 69.2 s after it or later" in text
    assert "is due after 60 s" in text


def test_versions_that_overtake_each_other_are_told_to(tmp_path: Path) -> None:
    outcome = plan(EXAMPLES / "pool.toml", "--broadcast-s", 200)
    assert outcome.code == 1
    assert "versions would overtake each other: sending one takes 200 s" in " ".join(outcome.out.split())


def test_nothing_is_lost_of_the_other_windows_when_one_is_infeasible() -> None:
    found = planned(EXAMPLES / "pool.toml", "--weights-mb", 480, "--staleness", 1, code=1)
    assert found["feasible"] is False
    assert found["changes"] == []
    assert found["remedies"]["staleness"] == 2
    assert found["windows"][1]["ours"]["share"] == pytest.approx(0.401, abs=5e-4)
    assert found["windows"][1]["everyone"]["bubble"] > 0
    assert found["windows"][2]["ours"]["kappa"] == 1


def of_alike(tmp_path: Path, rate: float) -> Path:
    """Two machines alike, for R / T_train = 10 a second."""
    path = tmp_path / "pool.toml"
    path.write_text(
        "[swarm]\ntrain_s = 10\nrollouts = 100\nbroadcast_s = 3\ngeneration_s = 2\n"
        f'[[machine]]\nname = "box"\nprice = 1\nrate = {rate}\ncount = 2\n'
    )
    return path


def test_a_period_that_was_given_is_the_one_that_waits(tmp_path: Path) -> None:
    outcome = plan(of_alike(tmp_path, 6), "--kappa", 2, "--staleness", 2)
    text = " ".join(outcome.out.split())
    assert outcome.code == 1
    assert "all machines together give 57.1% of the rate that the strictest condition needs" in text
    assert "the learner waits 14.3% of its time, and a step takes 11.7 s" in text
    assert plan(of_alike(tmp_path, 6), "--kappa", 1, "--staleness", 2).code == 0


def test_machines_that_lack_the_reserve_alone_are_said_to(tmp_path: Path) -> None:
    text = " ".join(plan(of_alike(tmp_path, 5.1), "--staleness", 3).out.split())
    assert "all machines together give 97.1%" in text
    assert "the learner waits 0.0% of its time" in text
    assert "only the reserve of 1.05 times the needed rate is missing" in text
    assert "reserve of" not in " ".join(plan(of_alike(tmp_path, 4), "--staleness", 3).out.split())


def test_volunteers_alone_cost_nothing_and_divide_nothing_by_it(tmp_path: Path) -> None:
    path = tmp_path / "free.csv"
    path.write_text("name,price,rate,count\nvolunteer,0,0.5,20\n")
    outcome = plan(path, *TIMES, "--picture", tmp_path / "free.png")
    assert outcome.code == 0
    assert "All prices are 0" in outcome.out
    found = planned(path, *TIMES)
    assert found["windows"][3]["ours"]["machines"] == {"volunteer": 9}
    assert found["windows"][3]["ours"]["cost_per_step"] == 0
    assert (tmp_path / "free.png").exists()


def test_turns_are_feasible_and_have_no_paper_beside_them() -> None:
    found = planned(EXAMPLES / "pool.toml", "--staleness", 0, "--compare-echo2")
    assert found["feasible"] is True
    assert found["windows"][0]["paper"] is None
    assert found["changes"] == []


def test_what_would_change_is_told_of_the_machine_s_kind() -> None:
    found = planned(EXAMPLES / "pool.toml")
    changes = found["changes"]
    assert [(one["what"], one["machine"]) for one in changes] == [
        ("one machine more", "volunteer, cable"),
        ("one machine less", "rtx5090"),
        ("half the T_bcast", None),
        ("S = 4", None),
    ]
    asked = next(one["ours"] for one in found["windows"] if one["staleness"] == 3)
    assert changes[1]["outcome"]["rate"] == pytest.approx(asked["rate"] - 0.27)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--train-s", -1), ["--train-s", "train_s = -1", "above 0"]),
        (("--train-s", "nan"), ["--train-s", "finite"]),
        (("--broadcast-s", "inf"), ["--broadcast-s", "finite"]),
        (("--rollouts", 0), ["--rollouts", "1 or more"]),
        (("--staleness", 5000), ["--staleness", "at most 100."]),
        (("--margin", 0.5), ["--margin", "1 or more"]),
        (("--kappa", 0), ["--kappa"]),
        (("--staleness", 101), ["--staleness", "staleness = 101", "at most 100."]),
        (("--train-s", 1e-300), ["6.9e+301 training steps"]),
        (("--broadcast-s", 30, "--weights-mb", 100), ["only one of them"]),
    ],
)
def test_a_wrong_option_is_named(tmp_path: Path, arguments: tuple[object, ...], words: list[str]) -> None:
    said = refusal(EXAMPLES / "pool.toml", *arguments, "--picture", tmp_path / "plan.png")
    for word in words:
        assert word in said
    assert list(tmp_path.iterdir()) == []


def test_a_picture_must_end_in_png(tmp_path: Path) -> None:
    path = tmp_path / "pool.toml"
    path.write_text((EXAMPLES / "pool.toml").read_text())
    before = path.read_bytes()
    assert "must end in .png" in refusal(path, "--picture", path)
    assert path.read_bytes() == before


def test_without_a_pool_there_is_nothing_to_plan() -> None:
    assert "There is no pool" in refusal(*TIMES)


def test_a_wide_table_of_a_large_pool(tmp_path: Path) -> None:
    path = tmp_path / "large.csv"
    rows = [f"kind {i},{0.1 + 0.02 * (i * 37 % 50):.3f},{0.05 + 0.007 * i:.3f},4" for i in range(50)]
    path.write_text("\n".join(["name,price,rate,count", *rows, "a" * 64 + ",1,1,1"]))
    outcome = plan(path, "--train-s", 60, "--rollouts", 900, "--broadcast-s", 45, "--generation-s", 30)
    assert outcome.code == 0
    assert "more kinds are left out" in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 100


def test_figures_are_never_cut_short(tmp_path: Path) -> None:
    """Names give way where a table is too wide."""
    path = tmp_path / "pool.csv"
    name = "a machine with a name"
    path.write_text(f"name,price,rate,count,generation_s\n{name},12345.67,0.0123,999,1234.5\n")
    out = plan(path, "--train-s", 9876.5, "--rollouts", 1, "--broadcast-s", 5432.1, "--learner-price", 99999).out
    assert max(map(len, out.splitlines())) <= 100
    assert "…" not in out
    assert "T_gen" in out


def test_machines_that_are_all_different_are_counted_and_listed_below(tmp_path: Path) -> None:
    path = tmp_path / "pool.csv"
    path.write_text("\n".join(["name,price,rate", *(f"box {i},1,1" for i in range(20))]))
    assert "9 machines, listed below, for 9 a second" in plan(path, *TIMES, "--rollouts", 512).out
