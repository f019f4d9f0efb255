"""A service's name is safe wherever it stands, and its file says what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.commands.service.service_spec import MAX_NAME, ServiceSpec, escaped, read_mark
from node.runtime.errors import UsageError


def spec(**changes: Any) -> ServiceSpec:
    """A node of the swarm "kites", with these values changed."""
    state = Path("/home/ada/.local/share/volery/8a8a8a8a8a8a8a8a/node-1")
    values: dict[str, Any] = {
        "role": "node",
        "title": "kites",
        "called": "kites",
        "state": state,
        "command": ("/opt/volery/bin/volery", "join", f"{state}/invite", "--state", str(state), "--plain"),
        "environment": {},
        "memory_gb": None,
        "nice": 5,
    }
    return ServiceSpec(**{**values, **changes})


@pytest.mark.parametrize(
    ("swarm", "name"),
    [
        ("my-swarm.2", "my-swarm.2"),
        ("große Herde", "gro_c3_9fe_20Herde"),
        ("a_b", "a_5fb"),
        ("../../etc/passwd", ".._2f.._2fetc_2fpasswd"),
        ("%n@$(reboot)", "_25n_40_24_28reboot_29"),
    ],
)
def test_names_are_safe(swarm: str, name: str) -> None:
    assert escaped(swarm) == name
    assert spec(called=swarm).name == f"volery-node-{name}"


@given(st.text(min_size=1), st.text(min_size=1))
def test_two_swarms_have_one_name_only_if_they_are_called_the_same(one: str, other: str) -> None:
    assert (escaped(one) == escaped(other)) == (
        one.encode("utf-8", "surrogatepass") == other.encode("utf-8", "surrogatepass")
    )


@given(st.text())
def test_names_fit_and_are_plain(name: str) -> None:
    assert len(escaped(name)) <= MAX_NAME
    assert set(escaped(name)) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._")


@pytest.mark.parametrize("title", ["kites", "große Herde", 'quotes " and -- dashes -->', "{}"])
def test_a_mark_is_read_back(title: str) -> None:
    service = spec(title=title, called=title)
    assert "--" not in service.mark
    found = read_mark(f"# one\n# {service.mark}\n[Unit]\n", Path("unit"))
    assert found is not None
    assert (found.name, found.role, found.swarm, found.state) == (service.name, "node", title, service.state)


@pytest.mark.parametrize("text", ["", "[Unit]\n", "# volery-service: {}\n", "# volery-service: {'a'}\n"])
def test_other_files_are_not_ours(text: str) -> None:
    assert read_mark(text, Path("unit")) is None


def test_control_characters_are_refused() -> None:
    with pytest.raises(UsageError, match="plain name"):
        spec(command=("/opt/volery", "learn", "/home/ada/two\nlines"))
    with pytest.raises(UsageError, match="plain name"):
        spec(environment={"VOLERY_HOME": "/home/\udcff"})
