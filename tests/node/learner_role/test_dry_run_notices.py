"""A dry run says where notices go, and keeps the URL's secret."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from node.config.loader import read_swarm_config
from node.learner_role.dry_run import StartDescription, describe_notices
from node.runtime.errors import UsageError

SWARM = '[swarm]\nname = "words"\n[model]\ndirectory = "model"\n[task]\nspec = "reverse"\n[learn]\nsteps = 3\n'
DISCORD = "https://discord.com/api/webhooks/12/Sec-ret"


def description(path: Path, notify: str) -> StartDescription:
    path.write_text(SWARM + notify, encoding="utf-8")
    config = read_swarm_config(path)
    return StartDescription(path=path, config=config, findings=list(describe_notices(config.notify, path)))


def test_where_notices_go_is_told_without_the_secret(tmp_path: Path) -> None:
    path = tmp_path / "swarm.toml"
    told = description(path, f'[notify]\nurl = "{DISCORD}"\nevents = ["alarm", "end"]\n')
    assert told.findings == [
        "Notices (alarm, end) are posted to https://discord.com/*** in the form of Discord. Try it: volery notify "
        f"{path}",
        "That URL is a secret, and is not shown whole: if you save this, write it in again.",
    ]
    assert tomllib.loads(told.text)["notify"]["url"] == "https://discord.com/***"
    assert json.loads(told.json)["configuration"]["notify"]["url"] == "https://discord.com/***"
    assert "Sec-ret" not in told.text + told.json


def test_what_was_saved_from_a_dry_run_is_refused_until_the_url_is_there(tmp_path: Path) -> None:
    path = tmp_path / "swarm.toml"
    path.write_text(description(path, f'[notify]\nurl = "{DISCORD}"\n').text, encoding="utf-8")
    with pytest.raises(UsageError, match="in place of its secret"):
        list(describe_notices(read_swarm_config(path).notify, path))


def test_without_a_url_and_with_one_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", DISCORD)
    path = tmp_path / "swarm.toml"
    assert description(path, "").findings == ["Notices: none, because [notify] names no url."]
    told = description(path, '[notify]\nurl_env = "HOOK"\nevents = []\n')
    assert told.findings == [
        "Notices (none, since events is empty) are posted to https://discord.com/*** in the form of Discord. Try it: "
        f"volery notify {path}",
    ]
    assert "Sec-ret" not in told.text + told.json
