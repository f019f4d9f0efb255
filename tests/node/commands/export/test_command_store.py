"""`volery export` of versions in a store: adapters, cards, licences, pushes, and failures that leave nothing."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from learner.ledger.ledger import Ledger
from node.commands.export import command as commands
from node.commands.export.command import Wishes, export_version
from node.commands.init.command import write_swarm_config
from node.config.loader import read_swarm_config
from node.learner_role.training.base_model import digests_of
from node.runtime.errors import RunError, UsageError
from node.state.keys import load_or_create_key
from protocol.core.ids import PolicyVersion
from swarm.store import ChunkStore
from tests.node.commands.export.test_adapters import version as adapter_version
from tests.support.disks import file_limit
from tests.support.ledgers import Story
from tests.support.store_fixture import fill, small_swarm, write_model

SWARM = small_swarm("bees")

PLAIN = {"config.json": b"{}", "tokenizer.json": b"{}"}


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def with_adapter(scratch: Path) -> dict[str, bytes]:
    adapter_version(scratch)
    return files_of(scratch)


def stock(state: Path, *versions: Mapping[str, bytes]) -> None:
    """Let the store of `state` hold these versions, 1.1 and so on."""
    store = ChunkStore.open(state / "store", SWARM.authority)
    (state / "store" / "genesis").write_bytes(SWARM.genesis)
    for number, files in enumerate(versions, 1):
        fill(store, SWARM.publish(files, version=number), files)
    store.close()


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A volunteer's state directory, with no version yet."""
    state = tmp_path / "node"
    state.mkdir()
    load_or_create_key(state / "node.key")
    return state


@dataclass(frozen=True)
class Learner:
    """A learner's swarm.toml, whose model directory has a card that names a licence."""

    config: Path
    model: Path

    @property
    def state(self) -> Path:
        return Path(read_swarm_config(self.config).swarm.state)


@pytest.fixture
def learner(tmp_path: Path) -> Learner:
    config = write_swarm_config(tmp_path / "swarm", name="bees", port=4001)
    state = Path(read_swarm_config(config).swarm.state)
    state.mkdir(parents=True)
    (state / "genesis").write_bytes(SWARM.genesis)
    model = Path(read_swarm_config(config).model.directory)
    write_model(model, {**with_adapter(tmp_path / "made"), "README.md": b"---\nlicense: apache-2.0\n---\n"})
    with Ledger(state / "ledger.sqlite", swarm=SWARM.authority.swarm) as ledger:
        ledger.training.begin_incarnation(0, 1_000)
        ledger.training.begun_with(digests_of(model))
        for number, score in ((1, 0.5), (2, 0.25)):
            Story(ledger=ledger).train(number, {})
            ledger.training.evaluated(PolicyVersion(1, number), 1_000 + number, prompts=9, greedy=score, sampled=score)
    return Learner(config, model)


@contextmanager
def nothing_beside(directory: Path) -> Iterator[None]:
    before = set(directory.iterdir())
    yield
    assert set(directory.iterdir()) == before


def test_a_volunteer_exports_the_newest_with_a_card(node: Path, tmp_path: Path) -> None:
    stock(node, PLAIN, {**PLAIN, "config.json": b'{"a": 1}'})
    said = export_version(node, tmp_path / "out", "")
    assert said.startswith("Wrote version 1.2 (the newest; ")
    assert (tmp_path / "out" / "config.json").read_bytes() == b'{"a": 1}'
    card = (tmp_path / "out" / "README.md").read_text()
    assert "# bees, version 1.2" in card
    assert "exported on a contributor's machine" in card
    assert SWARM.authority.swarm.hex() in card
    with pytest.raises(UsageError, match="evaluations are in the learner's ledger"):
        export_version(node, tmp_path / "best", "best")


def test_a_learner_exports_the_best(learner: Learner, tmp_path: Path) -> None:
    stock(learner.state, PLAIN, PLAIN)
    best = export_version(learner.config, tmp_path / "best", "best")
    assert best.startswith("Wrote version 1.1 (the best by evaluation, 0.500 sampled on 9 held-out prompts; ")
    newest = export_version(learner.config, tmp_path / "newest", "")
    assert "Version 1.1 scored higher on the held-out prompts (0.500 against 0.250 sampled)" in newest
    card = (tmp_path / "newest" / "README.md").read_text()
    assert 'license: "apache-2.0"' in card
    assert "| all | 0.500 | 0.250 | 0.500 | 0.250 |" in card
    assert str(tmp_path) not in card


def test_a_ledger_that_cannot_be_read_costs_the_figures_alone(learner: Learner, tmp_path: Path) -> None:
    stock(learner.state, PLAIN)
    (learner.state / "ledger.sqlite").write_bytes(b"no ledger, but as long as some" * 999)
    assert export_version(learner.config, tmp_path / "out", "").startswith("Wrote version 1.1")
    assert "The ledger of the run could not be read" in (tmp_path / "out" / "README.md").read_text()
    for wanted in ("best", "7"):
        with pytest.raises(RunError, match=r"ledger\.sqlite"):
            export_version(learner.config, tmp_path / "other", wanted)


def test_adapters_are_merged_or_alone(learner: Learner, tmp_path: Path) -> None:
    stock(learner.state, with_adapter(tmp_path / "v"))
    assert "its adapter merged into 1 weight" in export_version(learner.config, tmp_path / "merged", "")
    assert not (tmp_path / "merged" / "adapter_config.json").exists()
    said = export_version(learner.config, tmp_path / "alone", "", Wishes(adapter=True, base_model="a/b"))
    assert said.endswith(", only the adapter")
    assert not (tmp_path / "alone" / "model.safetensors").exists()
    assert json.loads((tmp_path / "alone" / "adapter_config.json").read_text())["base_model_name_or_path"] == "a/b"


def test_an_adapter_of_another_base_is_refused(learner: Learner, tmp_path: Path) -> None:
    stock(learner.state, with_adapter(tmp_path / "v"))
    weights = learner.model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    with nothing_beside(tmp_path):
        with pytest.raises(UsageError, match="does not hold the model that this run began with"):
            export_version(learner.config, tmp_path / "out", "", Wishes(adapter=True))
        with pytest.raises(UsageError, match=r"a published model needs a licence"):
            export_version(learner.config, tmp_path / "out", "", Wishes(push=str(tmp_path / "repo")))


def test_a_run_without_adapters_has_none(learner: Learner, tmp_path: Path) -> None:
    stock(learner.state, PLAIN)
    with nothing_beside(tmp_path), pytest.raises(UsageError, match="Omit --adapter"):
        export_version(learner.config, tmp_path / "out", "", Wishes(adapter=True))


def test_an_adapter_is_published_with_its_base_alone(learner: Learner, tmp_path: Path) -> None:
    stock(learner.state, with_adapter(tmp_path / "v"))
    repo = str(tmp_path / "repo")
    with pytest.raises(UsageError, match="Add --base-model ORG/NAME"):
        export_version(learner.config, tmp_path / "out", "", Wishes(adapter=True, push=repo))
    cache = tmp_path / "models--Qwen--Qwen3-0.6B" / "snapshots" / "abc"
    shutil.copytree(learner.model, cache)
    text = learner.config.read_text().replace(f'directory = "{learner.model.name}"', f'directory = "{cache}"')
    learner.config.write_text(text)
    export_version(learner.config, tmp_path / "out", "", Wishes(adapter=True, push=repo))
    assert 'base_model: "Qwen/Qwen3-0.6B"' in (tmp_path / "repo" / "README.md").read_text()


def test_a_licence_is_asked_for_when_it_is_published(node: Path, tmp_path: Path) -> None:
    stock(node, PLAIN)
    wishes = Wishes(push=str(tmp_path / "repo"))
    with (
        nothing_beside(tmp_path),
        pytest.raises(UsageError, match=r"Add one by its name on the hub, such as --license apache-2\.0"),
    ):
        export_version(node, tmp_path / "out", "", wishes)
    said = export_version(node, tmp_path / "out", "", wishes, ask=lambda: "mit")
    assert said.endswith(f"\nPushed version 1.1 to {tmp_path / 'repo'}")
    assert 'license: "mit"' in (tmp_path / "repo" / "README.md").read_text()
    again = export_version(node, tmp_path / "out", "", wishes, ask=lambda: "never asked")
    assert "already holds version 1.1, and was not written again" in again
    with pytest.raises(UsageError, match="--license 'a b'"):
        export_version(node, tmp_path / "new", "", Wishes(licence="a b"))


def test_a_changed_card_is_pushed_as_it_is(node: Path, tmp_path: Path) -> None:
    stock(node, PLAIN)
    export_version(node, tmp_path / "out", "", Wishes(licence="mit"))
    card = tmp_path / "out" / "README.md"
    card.write_text(card.read_text() + "More.\n")
    export_version(node, tmp_path / "out", "", Wishes(push=str(tmp_path / "repo")))
    assert files_of(tmp_path / "repo") == files_of(tmp_path / "out")
    with pytest.raises(UsageError, match="already exists, and was not changed"):
        export_version(node, tmp_path / "out", "")


def test_whatever_fails_leaves_nothing(node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stock(
        node,
        {**PLAIN, "model.safetensors": with_adapter(tmp_path / "v")["model.safetensors"], "vocab.json": b"x" * 9000},
    )
    with nothing_beside(tmp_path):
        with file_limit(8192), pytest.raises(RunError, match=r"could not be written: .* Nothing was left there"):
            export_version(node, tmp_path / "out", "")

        def stopped(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(commands, "write_record", stopped)
        with pytest.raises(KeyboardInterrupt):
            export_version(node, tmp_path / "out", "")
        monkeypatch.undo()
        os.chmod(tmp_path, 0o700)
    export_version(node, tmp_path / "out", "")


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"gguf": "x.bin"}, "must end in .gguf"),
        ({"gguf": "x.gguf", "adapter": True}, "writes a whole model"),
        ({"gguf": "there.gguf"}, "already exists"),
    ],
    ids=["ending", "adapter", "there"],
)
def test_a_gguf_file_that_cannot_be_is_refused_first(
    node: Path, tmp_path: Path, wishes: dict[str, object], words: str
) -> None:
    stock(node, PLAIN)
    (tmp_path / "there.gguf").touch()
    asked = {**wishes, "gguf": tmp_path / str(wishes["gguf"])}
    with nothing_beside(tmp_path), pytest.raises(UsageError, match=words):
        export_version(node, tmp_path / "out", "", Wishes(**asked))  # type: ignore[arg-type]


class TestGguf:
    @pytest.fixture
    def files(self, tmp_path: Path) -> dict[str, bytes]:
        pytest.importorskip("gguf", reason="needs pip install 'volery[gguf]'")
        from tests.integration.test_gguf import write_model as write_real_model

        return files_of(write_real_model(tmp_path / "real", "qwen3"))

    def test_it_lies_in_the_directory_or_beside_it(self, node: Path, tmp_path: Path, files: dict[str, bytes]) -> None:
        stock(node, files)
        out, repo = tmp_path / "out", tmp_path / "repo"
        said = export_version(node, out, "", Wishes(gguf=out / "m.gguf", licence="mit", push=str(repo)))
        assert f", and {out / 'm.gguf'} (" in said
        assert "m.gguf" in files_of(repo)
        assert '- "gguf"' in (out / "README.md").read_text()
        export_version(node, out, "", Wishes(gguf=tmp_path / "m.gguf", push=str(repo)))
        assert (tmp_path / "m.gguf").read_bytes() == (out / "m.gguf").read_bytes()

    def test_where_it_cannot_be_made_nothing_is_left(self, node: Path, tmp_path: Path, files: dict[str, bytes]) -> None:
        stock(node, PLAIN, files)
        with nothing_beside(tmp_path):
            with pytest.raises(UsageError, match="convert_hf_to_gguf"):
                export_version(node, tmp_path / "out", "1", Wishes(gguf=tmp_path / "m.gguf"))
            size = max(map(len, files.values())) + 5000
            with file_limit(size), pytest.raises(RunError, match=r"m\.gguf cannot be written"):
                export_version(node, tmp_path / "out", "2", Wishes(gguf=tmp_path / "m.gguf"))
