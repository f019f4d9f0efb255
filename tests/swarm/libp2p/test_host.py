"""Test how many connections a host keeps."""

from __future__ import annotations

from swarm.libp2p.host import MAX_CONNECTIONS, OTHER_FILES, most_members


def test_members_leave_file_descriptors_to_others() -> None:
    assert most_members(-1) == most_members(1 << 20) == MAX_CONNECTIONS
    assert most_members(1024) == 1024 - OTHER_FILES
    assert most_members(256) == 128
    assert most_members(1) == 1
