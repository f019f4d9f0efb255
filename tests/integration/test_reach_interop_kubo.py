"""Punch holes with go-libp2p, in a network namespace: kubo at one end of a cable, hosts of ours at the other.

No router is between them. The tests check that both ends agree on the addresses and the moment of the dials, and that a
connection results.

In go-libp2p's versions up to this one DCUtR's roles are exchanged: the opener of the stream is the client of what
follows (its issue 3171). So if both dials become one connection, two clients or two servers meet, and no connection
results. If one dial arrives at the other's listener first, there is one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from libp2p.relay.circuit_v2.pb.dcutr_pb2 import HolePunch

from tests.support.partners.programs import needs_kubo
from tests.support.paths import ROOT

pytestmark = [
    needs_kubo,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a network namespace"),
]

SCENE_S = 120


def play(act: str) -> Any:
    """Return the outcome of one act of the scene."""
    command = ["unshare", "--net", sys.executable, "-m", "tests.support.partners.kubo_scene", act]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    played = subprocess.run(
        command, cwd=ROOT, env=environment, timeout=SCENE_S, capture_output=True, text=True, check=False
    )
    assert played.returncode == 0, played.stderr
    return json.loads(played.stdout)


def test_a_circuit_to_go_becomes_a_direct_connection() -> None:
    """kubo begins to punch. Its dial arrives at our listener, or ours at its own."""
    said = play("reached")
    assert said["way"] in {"punched", "was_dialled"}
    assert said["at"].startswith("/ip4/1.2.3.3/tcp/")


def test_go_says_where_it_is_seen() -> None:
    """We begin to punch, and kubo answers with CONNECT."""
    assert play("reaches") == {"type": HolePunch.CONNECT, "seen_at": ["/ip4/1.2.3.3/tcp/4001"]}
