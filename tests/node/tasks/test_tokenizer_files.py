"""Tokenizers of model directories: the same ids as transformers makes of them, whatever the files say and leave out.

transformers runs once, in a process of its own, over all directories that are compared."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from learner.artifacts.text_files import TOO_DEEP
from node.tasks.api.interface import Chat, ChatMessage, Problem, TaskError
from node.tasks.tokenizer import TextCodec, positions_of, write_character_tokenizer
from node.tasks.tokenizer_files import read_tokenizer

CORPUS = [
    "the quick brown fox jumps over the lazy dog, and the dog sleeps on",
    "def add(first, second):\n    return first + second  # 12 + 34",
    "What is the capital of France? The capital of France is Paris.",
    "Naïve café déjà vu: ÀÉÎ, straße, 東京",
    "<|user|> <|end|> [CLS] [SEP] <s> </s> [INST]",
] * 4

TEXTS = [
    "the quick brown fox",
    "  two  spaces\tand a tab\n\nand lines ",
    "Naïve CAFÉ, 東京 and \N{FULLWIDTH LATIN CAPITAL LETTER A}",
    "<s>the</s>",
    "a<|user|>b <|end|> c<|end|>",
    "[CLS] the dog [SEP] [INST]x[/INST]",
    "1234567890" * 8,
    " ".join(["the lazy dog"] * 40),
    "<|only_in_settings|> and <|tool|>dog",
]

CHATML = (
    "{{ bos_token }}{% for message in messages %}<|user|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}[INST]{{ eos_token }}{% endif %}"
)

SPECIAL = ["<s>", "</s>", "<unk>", "<|user|>", "<|end|>"]


def byte_level_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def metaspace_bpe() -> Tokenizer:
    """As Llama's first: bytes for what has no token, and a beginning around every text."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=[*SPECIAL, *bytes_])
    tokenizer.train_from_iterator(CORPUS, trainer)
    saved = json.loads(tokenizer.to_str())
    saved["added_tokens"] = [one for one in saved["added_tokens"] if one["content"] in SPECIAL]
    tokenizer = Tokenizer.from_str(json.dumps(saved))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def word_piece() -> Tokenizer:
    """As BERT's: lower case, without accents, both ends marked."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=[*SPECIAL, "[CLS]", "[SEP]"])
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[(one, tokenizer.token_to_id(one)) for one in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("  ", " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="first")
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", tokenizer.token_to_id("</s>"))]
    )
    return tokenizer


def digits_bpe() -> Tokenizer:
    """As Llama's third: a regular expression, numbers by themselves, an ending that strips what stands before it."""
    tokenizer = byte_level_bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken("[INST]", lstrip=True), AddedToken("dog", single_word=True, normalized=True)])
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]),
        ]
    )
    return tokenizer


def word_level() -> Tokenizer:
    words = sorted({word for text in CORPUS for word in text.split()} - set(SPECIAL))
    tokenizer = Tokenizer(models.WordLevel({one: place for place, one in enumerate([*SPECIAL, *words])}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def cut_and_pad(tokenizer: Tokenizer) -> None:
    tokenizer.enable_truncation(max_length=8, direction="left", stride=2)
    tokenizer.enable_padding(pad_to_multiple_of=32)


Make = Callable[[], Tokenizer]

ALL: list[Make] = [byte_level_bpe, metaspace_bpe, word_piece, unigram, digits_bpe, word_level]

ENDS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def entry(content: str, **flags: bool) -> dict[str, Any]:
    usual = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    return {"content": content, **usual, **flags}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A directory: the tokenizer that `make` makes, saved with what `changes` did to it, and files beside it."""

    make: Make
    changes: Callable[[Tokenizer], object] = lambda tokenizer: None
    settings: Mapping[str, Any] | None = None
    files: Mapping[str, Any] | None = None

    def write(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        tokenizer = self.make()
        self.changes(tokenizer)
        tokenizer.save(str(directory / "tokenizer.json"))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": CHATML}
        files = {"tokenizer_config.json": {**settings, **(ENDS if self.settings is None else self.settings)}}
        for name, value in {**files, **(self.files or {})}.items():
            text = value if isinstance(value, str) else json.dumps(value)
            (directory / name).write_text(text, encoding="utf-8", newline="")


def size(make: Make) -> int:
    return make().get_vocab_size()


CASES = {
    **{f"{make.__name__}": Case(make=make) for make in ALL},
    **{
        f"{make.__name__} that cuts off": Case(make=make, changes=lambda one: one.enable_truncation(max_length=16))
        for make in ALL
    },
    **{
        f"padded {make.__name__}": Case(make=make, changes=lambda one: one.enable_padding(length=96, pad_id=2))
        for make in ALL
    },
    "cut off at the left, and padded to a multiple": Case(
        make=metaspace_bpe,
        changes=cut_and_pad,
    ),
    **{
        f"{make.__name__}, tokens that only added_tokens_decoder names": Case(
            make=make,
            settings={
                **ENDS,
                "added_tokens_decoder": {
                    "3": entry("<|user|>"),
                    str(size(make) + 1): entry("<|tool|>", special=False, normalized=True, rstrip=True),
                    str(size(make)): entry("<|only_in_settings|>"),
                },
            },
        )
        for make in (byte_level_bpe, word_piece, unigram)
    },
    "tokens of an older added_tokens.json": Case(
        make=byte_level_bpe,
        settings={**ENDS, "additional_special_tokens": ["<|tool|>"]},
        files={"added_tokens.json": {"<|tool|>": 400, "<|only_in_settings|>": 401}},
    ),
    "ends that only special_tokens_map.json names": Case(
        make=byte_level_bpe,
        settings={"clean_up_tokenization_spaces": False},
        files={"special_tokens_map.json": {**ENDS, "eos_token": {**entry("<|end|>")}}},
    ),
    "an older special_tokens_map.json that says otherwise": Case(
        make=byte_level_bpe, files={"special_tokens_map.json": {"eos_token": "<|end|>"}}
    ),
    "a special_tokens_map.json that a newer form goes before": Case(
        make=byte_level_bpe,
        settings={**ENDS, "added_tokens_decoder": {"0": entry("<s>")}},
        files={"special_tokens_map.json": {"eos_token": "<|end|>"}},
    ),
    "more special tokens, as a list": Case(
        make=byte_level_bpe, settings={**ENDS, "additional_special_tokens": ["<|tool|>", "<|only_in_settings|>"]}
    ),
    "more special tokens, by name": Case(
        make=byte_level_bpe, settings={**ENDS, "extra_special_tokens": {"tool_token": "<|tool|>"}}
    ),
    "a special token that is no added one yet": Case(
        make=word_level, settings={**ENDS, "pad_token": "dog", "sep_token": "<|tool|>"}
    ),
    "tokenizer.json alone says what begins a text": Case(make=unigram, settings={**ENDS, "add_bos_token": True}),
    "and what does not": Case(make=metaspace_bpe, settings={**ENDS, "add_bos_token": False}),
    "a template in a file of its own, with lines of Windows": Case(
        make=digits_bpe,
        files={
            "chat_template.jinja": "{% for one in messages %}\r\n<|user|>{{ one.content }}\r\n{% endfor %}\r\n{{ 1 }}"
        },
    ),
    "special tokens in a text are letters": Case(make=byte_level_bpe, settings={**ENDS, "split_special_tokens": True}),
}

THEIRS = """
import json, sys
from pathlib import Path
from transformers import AutoTokenizer
told = json.load(sys.stdin)
found = {}
for name, directory in told["directories"].items():
    one = AutoTokenizer.from_pretrained(directory)
    if name == told["cut"]:
        one("the dog", truncation=True, max_length=16, padding="max_length")
        one.save_pretrained(told["saved"])
    message = [{"role": "user", "content": told["texts"][0]}]
    chat = one.apply_chat_template(message, tokenize=False, add_generation_prompt=True) if one.eos_token else ""
    found[name] = {
        "plain": [one(text, add_special_tokens=False)["input_ids"] for text in told["texts"]],
        "whole": [one(text)["input_ids"] for text in told["texts"]],
        "chat": chat,
        "eos": one.eos_token_id,
    }
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("tokenizers")
    made = {name: base / str(number) for number, name in enumerate(CASES)}
    for name, directory in made.items():
        CASES[name].write(directory)
    return made


@pytest.fixture(scope="module")
def theirs(directories: dict[str, Path]) -> dict[str, dict[str, Any]]:
    """Return the results of transformers, from a process of its own: this one stays as free of torch as the node's.

    One tokenizer is saved again, right after it has cut off and padded a text.
    """
    saved = directories["padded byte_level_bpe"].parent / "saved"
    told = json.dumps(
        {
            "directories": {name: str(path) for name, path in directories.items()},
            "texts": TEXTS,
            "cut": "padded byte_level_bpe",
            "saved": str(saved),
        }
    )
    done = subprocess.run([sys.executable, "-c", THEIRS], input=told, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_text_becomes_the_ids_that_transformers_makes_of_it(
    name: str, directories: dict[str, Path], theirs: dict[str, dict[str, Any]]
) -> None:
    codec, wanted = TextCodec.load(directories[name]), theirs[name]
    assert codec.eos_id == wanted["eos"]
    assert codec.eos_id in codec.stop_ids
    for text, plain, whole in zip(TEXTS, wanted["plain"], wanted["whole"], strict=True):
        assert list(codec.tokenizer.encode(text, add_special_tokens=False).ids) == plain, text
        assert list(codec.tokenizer.encode(text).ids) == whole, text
    assert codec.render([ChatMessage(role="user", content=TEXTS[0])]) == wanted["chat"]


def test_what_was_saved_after_a_call_that_cut_off_cuts_nothing_off(
    directories: dict[str, Path], theirs: dict[str, dict[str, Any]]
) -> None:
    saved = directories["padded byte_level_bpe"].parent / "saved"
    kept = json.loads((saved / "tokenizer.json").read_bytes())
    assert kept["truncation"]["max_length"] == 16
    assert kept["padding"]["strategy"] == {"Fixed": 16}
    codec = TextCodec.load(saved)
    for text, plain in zip(TEXTS, theirs["byte_level_bpe"]["plain"], strict=True):
        assert list(codec.encode_prompt(Problem(prompt=text))) == plain
        assert list(codec.encode_answer(text)) == [*plain, codec.eos_id]


def test_a_tokenizer_that_draws_by_chance_draws_no_more(tmp_path: Path) -> None:
    """As one that was trained with BPE-dropout is saved: the same prompt would be another one each time."""
    tokenizer = byte_level_bpe()
    plain = tokenizer.encode(TEXTS[0]).ids
    model = tokenizer.model
    assert isinstance(model, models.BPE)
    model.dropout = 0.9
    Case(make=lambda: tokenizer).write(tmp_path / "model")
    assert json.loads((tmp_path / "model" / "tokenizer.json").read_bytes())["model"]["dropout"] == 0.9
    codec = TextCodec.load(tmp_path / "model")
    assert {codec.encode_prompt(Problem(prompt=TEXTS[0])) for _ in range(8)} == {tuple(plain)}


# --- one token each, with the id that the model knows -----------------------------------------------------------------


@pytest.fixture
def own_model(tmp_path: Path) -> Path:
    write_character_tokenizer(tmp_path)
    return tmp_path


def settings_of(directory: Path, **changes: object) -> None:
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **changes}), encoding="utf-8")


def test_a_token_that_only_added_tokens_decoder_names_is_one_token(own_model: Path) -> None:
    settings_of(own_model, added_tokens_decoder={"64": entry("<|end|>"), "65": entry("<|think|>", special=False)})
    codec = TextCodec.load(own_model)
    a, b = codec.encode_prompt(Problem(prompt="ab"))
    assert codec.encode_prompt(Problem(prompt="a<|think|>b<|end|>")) == (a, 65, b, 64)
    assert codec.decode((a, 64, 65)) == "a<|end|><|think|>", "and a reward sees it"


def test_an_end_that_only_the_map_names_ends_texts(own_model: Path) -> None:
    (own_model / "tokenizer_config.json").unlink()
    (own_model / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<eos>"}}))
    assert TextCodec.load(own_model).stop_ids == {2}
    # A newer file that does not name one leaves it to the map, as well.
    (own_model / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {"2": entry("<eos>")}}))
    assert TextCodec.load(own_model).eos_id == 2


def test_a_token_whose_id_cannot_be_kept_is_an_error(own_model: Path) -> None:
    settings_of(own_model, added_tokens_decoder={"70": entry("<|end|>")})
    with pytest.raises(TaskError, match=r"'<\|end\|>' should have the id 70, but tokenizer.json gives it 64\. Copy"):
        read_tokenizer(own_model)


def test_an_end_without_a_token_is_no_end(own_model: Path) -> None:
    """transformers would give it an id beyond the model's embeddings, which no policy ever says."""
    settings_of(own_model, eos_token="<|never|>")
    with pytest.raises(TaskError, match=r"which token ends a text.*to a token that the tokenizer has"):
        TextCodec.load(own_model)
    (own_model / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    assert TextCodec.load(own_model).stop_ids == {2}


@pytest.mark.parametrize("told", [["<|end|>"], {"64": "<|end|>"}, {"x": entry("<|end|>")}, {"64": {"special": True}}])
def test_added_tokens_in_another_form_are_an_error(own_model: Path, told: object) -> None:
    settings_of(own_model, added_tokens_decoder=told)
    with pytest.raises(TaskError, match=r"tokenizer_config\.json: its added tokens are not objects with `content`"):
        read_tokenizer(own_model)


# --- files of editors, and of strangers -------------------------------------------------------------------------------

FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json")
OBJECTS = {"special_tokens_map.json": {"pad_token": "<pad>"}, "generation_config.json": {"eos_token_id": [2, 5]},
           "config.json": {"max_position_embeddings": 64}}  # fmt: skip


@pytest.fixture
def whole_model(own_model: Path) -> Path:
    """A directory with every file that is read."""
    for name, value in OBJECTS.items():
        (own_model / name).write_text(json.dumps(value), encoding="utf-8")
    (own_model / "chat_template.jinja").write_text("{{ messages[0].content }}:", encoding="utf-8")
    return own_model


@pytest.mark.parametrize("name", [*FILES, "chat_template.jinja"])
def test_a_mark_at_the_beginning_of_a_file_is_no_part_of_it(whole_model: Path, name: str) -> None:
    hello = Problem(prompt="hi", chat=Chat.ALWAYS)
    before = TextCodec.load(whole_model)
    path = whole_model / name
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    codec = TextCodec.load(whole_model)
    assert codec.encode_prompt(hello) == before.encode_prompt(hello)
    assert codec.stop_ids == {2, 5}
    assert positions_of(whole_model) == 64


@pytest.mark.parametrize("name", [*FILES, "chat_template.jinja"])
def test_a_file_that_is_no_utf_8_is_named(whole_model: Path, name: str) -> None:
    path = whole_model / name
    path.write_bytes(path.read_text(encoding="utf-8").encode("utf-16"))
    with pytest.raises(TaskError, match="is UTF-16 text, not UTF-8; save it as UTF-8") as caught:
        TextCodec.load(whole_model)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", FILES)
def test_brackets_without_end_are_an_error_that_names_the_file(whole_model: Path, name: str) -> None:
    path = whole_model / name
    path.write_text('{"added_tokens_decoder": ' + "[" * 5000 + "]" * 5000 + "}", encoding="utf-8")
    with pytest.raises(TaskError) as caught:
        TextCodec.load(whole_model)
    assert str(path) in str(caught.value)
    assert name == "tokenizer.json" or TOO_DEEP in str(caught.value)


@pytest.mark.parametrize(
    "template",
    [
        "{{ " + "[" * 5000 + "]" * 5000 + " }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ 1 / 0 }}",
        "{{ messages[0]['content'].format(1) | int(base=99) + {}['no'] }}",
    ],
)
def test_a_template_that_fails_in_any_way_is_named(whole_model: Path, template: str) -> None:
    (whole_model / "chat_template.jinja").write_text(template, encoding="utf-8")
    with pytest.raises(TaskError, match="its chat template fails on a prompt"):
        TextCodec.load(whole_model).render([ChatMessage(role="user", content="hi")])
