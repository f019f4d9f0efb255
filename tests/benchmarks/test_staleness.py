"""The study of staleness: what is drawn at which time, what is recorded, and what is concluded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.lagged.laboratory import Laboratory, Outcome, prepare
from benchmarks.lagged.picture import draw_study
from benchmarks.lagged.recipe import DEFAULT, LAGS, RATES, RECIPES, SEEDS, Cell, Recipe, fresh_cells, stale_cells
from benchmarks.lagged.record import Record
from benchmarks.lagged.sampling import draw
from benchmarks.lagged.tasks import ARITHMETIC, open_lagged
from benchmarks.lagged.verdict import best_rate, has_collapsed, loss, runs, steps_to_target
from benchmarks.staleness import judge
from node.tasks.kinds.generated import is_held_out
from node.tasks.tokenized_task import EncodedTask
from node.tasks.tokenizer import TextCodec, write_character_tokenizer

SMALL = Recipe(
    task="reverse:letters=2,alphabet=4",
    max_new_tokens=4,
    steps=6,
    prompts=2,
    group=2,
    begin=0.0,
    every=2,
    held_out=8,
    last=2,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return prepare(SMALL, 0, tmp_path_factory.mktemp("lagged") / "model")


def cell(staleness: int = 0, seed: int = 0, rate: float = RATES["reversal"][0], objective: str = DEFAULT) -> Cell:
    return Cell(recipe="reversal", objective=objective, staleness=staleness, learning_rate=rate, seed=seed)


def outcome(final: float, curve: list[float]) -> Outcome:
    return Outcome(curve=tuple((10 * at, v) for at, v in enumerate(curve)), final=final, greedy=final, steps=())


@pytest.mark.parametrize("staleness", [0, 1, 4])
def test_what_a_step_trains_on_was_drawn_exactly_so_many_steps_before(
    model: Path, staleness: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    laboratory = Laboratory(cell(staleness), SMALL, model)
    drawn_at: dict[int, int] = {}
    lags: list[tuple[int, int]] = []
    draw_batch, train = laboratory._draw, laboratory._train

    def drawing() -> object:
        batch = draw_batch()
        drawn_at[batch.indexes[0]] = laboratory.training.steps
        return batch

    def training(batch: object, lag: int) -> object:
        lags.append((laboratory.training.steps - drawn_at[batch.indexes[0]], lag))  # type: ignore[attr-defined]
        return train(batch, lag)  # type: ignore[arg-type]

    monkeypatch.setattr(laboratory, "_draw", drawing)
    monkeypatch.setattr(laboratory, "_train", training)
    laboratory.run()
    expected = [min(step, staleness) for step in range(SMALL.steps)]
    assert lags == [(lag, lag) for lag in expected]


def test_a_cell_comes_out_the_same_again(model: Path) -> None:
    first, again = (Laboratory(cell(2), SMALL, model).run() for _ in range(2))
    assert first == again
    assert [step for step, _ in first.curve] == [0, 2, 4, 6]
    assert len(first.steps) == SMALL.steps


def test_seeds_and_lags_share_their_beginning_and_nothing_else(model: Path) -> None:
    fresh, stale, other = (Laboratory(one, SMALL, model) for one in (cell(0), cell(3), cell(0, seed=1)))
    assert fresh.evaluate() == stale.evaluate()
    drawn = [laboratory._draw() for laboratory in (fresh, stale, other)]
    assert drawn[0].indexes == drawn[1].indexes
    assert [one.tokens for one in drawn[0].drawn] == [one.tokens for one in drawn[1].drawn]
    assert [one.tokens for one in drawn[0].drawn] != [one.tokens for one in drawn[2].drawn]


def test_logprobs_are_those_of_the_weights_that_drew(model: Path) -> None:
    policy = Laboratory(cell(), SMALL, model).policy
    prompts = [(5, 6, 7), (8, 9), (7, 6, 5)]
    found = draw(policy.model, prompts, 2, max_new_tokens=4, stop_ids=[2], generator=torch.Generator().manual_seed(3))
    assert len(found) == 6
    for number, one in enumerate(found):
        sequence = torch.tensor([[*prompts[number // 2], *one.tokens]])
        with torch.no_grad():
            logits = policy.model(input_ids=sequence).logits[0].float()
        start = len(prompts[number // 2])
        expected = torch.log_softmax(logits[start - 1 : -1], dim=-1).gather(1, torch.tensor(one.tokens)[:, None])
        assert one.logprobs.tolist() == pytest.approx(expected.squeeze(1).tolist(), abs=1e-5)
        assert 2 not in one.tokens[:-1], "nothing comes after a stop id"


def test_arithmetic_is_held_out_by_its_text() -> None:
    task = open_lagged(ARITHMETIC, 3)
    training, held_out = task.problem(5), task.held_out(5)
    assert isinstance(training.prompt, str)
    assert isinstance(held_out.prompt, str)
    assert (is_held_out(training.prompt), is_held_out(held_out.prompt)) == (False, True)
    left, right = held_out.prompt.removeprefix("Calculate ").removesuffix(".").split(" + ")
    assert held_out.answer == str(int(left) + int(right))


@pytest.mark.parametrize("name", RECIPES)
def test_the_alphabet_of_a_recipe_spells_its_problems(name: str, tmp_path: Path) -> None:
    recipe = RECIPES[name]
    write_character_tokenizer(tmp_path, *([recipe.alphabet] if recipe.alphabet else []))
    encoded = EncodedTask(task=open_lagged(recipe.task, 0), codec=TextCodec.load(tmp_path))
    for index in range(200):  # an unknown character in a prompt would raise
        assert len(encoded.answer(index)) <= recipe.max_new_tokens
        assert encoded.reward(index, encoded.answer(index)) == 1.0


def test_a_line_that_a_kill_cut_off_is_run_again(tmp_path: Path) -> None:
    record = Record(path=tmp_path / "study.jsonl")
    assert record.read() == {}
    record.add(cell(seed=1), outcome(0.5, [0.1, 0.5]))
    record.add(cell(seed=2), outcome(0.6, [0.1, 0.6]))
    record.path.write_bytes(record.path.read_bytes()[:-7])
    assert list(record.read()) == [cell(seed=1)]
    record.add(cell(seed=2), outcome(0.6, [0.1, 0.6]))
    assert record.read() == {cell(seed=1): outcome(0.5, [0.1, 0.5]), cell(seed=2): outcome(0.6, [0.1, 0.6])}


def test_a_cell_of_another_recipe_is_run_again(tmp_path: Path) -> None:
    record = Record(path=tmp_path / "study.jsonl")
    record.add(cell(), outcome(0.5, [0.5]))
    row = json.loads(record.path.read_text(encoding="utf-8"))
    row["recipe"]["steps"] += 1
    record.path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    assert record.read() == {}


def test_losses_are_paired_and_bounded() -> None:
    fresh = {seed: outcome(0.9 + seed / 100, []) for seed in range(4)}
    worse = {seed: outcome(0.88 + seed / 100, []) for seed in range(4)}
    found = loss(fresh, worse)
    assert found is not None
    assert (found.mean, found.bound, found.seeds) == (pytest.approx(2.0), pytest.approx(2.0), 4)
    uneven = loss(fresh, {0: outcome(0.9, []), 1: outcome(0.87, []), 9: outcome(0.1, [])})
    assert uneven is not None
    assert (uneven.mean, uneven.seeds) == (pytest.approx(2.0), 2), "only seeds of both runs must count"
    # Two differences, 0 and 4: deviation 2.83, t of one degree of freedom at 95 % is 6.31.
    assert uneven.bound == pytest.approx(2.0 + 6.314 * 2.0, abs=0.01)
    assert loss(fresh, {0: outcome(0.9, [])}) is None


def test_a_collapse_is_an_end_far_below_the_best() -> None:
    assert has_collapsed(outcome(0.3, [0.2, 0.9, 0.3]))
    assert not has_collapsed(outcome(0.85, [0.2, 0.9, 0.85]))
    assert not has_collapsed(outcome(0.2, [0.2, 0.2])), "a run that never rose has not collapsed"
    assert has_collapsed(outcome(0.0, [0.2, 0.1, 0.0])), "a run that lost its gain has collapsed"


def test_steps_to_the_target_lie_between_evaluations() -> None:
    assert steps_to_target([outcome(0.9, [0.2, 0.6, 1.0])]) == pytest.approx(15.0)
    assert steps_to_target([outcome(0.5, [0.2, 0.5]), outcome(0.5, [0.2, 0.5]), outcome(0.9, [0.9])]) is None
    assert steps_to_target([]) is None


def study(finals: dict[int, float], *, collapsed: bool = False) -> dict[Cell, Outcome]:
    """All cells of a study whose default ends at `finals` by S, and everything else at 0.5."""
    records = {one: outcome(0.5, [0.2, 0.5]) for recipe in RECIPES for one in fresh_cells(recipe)}
    records |= {one: outcome(0.5, [0.2, 0.5]) for recipe in RECIPES for one in stale_cells(recipe, RATES[recipe][2])}
    for one in list(records):
        if one.objective == DEFAULT and one.learning_rate == RATES[one.recipe][2] and not one.constant:
            end = finals[one.staleness] + SEEDS.index(one.seed) / 1000
            fell = collapsed and one.staleness == 3 and one.seed == SEEDS[4]
            records[one] = outcome(end, [0.2, 0.9, 0.1] if fell else [0.2, end])
            if fell:
                records[one] = outcome(0.1, [0.2, 0.9, 0.1])
    return records


GOOD = {0: 0.95, 1: 0.95, 3: 0.945, 6: 0.94, 11: 0.92}


def test_a_study_that_holds() -> None:
    bars, figures = judge(study(GOOD), list(RECIPES))
    assert {bar.name: bar.met for bar in bars} == dict.fromkeys(
        ("loss_s6_bound", "loss_s11_bound", "collapses", "steps_to_08_s6"), True
    )
    assert figures["reversal_loss_s6"] == pytest.approx(1.0)
    assert best_rate(study(GOOD), "reversal") == RATES["reversal"][2]


@pytest.mark.parametrize(
    ("records", "missed"),
    [
        (study({**GOOD, 6: 0.92}), {"loss_s6_bound"}),
        (study({**GOOD, 11: 0.9}), {"loss_s11_bound"}),
        (study(GOOD, collapsed=True), {"collapses"}),
        (study({**GOOD, 6: 0.75}), {"loss_s6_bound", "steps_to_08_s6"}),
        ({one: o for one, o in study(GOOD).items() if (one.staleness, one.seed) != (11, SEEDS[7])}, {"loss_s11_bound"}),
    ],
)
def test_a_study_that_does_not(records: dict[Cell, Outcome], missed: set[str]) -> None:
    bars, _ = judge(records, list(RECIPES))
    assert {bar.name for bar in bars if not bar.met} == missed


def test_every_seed_counts_at_every_lag() -> None:
    records = study(GOOD)
    for staleness in LAGS:
        assert len(runs(records, "arithmetic", DEFAULT, staleness, RATES["arithmetic"][2])) == len(SEEDS)


def test_the_picture(tmp_path: Path) -> None:
    draw_study(study(GOOD), list(RECIPES), tmp_path / "staleness.png")
    assert (tmp_path / "staleness.png").read_bytes().startswith(b"\x89PNG")
