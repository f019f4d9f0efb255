"""A data set that Hugging Face datasets saved is read without that package."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from node.tasks.data_files.saved_dataset import SavedDataset

WRITE = """
import sys
from datasets import Dataset, DatasetDict
rows = [{"messages": [{"role": "user", "content": f"what is {n}?"}], "extra": {"final": str(n)}} for n in range(30)]
whole = Dataset.from_list(rows)
whole.save_to_disk(sys.argv[1] + "/one", num_shards=2)
some = whole.shuffle(seed=1).select(range(20))
DatasetDict({"train": some, "test": whole.select([3])}).save_to_disk(sys.argv[1] + "/two")
"""


@pytest.mark.skipif(find_spec("datasets") is None, reason="needs datasets, which trl brings along")
def test_what_datasets_itself_writes_is_read(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", WRITE, str(tmp_path)], check=True, capture_output=True, timeout=300)
    wanted = ("messages", "extra.final")

    def found(path: Path, split: str = "") -> list[tuple[str, str]]:
        rows = SavedDataset(path, split).rows(wanted)
        return [(row.fields["messages"][0]["content"], row.get("extra.final")) for row in rows]

    assert found(tmp_path / "one") == [(f"what is {n}?", str(n)) for n in range(30)]
    assert found(tmp_path / "two", "test") == [("what is 3?", "3")]
    train = found(tmp_path / "two", "train")
    assert len(set(train)) == 20
    assert all(question == f"what is {answer}?" for question, answer in train)
