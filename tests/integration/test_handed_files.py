"""Every text file that somebody hands to a program: a byte order mark changes nothing, and faulty files are named.

Faults are another encoding and brackets without end.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from learner.artifacts.model_directory import BadModel, read_directory
from learner.artifacts.text_files import TOO_DEEP
from node.commands.plan.pool import read_pool
from node.commands.statements.command import lines_of
from node.config.invite_text import open_invite
from node.config.loader import read_node_config, read_swarm_config
from node.config.preflight import require_model
from node.learner_role.training.footprint import read_facts
from node.runtime.errors import NodeError
from node.tasks.api.interface import Chat, TaskError
from node.tasks.data_files.saved_dataset import SavedDataset
from node.tasks.kinds.decontamination import read_excluded
from node.tasks.kinds.problem_files import ProblemFile
from node.tasks.offline_data import read_logs
from node.tasks.registry import open_task
from node.tasks.tokenizer import TextCodec, write_character_tokenizer
from protocol.core.invite import Invite, write_invite

MARK = b"\xef\xbb\xbf"
DEEP = "[" * 5_000 + "]" * 5_000

SWARM = '[swarm]\nname = "caf\u00e9"\n[model]\ndirectory = "model"\n[task]\nspec = "reverse"\n[learn]\nsteps = 5\n'
INVITE = write_invite(Invite(operator=bytes(32), swarm=bytes(32), addresses=["/ip4/1.2.3.4/tcp/4001/p2p/x"]))
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "note": "caf\u00e9"}


@dataclass(frozen=True, kw_only=True)
class Handed:
    """A file `name` that holds `text`, and its reader; `deep` is a file with brackets without end, if
    there can be one.
    """

    name: str
    text: str
    read: Callable[[Path], Any]
    deep: str = ""
    is_marked: bool = True
    """Whether it may have a byte order mark. Other programs read a model's configuration, too, and accept none."""


def write_model(directory: Path) -> Path:
    write_character_tokenizer(directory)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    header = b'{"w":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}'
    for name in ("model.safetensors", "a.safetensors"):
        (directory / name).write_bytes(len(header).to_bytes(8, "little") + header + bytes(2))
    return directory


def without_whole_file(path: Path) -> Path:
    (path.parent / "model.safetensors").unlink(missing_ok=True)
    return path.parent


def task_of(kind: str) -> Callable[[Path], Any]:
    def read(path: Path) -> Any:
        task = open_task(
            f"{kind}:{path.name}:held_out=0,date=day,before=2025-01-01,pass_rate=rate", directory=path.parent
        )
        assert isinstance(task, ProblemFile)
        return [(problem.prompt, problem.answer) for problem in task.training]

    return read


def rows_of(path: Path) -> Any:
    """Return the message about a saved data set without rows; raise an error that is about its JSON."""
    try:
        return list(SavedDataset(path.parent, "").rows(("prompt",)))
    except TaskError as error:
        if path.name in str(error):
            raise
        return str(error)


def logs_of(path: Path) -> Any:
    return read_logs(path, TextCodec.load(path.parent), Chat.NEVER, positions=64, vocabulary=64).groups


def deep_line(**fields: Any) -> str:
    return json.dumps({**fields, "more": "?"}).replace('"?"', DEEP)


LINE: dict[str, Any] = {"prompt": "1+1=caf\u00e9", "answer": "2", "day": "2024-01-01", "rate": 0.5}
CODE = {**LINE, "asserts": "assert f()"}
LOG = {"prompt": "a=", "chosen": "b", "rejected": "c"}
POOL = '[swarm]\ncurrency = "EUR"\n[[machine]]\nname = "caf\u00e9"\nprice = 1\nrate = 1\n'

FILES = {
    "swarm.toml": Handed(name="swarm.toml", text=SWARM, read=read_swarm_config, deep=f"{SWARM}milestones = {DEEP}\n"),
    "node.toml": Handed(
        name="node.toml",
        text='[engine]\nhours = "19:00-07:30"\n# caf\u00e9\n',
        read=read_node_config,
        deep=f"a = {DEEP}",
    ),
    "a pool in TOML": Handed(name="pool.toml", text=POOL, read=read_pool, deep=f"{POOL}up_mbit = {DEEP}\n"),
    "a pool in CSV": Handed(name="pool.csv", text="name,price,rate\ncaf\u00e9,1,1\n", read=read_pool),
    "problems": Handed(
        name="t.jsonl", text=json.dumps(LINE, ensure_ascii=False), read=task_of("jsonl"), deep=deep_line(**LINE)
    ),
    "problems in CSV": Handed(
        name="t.csv", text="prompt,answer,day,rate\n1+1=caf\u00e9,2,2024-01-01,0.5\n", read=task_of("csv")
    ),
    "programs": Handed(
        name="c.jsonl", text=json.dumps(CODE, ensure_ascii=False), read=task_of("code"), deep=deep_line(**CODE)
    ),
    "logs": Handed(name="logs.jsonl", text=json.dumps(LOG, ensure_ascii=False), read=logs_of, deep=deep_line(**LOG)),
    "excluded texts": Handed(
        name="x.txt",
        text='{"text": "caf\u00e9"}\nwhat is it?',
        read=lambda path: read_excluded(path, 0).whole,
        deep=deep_line(text="a"),
    ),
    "a saved data set": Handed(
        name="state.json", text='{"_data_files": [], "note": "caf\u00e9"}', read=rows_of, deep=f'{{"a": {DEEP}}}'
    ),
    "its splits": Handed(
        name="dataset_dict.json", text='{"splits": ["caf\u00e9"]}', read=rows_of, deep=f'{{"a": {DEEP}}}'
    ),
    "an invite": Handed(name="invite", text=INVITE, read=lambda path: open_invite(str(path), now_ms=0)),
    "a model's configuration": Handed(
        name="config.json",
        text=json.dumps(CONFIG, ensure_ascii=False),
        read=lambda path: read_directory(path.parent).config,
        is_marked=False,
        deep=deep_line(**CONFIG),
    ),
    "the same, for a dry run": Handed(
        name="config.json",
        text=json.dumps(CONFIG, ensure_ascii=False),
        read=lambda path: read_facts(path.parent),
        is_marked=False,
        deep=deep_line(**CONFIG),
    ),
    "an index of weights": Handed(
        name="model.safetensors.index.json",
        text=json.dumps({"weight_map": {"w": "a.safetensors"}}),
        read=lambda path: read_directory(without_whole_file(path)).files,
        deep=json.dumps({"weight_map": "?"}).replace('"?"', DEEP),
    ),
    "the same, at the door": Handed(
        name="model.safetensors.index.json",
        text=json.dumps({"weight_map": {"w": "a.safetensors"}}),
        read=lambda path: require_model(without_whole_file(path)),
        deep=json.dumps({"weight_map": "?"}).replace('"?"', DEEP),
    ),
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return write_model(tmp_path)


@pytest.mark.parametrize("kind", FILES)
def test_a_mark_at_the_beginning_is_no_part_of_a_file(place: Path, kind: str) -> None:
    one = FILES[kind]
    path = place / one.name
    path.write_bytes(one.text.encode())
    plain = one.read(path)
    path.write_bytes(MARK + one.text.encode())
    if one.is_marked:
        assert one.read(path) == plain
        return
    with pytest.raises((NodeError, BadModel), match=r"config\.json begins with a byte order mark, which transformers"):
        one.read(path)


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_a_file_in_another_encoding_is_named(place: Path, kind: str, encoding: str) -> None:
    one = FILES[kind]
    path = place / one.name
    path.write_bytes((one.text if "\u00e9" in one.text else f"{one.text}\u00e9").encode(encoding))
    with pytest.raises((NodeError, BadModel)) as caught:
        one.read(path)
    assert one.name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [kind for kind, one in FILES.items() if one.deep])
def test_brackets_without_end_are_named(place: Path, kind: str) -> None:
    one = FILES[kind]
    path = place / one.name
    path.write_text(one.deep, encoding="utf-8")
    with pytest.raises((NodeError, BadModel)) as caught:
        one.read(path)
    assert one.name in str(caught.value)
    assert TOO_DEEP in str(caught.value) or "not an index of weights" in str(caught.value)


def test_a_file_of_problems_that_was_joined_of_several_has_marks_inside(tmp_path: Path) -> None:
    line = json.dumps(LINE).encode()
    (tmp_path / "t.jsonl").write_bytes(b"\n".join([MARK + line, MARK, MARK + line.replace(b"1+1", b"2+0")]))
    assert len(task_of("jsonl")(tmp_path / "t.jsonl")) == 2


def test_a_statement_that_went_through_an_editor_begins_as_it_did(tmp_path: Path) -> None:
    (tmp_path / "receipts.jsonl").write_bytes(MARK + b"{}\n" + MARK + b"{}\n")
    assert list(lines_of(tmp_path / "receipts.jsonl")) == [b"{}\n", MARK + b"{}\n"]
