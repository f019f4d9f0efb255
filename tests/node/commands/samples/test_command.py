"""`volery samples` on the files of a learner that trained."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from node.cli.application import app
from node.commands.samples.command import show
from node.learner_role.metrics.sample_store import FILE, SampleSink
from node.learner_role.training.fixed_settings import note_names
from node.runtime.errors import NodeError, RunError, UsageError
from tests.integration.test_turns import ANSWER, environment
from tests.support.learner_fixture import FakePeer, Settings, fast_directory, open_learner

ASKED = {"version": "", "group": 0, "best": 0, "worst": 0, "json": False}


@pytest.fixture
def state() -> Iterator[Path]:
    with fast_directory() as root:
        (root / "learner.key").write_text("")
        yield root


async def train(state: Path, steps: int) -> None:
    async with open_learner(state, replace(Settings(), steps=steps)) as learner:
        learner.watch.samples, learner.watch.advantage = 1, "group_mean"
        async with learner.watch.feed([], SampleSink(path=state / FILE)):
            await learner.train(FakePeer())
        note_names(learner.ledger, {"even": "vowels"})


async def test_what_a_learner_kept_is_shown(state: Path) -> None:
    await train(state, 3)
    page = show(state, **ASKED)  # type: ignore[arg-type]
    assert page.startswith("Version 1.3 was trained on 4 rollouts with mean reward")
    assert "Group 1: prompt " in page
    assert " of vowels, by a peer " in page, "what people call the task"
    assert "admitted" in page
    told = json.loads(show(state, **ASKED | {"version": "2", "json": True, "best": 1}))  # type: ignore[arg-type]
    assert told["version"] == "1.2"
    assert told["groups"][0]["task"] == "even", "what leases call it"
    [completion] = told["groups"][0]["completions"]
    # There is no tokenizer in this store: ids are shown as they are.
    assert completion["parts"][0]["text"] == " ".join(map(str, completion["parts"][0]["tokens"]))


async def test_an_advantage_that_logs_had_a_part_in_is_not_guessed(state: Path) -> None:
    async with open_learner(state, Settings(steps=1, logged=2)) as learner:
        learner.watch.samples, learner.watch.advantage = 1, "batch_mean"
        async with learner.watch.feed([], SampleSink(path=state / FILE)):
            await learner.train(FakePeer())
    [group] = json.loads(show(state, **ASKED | {"json": True}))["groups"]  # type: ignore[arg-type]
    assert {one["advantage"] for one in group["completions"]} == {None}


async def test_a_restart_goes_on_with_the_samples(state: Path) -> None:
    await train(state, 2)
    await train(state, 3)
    for version in ("1.2", "2.2", "2"):
        assert show(state, **ASKED | {"version": version}).startswith("Version 1.2 ")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"--version 2\.1: no sample of it is kept"):  # 2 began at step 2
        show(state, **ASKED | {"version": "2.1"})  # type: ignore[arg-type]
    with pytest.raises(UsageError) as caught:
        show(state, **ASKED | {"version": "99.1"})  # type: ignore[arg-type]
    assert str(caught.value) == (
        "--version 99.1: there is no incarnation 99; this learner began incarnation 1 at step 0, 2 at step 2. Samples "
        "of 3 versions are kept, from 1.1 to 2.3. The nearest: 1.1, 1.2, 2.3."
    )
    with pytest.raises(UsageError, match=r"--version 1\.: write INCARNATION\.VERSION, such as 1\.20, or only VERSION"):
        show(state, **ASKED | {"version": "1."})  # type: ignore[arg-type]
    assert show(state, **ASKED).startswith("Version 2.3 ")  # type: ignore[arg-type]


async def test_what_is_not_kept_is_said_with_what_is(state: Path) -> None:
    with pytest.raises(RunError, match="holds no samples"):
        show(state, **ASKED)  # type: ignore[arg-type]
    await train(state, 3)
    with pytest.raises(UsageError, match=r"of 3 versions are kept, from 1\.1 to 1\.3\. The nearest: 1\.1, 1\.2, 1\.3"):
        show(state, **ASKED | {"version": "9"})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"--group 2: version 1\.3 has groups 1 to 1"):
        show(state, **ASKED | {"group": 2})  # type: ignore[arg-type]


async def test_a_run_on_logs_alone_says_that_it_was(state: Path) -> None:
    async with open_learner(state, Settings(steps=2, logged=4)) as learner:
        learner.watch.samples = 1
        async with learner.watch.feed([], SampleSink(path=state / FILE)):
            await learner.train()
    with pytest.raises(
        RunError, match=r"all 2 training steps of this run took logs alone \(\[offline\] share = 1\.0\)"
    ):
        show(state, **ASKED)  # type: ignore[arg-type]
    await train(state, 4)
    assert show(state, **ASKED).startswith("Version 2.4 ")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"--version 2: training step 2 took logs alone, .* from 2\.3 to 2\.4"):
        show(state, **ASKED | {"version": "2"})  # type: ignore[arg-type]


async def test_a_disk_that_cannot_be_written_to_is_not_called_damage(state: Path) -> None:
    await train(state, 1)
    # SQLite finds no room for its lock file, as on a disk that is mounted to be read only.
    (state / f"{FILE}-shm").symlink_to(state / "nowhere" / "file")
    with pytest.raises(RunError) as caught:
        show(state, **ASKED)  # type: ignore[arg-type]
    assert str(caught.value) == (
        f"{state / FILE} cannot be opened (unable to open database file). SQLite keeps a lock file beside it, so its "
        f"directory must be writable: copy {state} to a writable disk, and show the copy."
    )
    (state / f"{FILE}-shm").unlink()
    (state / FILE).write_bytes(b"no database" * 1000)
    with pytest.raises(RunError, match=r"samples\.sqlite cannot be read .*delete it while no learner runs"):
        show(state, **ASKED)  # type: ignore[arg-type]


def test_a_volunteers_directory_has_no_samples(tmp_path: Path) -> None:
    (tmp_path / "node.key").write_text("")
    with pytest.raises(UsageError, match="only a learner keeps samples"):
        show(tmp_path, **ASKED)  # type: ignore[arg-type]


def test_the_command_line_reaches_it(tmp_path: Path) -> None:
    (tmp_path / "learner.key").write_text("")
    done = CliRunner().invoke(
        app, ["samples", str(tmp_path), "--version", "3", "--best", "2", "--worst", "1", "--json"]
    )
    assert isinstance(done.exception, NodeError)
    assert "holds no samples" in str(done.exception)


async def test_words_of_an_environment_stand_apart(state: Path) -> None:
    async with open_learner(state, replace(Settings(), steps=4), environment=environment) as learner:
        learner.watch.samples, learner.watch.advantage = 2, "group_mean"
        async with learner.watch.feed([], SampleSink(path=state / FILE)):
            await learner.train(FakePeer())
    parts = [
        [(part["by"], part["tokens"]) for part in one["parts"]]
        for version in ("1", "2", "3", "4")
        for group in json.loads(show(state, **ASKED | {"version": version, "json": True}))["groups"]  # type: ignore[arg-type]
        for one in group["completions"]
    ]
    turns = [one for one in parts if len(one) > 1]
    assert turns, "no episode of several turns was kept"
    for one in turns:
        assert [by for by, _ in one] == ["policy", "environment"] * (len(one) // 2) + ["policy"]
        assert all(tokens[0] == ANSWER for by, tokens in one if by == "environment")
