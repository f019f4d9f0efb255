"""Task, curriculum and held-out prompts together, in tokens."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import AddedToken, Tokenizer

from learner.curriculum.difficulty_levels import MASTERED, WINDOW
from learner.rollouts.environment import Answered, Ended, EpisodeLimits
from node.config.swarm_config import (
    LearnSection,
    MixtureTask,
    ModelSection,
    SwarmConfig,
    SwarmSection,
    TaskSection,
    VerifiersSection,
)
from node.tasks.api.interface import TaskError
from node.tasks.task_suite import TaskSuite, answers_note, episode_limits, open_task_suite, what_changed
from node.tasks.tokenizer import DEMO_ALPHABET, TextCodec, write_character_tokenizer


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    write_character_tokenizer(tmp_path / "model")
    return tmp_path


def open_suite(
    base: Path,
    spec: str | list[MixtureTask] = "reverse:letters=4",
    *,
    held_out: int = 8,
    seed: int = 0,
    max_new_tokens: int = 512,
) -> TaskSuite:
    task = TaskSection(spec=spec) if isinstance(spec, str) else TaskSection(mixture=spec)
    config = SwarmConfig(
        swarm=SwarmSection(name="n"),
        model=ModelSection(directory=str(base / "model")),
        task=msgspec.structs.replace(task, held_out=held_out),
        learn=LearnSection(steps=1, seed=seed, max_new_tokens=max_new_tokens),
    )
    return open_task_suite(config, base)


def text(base: Path, tokens: tuple[int, ...]) -> str:
    return TextCodec.load(base / "model").decode(tokens)


@pytest.mark.parametrize(
    ("asked", "positions", "limit"), [(None, 64, 64), (None, None, 131_072), (40, 64, 40), (None, 1 << 20, 131_072)]
)
def test_an_episode_goes_no_further_than_the_model(asked: int | None, positions: int | None, limit: int) -> None:
    learn = LearnSection(steps=1, max_turns=5, max_episode_tokens=asked, max_new_tokens=7)
    assert episode_limits(learn, positions) == EpisodeLimits(turns=5, tokens=limit, turn_tokens=7)


def write_config(base: Path, **config: object) -> None:
    (base / "model" / "config.json").write_text(json.dumps(config))


def test_a_run_that_goes_beyond_gpt2s_positions_is_refused(base: Path) -> None:
    write_config(base, model_type="gpt2", n_positions=24, vocab_size=64)
    open_suite(base, max_new_tokens=4)
    with pytest.raises(TaskError, match=r"max_new_tokens = 40 are more than the 24 that the model"):
        open_suite(base, max_new_tokens=40)


def test_a_run_that_goes_beyond_longropes_first_factors_is_told_why(base: Path) -> None:
    rope = {"type": "longrope", "short_factor": [1.0], "long_factor": [4.0]}
    sizes = {"max_position_embeddings": 4096, "original_max_position_embeddings": 24, "vocab_size": 64}
    write_config(base, model_type="phi3", rope_scaling=rope, **sizes)
    open_suite(base, max_new_tokens=4)
    with pytest.raises(
        TaskError, match=r"more than the 24 .*Beyond 24 tokens .*LongRoPE.*write the values of long_factor"
    ):
        open_suite(base, max_new_tokens=30)
    write_config(base, model_type="phi3", rope_scaling={**rope, "short_factor": [4.0]}, **sizes)
    open_suite(base, max_new_tokens=30)


def test_a_template_beyond_the_embedding_is_refused_at_the_start(base: Path) -> None:
    """A tokenizer with 65 ids for an embedding of 64 rows."""
    file = base / "model" / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_special_tokens([AddedToken("<|asks|>", special=True, normalized=False)])
    tokenizer.save(str(file))
    (base / "model" / "chat_template.jinja").write_text("<|asks|>{{ messages[0].content }}")
    (base / "t.jsonl").write_text(
        "".join(json.dumps({"prompt": f"say {n}", "answer": str(n)}) + "\n" for n in range(9))
    )
    write_config(base, vocab_size=65)
    open_suite(base, "jsonl:t.jsonl:chat=always", held_out=0)
    write_config(base, vocab_size=64)
    open_suite(base, "jsonl:t.jsonl:chat=never", held_out=0)
    with pytest.raises(TaskError, match="as token id 64, and the model's embedding has 64 rows") as caught:
        open_suite(base, "jsonl:t.jsonl:chat=always", held_out=0)
    assert "[task] spec" in str(caught.value)


def test_more_than_the_model_takes_is_refused() -> None:
    with pytest.raises(TaskError, match="max_episode_tokens = 65 is more than the 64 positions of the model"):
        episode_limits(LearnSection(steps=1, max_episode_tokens=65), 64)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("revers", r"^\[task\] spec: there is no task 'revers' \(did you mean 'reverse'\?\)\."),
        ("reverse:letters=0", r"^\[task\] spec: task 'reverse': letters=0: must lie in"),
        ("jsonl:none.jsonl", r"^\[task\] spec: .*none\.jsonl"),
        ([MixtureTask(spec="sort"), MixtureTask(spec="revers")], r"^\[task\] mixture\[1\]\.spec: there is no task"),
    ],
)
def test_a_mistake_in_a_task_is_told_with_its_key(base: Path, spec: str | list[MixtureTask], says: str) -> None:
    with pytest.raises(TaskError, match=says):
        open_suite(base, spec)


@pytest.mark.parametrize(
    ("section", "keys", "spec", "cure", "says"),
    [
        ("curriculum", {"order": "easy_first"}, "sort", "jsonl:few.jsonl", "no task here is finite"),
        ("curriculum", {"min_pass_rate": 0.25}, "sort", "jsonl:few.jsonl", "no task here is finite"),
        ("learn", {"max_turns": 4}, "jsonl:few.jsonl", "guess", "no task here has several turns"),
    ],
)
def test_a_key_that_no_task_heeds_is_refused(
    base: Path, section: str, keys: dict[str, object], spec: str, cure: str, says: str
) -> None:
    (base / "few.jsonl").write_text("\n".join(json.dumps({"prompt": f"{n}", "answer": "b"}) for n in range(20)))
    config = SwarmConfig(
        swarm=SwarmSection(name="n"),
        model=ModelSection(directory=str(base / "model")),
        task=TaskSection(spec=spec),
        learn=LearnSection(steps=1, max_new_tokens=8),
    )
    changed = msgspec.structs.replace(getattr(config, section), **keys)
    config = msgspec.structs.replace(config, **{section: changed})
    with pytest.raises(TaskError, match=rf"^\[{section}\] {next(iter(keys))} = .* would do nothing: {says}"):
        open_task_suite(config, base)
    both = TaskSection(mixture=[MixtureTask(spec=spec), MixtureTask(spec=cure)])
    open_task_suite(msgspec.structs.replace(config, task=both), base)


def test_prompts_without_room_for_an_answer_are_never_leased(base: Path) -> None:
    lines = [{"prompt": "a" * (4 + 60 * (number % 3 == 0)) + str(number), "answer": "b"} for number in range(90)]
    (base / "long.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (base / "model" / "config.json").write_text('{"max_position_embeddings": 64}')
    suite = open_suite(base, "jsonl:long.jsonl:held_out=0.3", max_new_tokens=8)
    told: list[str] = []
    suite.troubles.subscribe(told.append)
    assert max(len(suite.next_prompt().tokens) for _ in range(40)) < 10
    assert 0 < len(suite.held_out) < 27
    assert max(len(one.prompt) for one in suite.held_out) < 10
    assert told == [
        "task jsonl: a prompt of 66 tokens and [learn] max_new_tokens = 8 are more than the 64 that the model, or "
        "max_episode_tokens, allows; such prompts are passed over"
    ]


@pytest.mark.parametrize("bad", [3, 80])
def test_prompts_that_cannot_be_asked_are_passed_over(base: Path, bad: int) -> None:
    """One line of many would end a run that is days old, and every start after that at the same place."""
    lines = [{"prompt": f"{number}=", "answer": "b"} for number in range(90)]
    lines[bad]["prompt"] = lines[bad + 1]["prompt"] = "\N{SNOWMAN}="
    (base / "one.jsonl").write_text("\n".join(map(json.dumps, lines)))
    suite = open_suite(base, "jsonl:one.jsonl:held_out=0")
    told: list[str] = []
    suite.troubles.subscribe(told.append)
    assert len({suite.next_prompt().tokens for _ in range(88)}) == 88
    [said] = told
    assert said.startswith("task jsonl: ")
    assert "has no token for '\N{SNOWMAN}' in '\N{SNOWMAN}='" in said
    assert said.endswith("; such prompts are passed over")


def test_a_task_of_which_no_prompt_can_be_asked_is_refused(base: Path) -> None:
    (base / "none.jsonl").write_text("\n".join(json.dumps({"prompt": "\N{SNOWMAN}", "answer": "b"}) for _ in range(9)))
    with pytest.raises(TaskError, match="no token for '\N{SNOWMAN}'"):
        open_suite(base, "jsonl:none.jsonl:held_out=0")


def test_a_task_whose_answers_the_model_cannot_write_is_refused(base: Path) -> None:
    lines = [{"prompt": f"cap:{number}=", "answer": "ZIJOJU"} for number in range(9)]
    (base / "loud.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(TaskError) as caught:
        open_suite(base, "jsonl:loud.jsonl:held_out=0")
    assert str(caught.value) == (
        f"[task] spec: task jsonl: {base / 'model'}: its tokenizer has no token for 'Z' in 'ZIJOJU' (its characters: "
        f"{DEMO_ALPHABET!r}). The model can write none of the 64 reference answers that were checked. Change the "
        "answers, or use a model that can write them."
    )


def test_answers_that_the_model_cannot_write_are_a_note(base: Path) -> None:
    lines = [{"prompt": f"{number:02}=", "answer": "B" if number % 4 == 0 else "b"} for number in range(64)]
    (base / "some.jsonl").write_text("\n".join(map(json.dumps, lines)))
    [note] = [
        note for name, note in open_suite(base, "jsonl:some.jsonl:held_out=0").notes
        if name == "jsonl" and "reference answers" in note
    ]  # fmt: skip
    assert note.startswith("the model cannot write 25% of the 64 reference answers that were checked, so these")
    assert "no token for 'B' in 'B'" in note


def test_problems_without_an_answer_are_no_part_of_the_share() -> None:
    assert answers_note("mine", [None, ""]) == ""
    assert answers_note("mine", [None, "", "why"]).startswith("the model cannot write 50% of the 2 reference answers")
    with pytest.raises(TaskError, match="none of the 1 reference answers"):
        answers_note("mine", [None, "why"])


def test_a_task_whose_prompts_all_leave_no_room_is_refused(base: Path) -> None:
    (base / "model" / "config.json").write_text('{"max_position_embeddings": 64}')
    with pytest.raises(TaskError, match=r"max_new_tokens = 60 are more than the 64 .* Lower \[learn\] max_new_tokens"):
        open_suite(base, "reverse:letters=4", max_new_tokens=60)


def test_a_search_for_a_prompt_that_fits_ends(base: Path) -> None:
    suite = open_suite(base)
    suite.limits = EpisodeLimits(tokens=8, turn_tokens=8)
    with pytest.raises(TaskError, match="none of the 4096 prompts before it can be used either"):
        suite.next_prompt()


def test_an_environment_answers_for_the_task_of_its_index(base: Path) -> None:
    suite = open_suite(base, [MixtureTask(spec="reverse:letters=4"), MixtureTask(spec="guess")])
    codec = suite.tasks["guess"].codec
    for prompt in (suite.next_prompt() for _ in range(8)):
        said = (codec.encode_answer("x"),)
        reply = suite.environment(prompt.index, said, len(prompt.tokens) + 2)
        if prompt.task == "reverse":
            assert reply == Ended(reward=0.0)
        else:
            assert reply == Answered(tokens=codec.encode_answer("?")[:-1])
    assert {one.task for one in suite.held_out} == {"reverse", "guess"}
    assert all(isinstance(one.answer(((2,),), 9), Ended | Answered) for one in suite.held_out)


def test_prompts_are_what_the_task_asks_and_answers_what_it_wants(base: Path) -> None:
    suite = open_suite(base)
    prompt = suite.next_prompt()
    word = text(base, prompt.tokens)
    assert prompt.task == "reverse"
    answer = suite.tasks["reverse"].answer(prompt.index)
    assert answer[-1] in suite.stop_ids
    assert text(base, answer[:-1])[::-1] in word
    assert suite.reward(prompt.index, answer) == 1.0
    assert suite.reward(prompt.index, answer[::-1]) < 1.0


def test_held_out_prompts_are_fixed_and_never_leased(base: Path) -> None:
    one, other = open_suite(base, held_out=50, seed=1), open_suite(base, held_out=50, seed=2)
    held = [item.prompt for item in one.held_out]
    assert len(set(held)) > 40
    assert [item.prompt for item in other.held_out] == held
    leased = {suite.next_prompt().tokens for suite in (one, other) for _ in range(100)}
    assert not leased & set(held)
    rewards = [item.reward((one.tasks["reverse"].codec.eos_id,)) for item in one.held_out]
    assert max(rewards) < 1.0
    assert open_suite(base, held_out=0).held_out == []


def test_the_curriculum_goes_on_where_its_state_was_taken(base: Path) -> None:
    spec = "arithmetic:levels=3"
    suite = open_suite(base, spec)
    for _ in range(WINDOW):
        suite.observe(suite.next_prompt().index, MASTERED + 0.1)
    state: dict[str, Any] = json.loads(json.dumps(suite.state()))
    following = [suite.next_prompt() for _ in range(20)]
    again = open_suite(base, spec)
    again.restore(state)
    assert [again.next_prompt() for _ in range(20)] == following
    assert following != [open_suite(base, spec).next_prompt() for _ in range(20)]


def test_what_was_drawn_and_not_leased_is_drawn_again(base: Path) -> None:
    suite = open_suite(base)
    drawn = [suite.next_prompt() for _ in range(6)]
    again = open_suite(base)
    again.restore(json.loads(json.dumps(suite.state([prompt.index for prompt in drawn[2:]]))))
    assert [again.next_prompt() for _ in range(2)] == drawn[2:4]
    once_more = open_suite(base)
    once_more.restore(again.state([99]))
    assert [once_more.next_prompt().index for _ in range(3)] == [99, drawn[4].index, drawn[5].index]


def test_a_state_of_another_task_is_refused(base: Path) -> None:
    state = open_suite(base, "reverse:letters=5").state()
    with pytest.raises(TaskError, match=r"not the one this run began with.*start a new run"):
        open_suite(base).restore(state)


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        (["csv/" + "9" * 32 + "/exact/4/aa"], ["csv/" + "8" * 32 + "/exact/4/ab"], "the file of csv has changed"),
        (["csv/" + "9" * 32 + "/exact/4/aa"], ["csv/" + "9" * 32 + "/exact/5/ab"], "its options or its seed"),
        (["reverse,letters=5/0"], ["reverse,letters=6/0"], "its options or its seed"),
        (["sort/0", "guess/0"], ["sort/0"], "the mixture has other tasks"),
    ],
)
def test_what_of_a_task_has_changed(then: list[str], now: list[str], said: str) -> None:
    assert what_changed(then, now).startswith(said)


def test_a_run_whose_file_changed_is_told_so(base: Path) -> None:
    rows = [json.dumps({"prompt": f"{number}=", "answer": "b"}) for number in range(20)]
    (base / "t.jsonl").write_text("\n".join(rows))
    state = open_suite(base, "jsonl:t.jsonl").state()
    (base / "t.jsonl").write_text("\n".join([*rows, rows[0]]))
    with pytest.raises(TaskError, match=r"run began with: the file of jsonl has changed \(now jsonl/"):
        open_suite(base, "jsonl:t.jsonl").restore(state)


def test_a_mixture_leases_by_weight_and_rewards_by_task(base: Path) -> None:
    mixture = [MixtureTask(spec="reverse:letters=4", weight=3), MixtureTask(spec="sort:digits=3", name="digits")]
    suite = open_suite(base, mixture, held_out=3)
    prompts = [suite.next_prompt() for _ in range(40)]
    assert Counter(prompt.task for prompt in prompts) == {"reverse": 30, "digits": 10}
    assert len({prompt.index for prompt in prompts}) == 40
    for prompt in prompts:
        inner, name = suite.place(prompt.index)
        assert (name, suite.tasks[name].prompt(inner)) == (prompt.task, prompt.tokens)
        assert suite.reward(prompt.index, suite.tasks[name].answer(inner)) == 1.0
    assert Counter(held.task for held in suite.held_out) == {"reverse": 3, "digits": 3}


def test_a_mixture_goes_on_where_its_state_was_taken_and_is_refused_in_another_order(base: Path) -> None:
    mixture = [MixtureTask(spec="arithmetic"), MixtureTask(spec="sort", weight=2.5)]
    suite = open_suite(base, mixture)
    for _ in range(17):
        suite.next_prompt()
    state = json.loads(json.dumps(suite.state()))
    following = [suite.next_prompt() for _ in range(20)]
    again = open_suite(base, mixture)
    again.restore(state)
    assert [again.next_prompt() for _ in range(20)] == following
    with pytest.raises(TaskError, match="or the tasks of the mixture"):
        open_suite(base, mixture[::-1]).restore(state)


def test_files_of_a_task_are_relative_to_the_configuration(base: Path) -> None:
    rows = [{"prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(40)]
    (base / "data").mkdir()
    (base / "data" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    suite = open_suite(base, "jsonl:data/train.jsonl:held_out=0", held_out=2)
    assert suite.held_out == []
    suite = open_suite(base, "jsonl:data/train.jsonl", held_out=128)
    assert len(suite.held_out) == len({held.prompt for held in suite.held_out}) == 4, "a tenth, and none twice"
    assert text(base, suite.next_prompt().tokens).endswith("=")


@pytest.mark.parametrize(
    ("spec", "says"), [("revrse", "reverse"), ("reverse:letters=x", "letters"), ("jsonl:absent.jsonl", "absent")]
)
def test_a_task_that_cannot_be_opened(base: Path, spec: str, says: str) -> None:
    with pytest.raises(TaskError, match=says):
        open_suite(base, spec)


def test_a_model_without_a_tokenizer(base: Path) -> None:
    (base / "model" / "tokenizer.json").unlink()
    with pytest.raises(TaskError, match=r"no tokenizer\.json"):
        open_suite(base)


@pytest.mark.parametrize(
    ("spec", "section", "says"),
    [
        ("reverse", {"workers": 3}, r"\[verifiers\] workers .*all tasks here are cheap"),
        ("reverse", {"machine": [{"command": ["ssh", "there"]}]}, r"\[verifiers\] machine .*all tasks here are cheap"),
        (
            "jsonl:math.jsonl:match=math,held_out=0",
            {"workers": 0, "timeout_s": 5},
            r"\[verifiers\] timeout_s .*without limits",
        ),
    ],
)
def test_a_key_of_the_verifiers_that_would_do_nothing_is_refused(
    base: Path, spec: str, section: dict[str, Any], says: str
) -> None:
    (base / "math.jsonl").write_text(json.dumps({"prompt": "1+1=", "answer": "2"}))
    config = SwarmConfig(
        swarm=SwarmSection(name="n"),
        model=ModelSection(directory=str(base / "model")),
        task=TaskSection(spec=spec, held_out=0),
        learn=LearnSection(steps=1, max_new_tokens=16),
        verifiers=msgspec.convert(section, VerifiersSection),
    )
    with pytest.raises(TaskError, match=says):
        open_task_suite(config, base)
