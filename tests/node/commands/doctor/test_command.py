"""Run `volery doctor` as it is typed: its output, and its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from node.commands.doctor.command import doctor
from node.runtime.errors import UsageError
from protocol.core.invite import write_invite
from tests.support.doctor_swarm import open_learner

LOOPBACK = "/ip4/127.0.0.1/tcp/0"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VOLERY_HOME", str(tmp_path / "home"))
    path = tmp_path / "node.toml"
    path.write_text(f'[engine]\nkind = "fake"\n[network]\nlisten = ["{LOOPBACK}"]\n')
    return path


async def test_a_machine_that_can_take_part(tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with open_learner(tmp_path, [LOOPBACK], size_bytes=1000) as learner:
        invite = write_invite(learner.invite)
        assert await doctor(invite, config=config, state=None, as_json=False) == 0
        shown = capsys.readouterr().out
        assert await doctor(invite, config=config, state=None, as_json=True) == 0
        told = json.loads(capsys.readouterr().out)
    assert "It can take part; whether others can reach it is not known." in shown
    assert told["verdict"]["can_take_part"] is True
    assert told["learner"]["swarm"]["value"] == "small"


async def test_without_an_invite(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert await doctor("", config=config, state=None, as_json=False) == 0
    assert "volery doctor INVITE" in capsys.readouterr().out
    assert await doctor("", config=config, state=None, as_json=True) == 0
    assert "learner" not in json.loads(capsys.readouterr().out)


async def test_what_is_no_invite(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both forms end with the sentence on standard error; for programs there is JSON as well."""
    for as_json in (False, True):
        with pytest.raises(UsageError, match="volery1"):
            await doctor("hello", config=config, state=None, as_json=as_json)
    told = json.loads(capsys.readouterr().out)
    assert "volery1" in told["error"]
    assert told["verdict"]["can_take_part"] is False


async def test_an_invite_with_a_wrong_token(tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with open_learner(tmp_path, [LOOPBACK], size_bytes=1000) as learner:
        wrong = write_invite(msgspec.structs.replace(learner.invite, token="please"))
        assert await doctor(wrong, config=config, state=None, as_json=True) == 2
    told = json.loads(capsys.readouterr().out)
    [missing] = told["missing"]
    assert missing.startswith("The learner refused this node: The join token is missing or wrong.")
    assert told["verdict"]["ability"] == "nothing"


async def test_a_machine_without_an_engine_that_could_be_used(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text('[engine]\nkind = "vllm"\npython = "/nowhere/python"\n')
    assert await doctor("", config=config, state=None, as_json=False) == 1
    shown = capsys.readouterr().out
    assert "What is missing" in shown
    assert "It cannot take part." in shown
