"""Convert text to token ids and back with a model directory's files: stop ids, chat templates, missing files."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from learner.rollouts.environment import Answered, Ended, EpisodeLimits
from node.tasks.api.interface import Answer, Chat, ChatMessage, Completion, Problem, TaskError, Turn
from node.tasks.registry import open_task
from node.tasks.tokenized_task import EncodedTask
from node.tasks.tokenizer import (
    CHARACTER_VOCABULARY,
    DEMO_ALPHABET,
    REPLACEMENT,
    SHOWN_VOCABULARY,
    TextCodec,
    positions_of,
    write_character_tokenizer,
)

PAD, BOS, EOS, UNK = range(4)

CHATML = (
    "{% for message in messages %}[{{ message.role }}]"
    "{% generation %}{{ message.content }}{% endgeneration %}{% endfor %}"
    "{% if add_generation_prompt %}:{% endif %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    write_character_tokenizer(directory)
    return directory


@pytest.fixture(scope="module")
def codec(model: Path) -> TextCodec:
    return TextCodec.load(model)


@pytest.fixture
def own_model(tmp_path: Path) -> Path:
    """A model directory that the test may change."""
    write_character_tokenizer(tmp_path)
    return tmp_path


def write_json(path: Path, **values: object) -> None:
    path.write_text(json.dumps(values), encoding="utf-8")


def plain(text: str) -> Problem:
    return Problem(prompt=text)


# --- characters -------------------------------------------------------------------------------------------------------


@given(text=st.text(alphabet=DEMO_ALPHABET, min_size=1))
def test_every_character_is_a_token_and_comes_back(codec: TextCodec, text: str) -> None:
    tokens = codec.encode_prompt(plain(text))
    assert len(tokens) == len(text)
    assert codec.decode(tokens) == text


def test_vocabulary_has_the_promised_size_and_names(codec: TextCodec) -> None:
    assert codec.tokenizer.get_vocab_size() == CHARACTER_VOCABULARY
    assert [codec.tokenizer.id_to_token(token) for token in range(4)] == ["<pad>", "<bos>", "<eos>", "<unk>"]


def test_alphabet_writes_every_built_in_task(codec: TextCodec) -> None:
    for spec in ("reverse", "sort", "arithmetic"):
        encoded = EncodedTask(task=open_task(spec), codec=codec)
        for index in range(20):
            assert UNK not in encoded.prompt(index) + encoded.answer(index)


@pytest.mark.parametrize("alphabet", ["aa", "<", "".join(map(chr, range(100, 161)))])
def test_an_alphabet_that_does_not_fit_is_refused(alphabet: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="up to 60 characters, each once"):
        write_character_tokenizer(tmp_path, alphabet)


def test_words_are_tokens_and_with_a_template_every_text_has_some(tmp_path: Path) -> None:
    write_character_tokenizer(tmp_path, "abc?+", words=("a+", "a+b"), chat_template="{{ messages[0].content }}")
    (tmp_path / "config.json").write_text("{}")
    codec = TextCodec.load(tmp_path)
    tokens = codec.encode_prompt(plain("a+ba+cX"))
    assert [codec.tokenizer.id_to_token(token) for token in tokens] == ["a+b", "a+", "c", "?"]
    assert codec.decode(tokens) == "a+ba+c?"


def test_words_that_spell_a_special_token_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="without '<'"):
        write_character_tokenizer(tmp_path, "abc", words=("<eos>",))


def test_transformers_reads_the_same_tokenizer(model: Path, codec: TextCodec) -> None:
    # In a process of its own, so that the tests' process stays as free of torch as the node's.
    code = (
        "import json, sys\nfrom transformers import AutoTokenizer\n"
        "t = AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "print(json.dumps([t('rev: a\\nb=')['input_ids'], t.pad_token_id, t.bos_token_id, t.eos_token_id, len(t)]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(model)], capture_output=True, text=True, check=True)
    tokens, *others = json.loads(done.stdout.splitlines()[-1])
    assert tuple(tokens) == codec.encode_prompt(plain("rev: a\nb="))
    assert others == [PAD, BOS, EOS, CHARACTER_VOCABULARY]


# --- completions ------------------------------------------------------------------------------------------------------


def test_a_completion_is_finished_by_its_only_stop_id(codec: TextCodec) -> None:
    ab = codec.encode_prompt(plain("ab"))
    assert codec.completion((*ab, EOS)) == Completion(text="ab", finished=True)
    assert codec.completion(ab) == Completion(text="ab", finished=False)
    assert codec.completion((*ab, EOS, EOS)) == Completion(text="ab<eos><eos>", finished=False)
    assert codec.completion((EOS,)) == Completion(text="", finished=True)
    assert codec.completion(()) == Completion(text="", finished=False)


@pytest.mark.parametrize("junk", [PAD, BOS, UNK, 63 + 1, 100_000])
def test_no_token_hides_from_a_reward(codec: TextCodec, junk: int) -> None:
    # Decoders skip special tokens and ids without a token; a policy would learn to scatter them at will.
    encoded = EncodedTask(task=open_task("reverse"), codec=codec)
    answer = encoded.answer(0)
    assert encoded.reward(0, answer) == 1.0
    assert encoded.reward(0, (*answer[:3], junk, *answer[3:])) == 0.0


def test_unknown_ids_are_shown(codec: TextCodec) -> None:
    a, b = codec.encode_prompt(plain("ab"))
    assert codec.decode((a, 99, b)) == f"a{REPLACEMENT}b"


def test_a_character_without_a_token_is_an_error(codec: TextCodec, model: Path) -> None:
    with pytest.raises(TaskError, match=r"no token for 'R' in 'RÉSUMÉ'") as caught:
        codec.encode_prompt(plain("RÉSUMÉ"))
    assert str(caught.value) == (
        f"{model}: its tokenizer has no token for 'R' in 'RÉSUMÉ' (its characters: {DEMO_ALPHABET!r})"
    )


def test_a_large_vocabulary_is_not_listed(own_model: Path) -> None:
    written = json.loads((own_model / "tokenizer.json").read_text())
    written["model"]["vocab"] |= {f"word{number}": 64 + number for number in range(SHOWN_VOCABULARY)}
    write_json(own_model / "tokenizer.json", **written)
    with pytest.raises(TaskError, match=r"has no token for 'E' in 'e to E'$"):
        TextCodec.load(own_model).encode_answer("e to E")


def test_an_empty_prompt_is_an_error(codec: TextCodec) -> None:
    with pytest.raises(TaskError, match="0 tokens"):
        codec.encode_prompt(plain(""))


# --- which ids end a text ---------------------------------------------------------------------------------------------


def test_stop_ids_are_those_of_all_files(own_model: Path) -> None:
    assert TextCodec.load(own_model).stop_ids == {EOS}
    write_json(own_model / "config.json", eos_token_id=7)
    write_json(own_model / "generation_config.json", eos_token_id=[8, 9])
    codec = TextCodec.load(own_model)
    assert codec.stop_ids == {EOS, 7, 8, 9}
    assert codec.eos_id == EOS


def test_without_eos_token_answers_end_with_a_declared_id(own_model: Path) -> None:
    write_json(own_model / "tokenizer_config.json")
    write_json(own_model / "generation_config.json", eos_token_id=[9, 8])
    codec = TextCodec.load(own_model)
    assert codec.eos_id == 8
    assert codec.encode_answer("a")[-1] == 8


def test_special_tokens_may_be_objects(own_model: Path) -> None:
    write_json(own_model / "tokenizer_config.json", eos_token={"content": "<bos>", "special": True})
    assert TextCodec.load(own_model).stop_ids == {BOS}


@pytest.mark.parametrize("declared", ["2", [2, "3"], -1, True])
def test_a_stop_id_that_is_none_is_an_error(own_model: Path, declared: object) -> None:
    write_json(own_model / "generation_config.json", eos_token_id=declared)
    with pytest.raises(TaskError, match=r"generation_config\.json: eos_token_id"):
        TextCodec.load(own_model)


def test_no_stop_id_at_all_is_an_error(own_model: Path) -> None:
    write_json(own_model / "tokenizer_config.json")
    with pytest.raises(TaskError, match="which token ends a text"):
        TextCodec.load(own_model)


# --- directories that lack things -------------------------------------------------------------------------------------


def test_a_missing_tokenizer_names_the_directory(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"no tokenizer\.json\. Copy") as caught:
        TextCodec.load(tmp_path)
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(TaskError, match="does not exist"):
        TextCodec.load(tmp_path / "nowhere")
    (tmp_path / "tokenizer.model").touch()
    with pytest.raises(TaskError, match="Convert the older files"):
        TextCodec.load(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
def test_a_broken_file_is_named(own_model: Path, name: str) -> None:
    (own_model / name).write_text("{", encoding="utf-8")
    with pytest.raises(TaskError) as caught:
        TextCodec.load(own_model)
    assert str(own_model / name) in str(caught.value)


# --- chat templates ---------------------------------------------------------------------------------------------------


def test_a_conversation_goes_through_the_template(own_model: Path) -> None:
    (own_model / "chat_template.jinja").write_text(CHATML, encoding="utf-8")
    codec = TextCodec.load(own_model)
    messages = (ChatMessage(role="system", content="be brief"), ChatMessage(role="user", content="hi"))
    tokens = codec.encode_prompt(Problem(prompt=messages, chat=Chat.ALWAYS))
    assert codec.decode(tokens) == "[system]be brief[user]hi:"


@pytest.mark.parametrize(("chat", "text"), [(Chat.NEVER, "hi"), (Chat.AUTO, "[user]hi:"), (Chat.ALWAYS, "[user]hi:")])
def test_text_goes_through_the_template_when_asked(own_model: Path, chat: Chat, text: str) -> None:
    settings = json.loads((own_model / "tokenizer_config.json").read_bytes())
    templates = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": CHATML}]
    write_json(own_model / "tokenizer_config.json", **settings, chat_template=templates)
    codec = TextCodec.load(own_model)
    assert codec.decode(codec.encode_prompt(Problem(prompt="hi", chat=chat))) == text


def test_without_a_template_text_stays_plain_and_conversations_fail(codec: TextCodec) -> None:
    assert codec.decode(codec.encode_prompt(Problem(prompt="hi", chat=Chat.AUTO))) == "hi"
    with pytest.raises(TaskError, match="no chat template"):
        codec.encode_prompt(Problem(prompt="hi", chat=Chat.ALWAYS))


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for", "chat template fails"),
        ("{{ messages.append(1) }}", "chat template fails"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "chat template fails"),
    ],
)
def test_a_template_can_neither_break_out_nor_fail_unseen(own_model: Path, template: str, complaint: str) -> None:
    (own_model / "chat_template.jinja").write_text(template, encoding="utf-8")
    with pytest.raises(TaskError, match=complaint):
        TextCodec.load(own_model).render([ChatMessage(role="user", content="hi")])


# --- a task in tokens -------------------------------------------------------------------------------------------------


def test_answers_are_worth_one_on_both_sides(codec: TextCodec) -> None:
    encoded = EncodedTask(task=open_task("arithmetic"), codec=codec)
    for index in range(10):
        assert encoded.reward(index, encoded.answer(index)) == 1.0
        answer = encoded.task.held_out(index).answer
        assert answer is not None
        assert encoded.reward(index, codec.encode_answer(answer), held_out=True) == 1.0
        assert codec.decode(encoded.prompt(index, held_out=True)) == encoded.task.held_out(index).prompt


# --- several turns ----------------------------------------------------------------------------------------------------

WITH_ENDS = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content | trim }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
LIMITS = EpisodeLimits(turns=3, tokens=40, turn_tokens=3)


def test_an_answer_to_plain_text_is_plain(codec: TextCodec) -> None:
    assert codec.encode_turn(plain("hi"), "ho") == codec.encode_prompt(plain("ho"))
    with pytest.raises(TaskError, match="no chat template"):
        codec.encode_turn(plain("hi"), (ChatMessage(role="tool", content="ho"),))
    with pytest.raises(TaskError, match="no token for '<' in '<'"):
        codec.encode_turn(plain("hi"), "<")


@pytest.mark.parametrize(
    ("answered", "shown"),
    [
        ("ho", "\n[user]ho<eos>\n[assistant]"),
        ((ChatMessage(role="tool", content="5"), ChatMessage(role="user", content="so?")),
         "\n[tool]5<eos>\n[user]so?<eos>\n[assistant]"),
    ],
)  # fmt: skip
def test_an_answer_in_a_conversation_brings_its_markers_but_for_the_end_that_is_there(
    own_model: Path, answered: Answer, shown: str
) -> None:
    (own_model / "chat_template.jinja").write_text(WITH_ENDS, encoding="utf-8")
    codec = TextCodec.load(own_model)
    problem = Problem(prompt="hi", chat=Chat.AUTO)
    # Spaces that the template would trim away stay in what the policy said.
    said = (*codec.encode_answer(" x "),)
    transcript = (*codec.encode_prompt(problem), *said, *codec.encode_turn(problem, answered))
    assert codec.decode(transcript) == f"[user]hi<eos>\n[assistant] x <eos>{shown}"


def test_markers_of_a_template_without_ends_stay_whole(own_model: Path) -> None:
    (own_model / "chat_template.jinja").write_text(CHATML, encoding="utf-8")
    codec = TextCodec.load(own_model)
    assert codec.decode(codec.encode_turn(Problem(prompt="hi", chat=Chat.ALWAYS), "ho")) == "[user]ho:"


def test_an_end_of_two_tokens_stands_for_the_stop_id_that_is_there(own_model: Path) -> None:
    """As Cohere's, where the policy says both."""
    template = "{% for message in messages %}{{ message.content }}{{ unk_token }}{{ eos_token }}{% endfor %}:"
    (own_model / "chat_template.jinja").write_text(template, encoding="utf-8")
    codec = TextCodec.load(own_model)
    assert codec.decode(codec.encode_turn(Problem(prompt="hi", chat=Chat.ALWAYS), "ho")) == "ho<unk><eos>:"


def test_a_template_that_hides_an_answer_is_an_error_but_not_one_that_writes_it_otherwise(own_model: Path) -> None:
    template = (
        "{% for message in messages %}{% if message.role != 'tool' %}"
        "[{{ message.role }}]{{ message.content | replace('-', '+') }}{% endif %}{% endfor %}"
    )
    (own_model / "chat_template.jinja").write_text(template, encoding="utf-8")
    codec, problem = TextCodec.load(own_model), Problem(prompt="hi", chat=Chat.ALWAYS)
    assert codec.decode(codec.encode_turn(problem, "1-2")) == "[user]1+2"
    with pytest.raises(TaskError, match="does not show messages of role tool"):
        codec.encode_turn(problem, (ChatMessage(role="tool", content="5"),))


def test_a_template_that_hides_what_was_said_is_an_error(own_model: Path) -> None:
    (own_model / "chat_template.jinja").write_text("{{ messages[0].content }}", encoding="utf-8")
    codec = TextCodec.load(own_model)
    with pytest.raises(TaskError, match="does not show what the assistant said"):
        codec.encode_turn(Problem(prompt="hi", chat=Chat.ALWAYS), "ho")


class Counting:
    """The policy counts up from 1; each turn it says the next number, and is told so; at 9 it is done."""

    name = "counting"
    levels = 1
    fingerprint = "counting"

    def problem(self, index: int) -> Problem:
        return Problem(prompt=f"{index}:")

    held_out = problem

    def answer_turn(self, problem: Problem, turns: Sequence[Turn], said: str) -> str | None:
        return None if said == "9" else f"{len(turns) + 1} of {said};"

    def reward(self, problem: Problem, completion: Completion) -> float:
        said = "".join(turn.said for turn in completion.turns) + completion.text
        return len(said) + completion.finished / 2


def test_an_episode_goes_on_until_the_task_ends_it(codec: TextCodec) -> None:
    encoded = EncodedTask(task=Counting(), codec=codec)
    one, nine = codec.encode_answer("1"), codec.encode_answer("9")
    first = encoded.reply(0, (one,), 4, LIMITS)
    assert isinstance(first, Answered)
    assert codec.decode(first.tokens) == "1 of 1;"
    second = encoded.reply(0, (one, one), 13, LIMITS, held_out=True)
    assert isinstance(second, Answered)
    assert codec.decode(second.tokens) == "2 of 1;"
    assert encoded.reply(0, (one, one, nine), 22, LIMITS) == Ended(reward=3.5)
    assert encoded.reply(0, (nine,), 4, LIMITS) == Ended(reward=1.5)


@pytest.mark.parametrize(
    ("said", "transcript", "reward"),
    [
        (["1", "1", "1"], 22, 3.5),  # that was the last turn
        (["1", "1"], 31, 2.5),  # 31 and 7 of the answer leave no room for 3 more
    ],
)
def test_an_episode_ends_at_its_limits(codec: TextCodec, said: list[str], transcript: int, reward: float) -> None:
    encoded = EncodedTask(task=Counting(), codec=codec)
    assert encoded.reply(0, tuple(map(codec.encode_answer, said)), transcript, LIMITS) == Ended(
        reward=reward, cut_off=True
    )


def test_a_turn_that_uses_up_its_budget_ends_the_episode(codec: TextCodec) -> None:
    encoded = EncodedTask(task=Counting(), codec=codec)
    assert encoded.reply(0, (codec.encode_answer("12")[:-1],), 5, LIMITS) == Ended(reward=2.0, cut_off=True)


def test_a_task_that_answers_otherwise_than_it_did_is_named(codec: TextCodec) -> None:
    encoded = EncodedTask(task=Counting(), codec=codec)
    with pytest.raises(TaskError, match="'counting' answers differently than before at index 4"):
        encoded.reply(4, (codec.encode_answer("9"), codec.encode_answer("1")), 9, LIMITS)


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        ({}, None),
        ({"max_position_embeddings": 64}, 64),
        ({"n_positions": 24}, 24),
        ({"text_config": {"max_position_embeddings": 32}}, 32),
    ],
)
def test_how_long_a_sequence_a_model_takes(tmp_path: Path, config: dict[str, object], positions: int | None) -> None:
    write_json(tmp_path / "config.json", **config)
    assert positions_of(tmp_path) == positions


# --- ids that the embedding does not reach ----------------------------------------------------------------------------

SAYS_MORE = "<|asks|>{{ messages[0].content }}"


@pytest.fixture
def further(own_model: Path) -> Path:
    """A tokenizer with one id more than the character tokenizer, 64, which its chat template uses."""
    file = own_model / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_special_tokens([AddedToken("<|asks|>", special=True, normalized=False)])
    tokenizer.save(str(file))
    (own_model / "chat_template.jinja").write_text(SAYS_MORE)
    return own_model


def test_an_id_beyond_the_embedding_is_refused_with_ids_and_rows(further: Path) -> None:
    """A chat template that goes further than the weights do."""
    write_json(further / "config.json", vocab_size=64)
    codec = TextCodec.load(further)
    assert codec.encode_prompt(plain("abc"))
    with pytest.raises(TaskError) as caught:
        codec.encode_prompt(Problem(prompt="abc", chat=Chat.ALWAYS))
    assert "its tokenizer writes '<|asks|>' as token id 64" in str(caught.value)
    assert "the model's embedding has 64 rows (vocab_size), for ids 0 to 63" in str(caught.value)
    assert str(further) in str(caught.value)


@pytest.mark.parametrize("config", [{"vocab_size": 65}, {}, {"text_config": {"vocab_size": 65}}])
def test_every_id_that_the_embedding_has_is_written(further: Path, config: dict[str, object]) -> None:
    write_json(further / "config.json", **config)
    assert 64 in TextCodec.load(further).encode_prompt(Problem(prompt="abc", chat=Chat.ALWAYS))


def test_what_ends_a_text_must_be_what_a_model_can_say(further: Path) -> None:
    """An id that a larger vocabulary left behind in config.json is never said, and no matter."""
    write_json(further / "config.json", vocab_size=64, eos_token_id=2)
    assert TextCodec.load(further).stop_ids == {2}
    write_json(further / "generation_config.json", eos_token_id=[2, 64])
    assert TextCodec.load(further).stop_ids == {2}
    settings = json.loads((further / "tokenizer_config.json").read_text())
    write_json(further / "tokenizer_config.json", **settings | {"eos_token": "<|asks|>"})
    with pytest.raises(TaskError, match=r"token id 64 ends a text, and the model's embedding has 64 rows .* 0 to 63"):
        TextCodec.load(further)


class Odd:
    """A task of somebody's own: no reference answers, and a reward that is no number."""

    name = "odd"
    levels = 1
    fingerprint = "odd"

    def problem(self, index: int) -> Problem:
        return Problem(prompt=f"{index}?")

    held_out = problem

    def reward(self, problem: Problem, completion: Completion) -> float:
        return (math.nan, math.inf, -1e39)[int(problem.prompt[:1])]


def test_a_reward_that_no_trainer_could_take_names_the_task(codec: TextCodec) -> None:
    encoded = EncodedTask(task=Odd(), codec=codec)
    for index, said in enumerate((r"nan at index 0", r"inf at index 1", r"-1e\+39 at index 2")):
        with pytest.raises(TaskError, match=f"'odd' gave the reward {said}; it must lie between"):
            encoded.reward(index, (EOS,))
    with pytest.raises(TaskError, match="'odd' has no reference answers"):
        encoded.answer(3)


class Failing(Odd):
    """A verifier that fails on what it did not expect."""

    def reward(self, problem: Problem, completion: Completion) -> float:
        return 1 / len(completion.text)

    def answer_turn(self, problem: Problem, turns: Sequence[Turn], said: str) -> str | None:
        return None if turns else said[1]


def test_a_task_that_fails_is_named_with_the_index(codec: TextCodec) -> None:
    """It is an operator's own: a traceback of ours, from a thread of ours, would tell them nothing."""
    encoded = EncodedTask(task=Failing(), codec=codec)
    with pytest.raises(TaskError, match=r"'odd' failed at index 3: ZeroDivisionError: division by zero \(test_tok"):
        encoded.reward(3, (EOS,))
    with pytest.raises(TaskError, match=r"'odd' failed at index 4: IndexError: string index out of range \(test_tok"):
        encoded.reply(4, ((EOS,),), 9, EpisodeLimits(turns=2))
