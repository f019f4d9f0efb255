"""Read paths as people write them: no path raises an error of the system."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.runtime.errors import UsageError
from node.runtime.user_paths import as_path, real_path


def test_the_home_is_put_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert as_path("~/models/a") == Path("/home/ann/models/a")
    assert as_path("models/~a") == Path("models/~a")


def test_a_user_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match=r"this machine has no user 'nobody-here'\. Write \./~nobody-here"):
        as_path("~nobody-here/models/a")


def test_links_in_a_circle_lead_nowhere_and_raise_nothing(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert real_path(tmp_path / "loop" / "below").parent.name == "loop"
