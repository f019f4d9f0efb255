"""Find the token ids that end a completion."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from node.tasks.api.interface import TaskError
from node.tasks.tokenizer import TextCodec
from node.tasks.ways.model_ways import ModelWays
from node.tasks.ways.stop_tokens import stops_of
from tests.support.chat_templates import QWEN3, write_family_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_family_model(tmp_path, QWEN3)


@pytest.fixture
def merging() -> Tokenizer:
    """A tokenizer of bytes that has two line ends as one token, too."""
    end = "\N{LATIN CAPITAL LETTER C WITH DOT ABOVE}"  # as the bytes' alphabet spells a line end
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), f"{end}{end}"]
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[(end, end)]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def test_a_special_token_becomes_its_id_beside_the_models_own(model: Path) -> None:
    codec = TextCodec.load(model, ModelWays(stop=["<|endoftext|>"], stop_ids=[5]))
    texts = [codec.decode([one]) for one in codec.stop_ids - {5}]
    assert sorted(texts) == ["<|endoftext|>", "<|im_end|>"]
    assert codec.tokenizer.id_to_token(codec.eos_id) == "<|im_end|>"
    assert codec.notes == ()


def test_what_the_operator_adds_is_enough_where_no_file_names_an_end(model: Path) -> None:
    (model / "tokenizer_config.json").write_text("{}")
    with pytest.raises(TaskError, match=r"nothing says which token ends a text.*or name one in \[model\] stop"):
        TextCodec.load(model)
    codec = TextCodec.load(model, ModelWays(stop=["<|im_end|>"]))
    assert codec.stop_ids == {codec.eos_id}


def test_a_string_that_is_one_token_ends_there_and_other_tokens_that_hold_it_are_told(merging: Tokenizer) -> None:
    stops = stops_of(merging, ["\n"])
    assert [merging.decode([one]) for one in stops.ids] == ["\n"]
    [note] = stops.notes
    assert "1 other tokens contain it, such as '\\n\\n'" in note
    assert stops_of(merging, ["\n\n"]).notes == ()
    assert stops_of(merging, []).ids == frozenset()


@pytest.mark.parametrize("text", ["\nQuestion:", "<|im_end", "ß"])
def test_a_string_of_several_tokens_is_refused_with_what_to_do(merging: Tokenizer, text: str) -> None:
    with pytest.raises(TaskError, match=r"is not a single token .* \[model\] stop_ids"):
        stops_of(merging, [text])


@pytest.mark.parametrize(("ways", "key"), [(ModelWays(stop_ids=[9, 4000]), "stop_ids: token id 4000"),
                                           (ModelWays(stop=["<|endoftext|>"]), "stop: token id 258")])  # fmt: skip
def test_an_id_that_the_model_never_says_is_refused(model: Path, ways: ModelWays, key: str) -> None:
    (model / "config.json").write_text(json.dumps({"vocab_size": 258}))
    with pytest.raises(TaskError, match=key):
        TextCodec.load(model, ways)


def test_no_more_than_a_lease_carries(model: Path) -> None:
    with pytest.raises(TaskError, match="65 tokens end a text; a lease carries at most 64"):
        TextCodec.load(model, ModelWays(stop_ids=range(64)))
