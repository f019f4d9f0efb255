"""The launch agent of a service, as macOS reads it."""

from __future__ import annotations

import plistlib
from pathlib import Path

from node.commands.service.launchd_plist import plist_text
from node.commands.service.service_spec import read_mark
from tests.node.commands.service.test_service_spec import spec

LOG = Path("/Users/ada/Library/Logs/Volery/volery-node-kites.log")


def test_an_agent_is_read_back() -> None:
    service = spec(environment={"VOLERY_HOME": "/Users/ada/a & b"})
    assert plistlib.loads(plist_text(service, log=LOG).encode()) == {
        "Label": "volery-node-kites",
        "ProgramArguments": list(service.command),
        "EnvironmentVariables": {"VOLERY_HOME": "/Users/ada/a & b"},
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 60,
        "ExitTimeOut": 30,
        "Nice": 5,
        "Umask": 0o077,
        "StandardOutPath": str(LOG),
        "StandardErrorPath": str(LOG),
    }


def test_the_comment_says_what_it_is_and_ends_where_it_should() -> None:
    service = spec(title="dashes -- and --> more", called="kites")
    text = plist_text(service, log=LOG)
    assert text.startswith('<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE plist')
    found = read_mark(text, Path("agent"))
    assert found is not None
    assert found.swarm == "dashes -- and --> more"
    assert plistlib.loads(text.encode())["Label"] == "volery-node-kites"
