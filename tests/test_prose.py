"""Sentences are readable: in the packages, the documents, the tests and the benchmarks, as `tools/prose.py` counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tools.prose import Sentence, excesses_of, sentences_in, totals_of

SETS = {
    "packages": ("node", "learner", "swarm", "protocol", "volery"),
    "documents": ("docs", "examples", "README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"),
    "tests and benchmarks": ("tests", "benchmarks", "tools"),
}
BEGINNERS = ("README.md", "docs/start", "examples")
"""Pages that people read first have no such sentence at all."""


def found_in(names: tuple[str, ...]) -> list[Sentence]:
    return sentences_in([ROOT / name for name in names])


@pytest.mark.parametrize("names", SETS.values(), ids=SETS)
def test_few_sentences_are_hard(names: tuple[str, ...]) -> None:
    found = found_in(names)
    assert len(found) > 1000
    hard = [f"{one.path}:{one.line} {one.text[:100]}" for one in found if one.is_headless or one.is_fronted]
    assert excesses_of(totals_of(found)) == [], hard


def test_the_first_pages_have_no_hard_sentence() -> None:
    found = found_in(BEGINNERS)
    assert [one.text for one in found if one.is_headless or one.is_fronted or one.words > 35] == []


def test_a_hard_sentence_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "What is late is dropped. Of these, one in four is kept.\n\nIs this fine? Nodes drop late records.\n"
    )
    found = sentences_in([page])
    assert [(one.is_headless, one.is_fronted) for one in found] == [(True, False), (False, True), (False, False)]
    assert excesses_of(totals_of(found)) != []


def test_comments_and_messages_are_read(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    doc, comment = '"""What is late is dropped."""', "# Whoever asks is told what there is."
    module.write_text(f'{doc}\n{comment}\nraise ValueError("Of those none is left here")\n')
    assert {one.kind for one in sentences_in([module])} == {"doc", "comment", "message"}
