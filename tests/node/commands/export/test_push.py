"""Push to a directory and to a hub on this machine: repeated, cut short, over others' files, without rights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest
import yaml

from node.commands.export import push_directory
from node.commands.export.push import license_card, push, require_same, target_of
from node.commands.export.record import RECORD, ExportRecord, read_record, write_record
from node.commands.export.version_choice import Chosen
from node.runtime.errors import RunError, UsageError
from protocol.core.ids import PolicyVersion
from tests.support.disks import file_limit
from tests.support.hub_server import TOKEN, Hub, Repository, hub_server

SWARM = "ab" * 32


def export(directory: Path, *names: str, version: str = "1.6", swarm: str = SWARM, form: str = "model") -> Path:
    """An export with these files beside its card."""
    directory.mkdir(parents=True)
    (directory / "README.md").write_text('---\nlibrary_name: "transformers"\n---\n\nA card.\n')
    for name in names or ("config.json", "model.safetensors"):
        (directory / name).write_bytes(f"{name} of {version}".encode())
    write_record(directory, swarm=swarm, version=version, manifest="", form=form)
    return directory


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with hub_server() as hub:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
        template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub


class TestDirectory:
    def test_a_push_and_a_later_one(self, tmp_path: Path) -> None:
        repo = tmp_path / "repo"
        target = target_of(repo.as_uri(), private=False)
        one = export(tmp_path / "one", "config.json", "model-00001-of-00002.safetensors")
        assert push(one, target) == f"Pushed version 1.6 to {repo}"
        assert files(repo) == files(one)
        (repo / "notes.txt").write_text("mine")
        two = export(tmp_path / "two", version="1.9")
        push(two, target)
        push(two, target)
        assert files(repo) == {**files(two), "notes.txt": b"mine"}, "files that only the first push wrote must be gone"

    @pytest.mark.parametrize("name", ["README.md", "config.json"])
    def test_others_files_are_never_replaced(self, tmp_path: Path, name: str) -> None:
        repo = tmp_path / "repo"
        repo.mkdir()
        (repo / name).write_text("mine")
        with pytest.raises(UsageError, match=f"would replace .{name}.*was not changed"):
            push(export(tmp_path / "one"), target_of(str(repo), private=False))
        assert files(repo) == {name: b"mine"}

    def test_another_swarms_model_is_left(self, tmp_path: Path) -> None:
        target = target_of(str(tmp_path / "repo"), private=False)
        push(export(tmp_path / "one", swarm="cd" * 32), target)
        with pytest.raises(UsageError, match=r"version 1\.6 of another swarm \(cdcdcdcd\)"):
            push(export(tmp_path / "two"), target)

    def test_a_full_disk_leaves_it_as_it_was(self, tmp_path: Path) -> None:
        target = target_of(str(tmp_path / "repo"), private=False)
        push(export(tmp_path / "one"), target)
        before = files(tmp_path / "repo")
        two = export(tmp_path / "two", version="1.9")
        (two / "model.safetensors").write_bytes(b"x" * 5000)
        with file_limit(4096), pytest.raises(RunError, match="could not be written"):
            push(two, target)
        assert files(tmp_path / "repo") == before
        with file_limit(4096), pytest.raises(RunError):
            push(two, target_of(str(tmp_path / "new"), private=False))
        assert not (tmp_path / "new").exists()

    def test_a_push_killed_between_two_files_is_completed_by_the_next(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        target = target_of(str(tmp_path / "repo"), private=False)
        push(export(tmp_path / "one", "config.json", "old.safetensors"), target)
        two = export(tmp_path / "two", "config.json", "new.safetensors", version="1.9")

        class Killed(BaseException):
            pass

        def killed(*_: object, **__: object) -> None:
            raise Killed

        replace, left = Path.replace, [2]  # the record's draft, then one file

        def some(path: Path, to: Path) -> Path:
            left[0] -= 1
            return replace(path, to) if left[0] >= 0 else killed()  # type: ignore[func-returns-value,return-value]

        monkeypatch.setattr(Path, "replace", some)
        monkeypatch.setattr(push_directory.shutil, "rmtree", killed)
        with pytest.raises(Killed):
            push(two, target)
        monkeypatch.undo()
        push(two, target)
        assert files(tmp_path / "repo") == files(two)


def record(directory: Path) -> ExportRecord:
    found = read_record(directory / RECORD)
    assert found is not None
    return found


class TestHub:
    def test_a_push_is_one_commit_and_a_second_sends_nothing_twice(self, hub: Hub, tmp_path: Path) -> None:
        target = target_of("ann/model", private=True)
        one = export(tmp_path / "one")
        assert push(one, target) == f"Pushed version 1.6 to {hub.url}/ann/model"
        repo = hub.repos["ann/model"]
        assert (repo.private, repo.commits, hub.uploads()) == (True, ["initial commit", "Version 1.6"], 1)
        assert repo.files == {**files(one), ".gitattributes": b""}
        push(one, target)
        assert hub.uploads() == 1
        repo.files["notes.txt"] = b"mine"
        two = export(tmp_path / "two", "config.json", "model-1.safetensors", version="1.9")
        push(two, target)
        assert repo.files == {**files(two), ".gitattributes": b"", "notes.txt": b"mine"}
        assert repo.commits[-1] == "Version 1.9"
        assert {token for _, path, token in hub.asked if "ann" in path} == {f"Bearer {TOKEN}"}
        assert not any(token for _, path, token in hub.asked if path.startswith("/upload/"))

    def test_others_files_and_public_repositories_are_left(self, hub: Hub, tmp_path: Path) -> None:
        hub.repos["ann/model"] = Repository(files={"config.json": b"mine"})
        one = export(tmp_path / "one")
        with pytest.raises(UsageError, match=r"did not put there and would replace \(config.json\)"):
            push(one, target_of("ann/model", private=False))
        with pytest.raises(UsageError, match="it is already public"):
            push(one, target_of("ann/model", private=True))
        assert hub.repos["ann/model"].files == {"config.json": b"mine"}

    def test_a_record_that_is_no_record_gives_no_right(self, hub: Hub, tmp_path: Path) -> None:
        theirs = {"config.json": b"mine", RECORD: json.dumps({"files": ["config.json"]}).encode()}
        hub.repos["ann/model"] = Repository(files=dict(theirs))
        with pytest.raises(UsageError, match=r"config\.json, volery\.json"):
            push(export(tmp_path / "one"), target_of("ann/model", private=False))
        assert hub.repos["ann/model"].files == theirs

    @pytest.mark.parametrize(
        ("end", "status", "words"),
        [
            ("/repos/create", 401, "did not accept the token. Log in"),
            ("/repos/create", 403, "may not write to ann/model"),
            ("/commit/main", 403, "may not write to ann/model"),
            ("/commit/main", 412, "somebody else changed the repository meanwhile"),
            ("/preupload/main", 422, "the hub refused it"),
            ("/objects/batch", 404, "can see no ann/model"),
        ],
        ids=["login", "no right to create", "no right to write", "changed", "refused", "gone"],
    )
    def test_refusals_say_what_to_do(self, hub: Hub, tmp_path: Path, end: str, status: int, words: str) -> None:
        hub.refuse[end] = status
        one = export(tmp_path / "one")
        with pytest.raises(RunError, match=words) as told:
            push(one, target_of("ann/model", private=False))
        assert TOKEN not in str(told.value)
        assert f"The export is in {one}" in str(told.value)
        hub.refuse.clear()
        push(one, target_of("ann/model", private=False))
        assert hub.repos["ann/model"].files["config.json"] == b"config.json of 1.6"
        assert hub.uploads() == 1, "a file that had arrived must not be sent again"

    def test_a_hub_that_is_away(self, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:1")
        with pytest.raises(RunError, match="could not be reached"):
            push(export(tmp_path / "one"), target_of("ann/model", private=False))

    @pytest.mark.parametrize("name", ["model", "a/b/c", "ann/mod el", "ann/..", "-x/y", ""])
    def test_names_that_the_hub_does_not_take(self, hub: Hub, name: str) -> None:
        with pytest.raises(UsageError, match="Write ORG/NAME, or a directory as"):
            target_of(name, private=False)

    def test_no_token(self, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("HF_TOKEN")
        monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
        with pytest.raises(UsageError, match=r"there is no token for the hub\. Log in"):
            target_of("ann/model", private=False)
        assert not hub.asked


def test_private_directories_and_other_addresses(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--private is for the hub"):
        target_of(str(tmp_path), private=True)
    with pytest.raises(UsageError, match="write file:///PATH"):
        target_of("file://host/x", private=False)


def test_only_the_export_that_is_there_is_pushed(tmp_path: Path) -> None:
    target = target_of(str(tmp_path / "repo"), private=False)
    one = export(tmp_path / "one")
    same = Chosen(version=PolicyVersion(1, 6))
    require_same(one, same, "", target)
    with pytest.raises(UsageError, match=r"holds version 1\.6, but version 1\.7 was asked for.*--version 1\.6"):
        require_same(one, Chosen(version=PolicyVersion(1, 7)), "", target)
    with pytest.raises(UsageError, match=r"as a whole model\. Omit --adapter"):
        require_same(one, same, "adapter", target)
    with pytest.raises(UsageError, match="already in that directory"):
        require_same(one, same, "", target_of(str(one), private=False))
    (one / "config.json").unlink()
    with pytest.raises(RunError, match=r"lacks config\.json"):
        require_same(one, same, "", target)


def test_a_card_gets_the_licence_that_it_lacks(tmp_path: Path) -> None:
    target = target_of(str(tmp_path / "repo"), private=False)
    one = export(tmp_path / "one")
    with pytest.raises(UsageError, match=r"--license apache-2\.0"):
        license_card(one, "", target, str)
    license_card(one, "", target, lambda: "mit")
    text = (one / "README.md").read_text()
    assert yaml.safe_load(text.split("---\n")[1]) == {"license": "mit", "library_name": "transformers"}
    license_card(one, "mit", target, str)
    with pytest.raises(UsageError, match="names mit"):
        license_card(one, "apache-2.0", target, str)
