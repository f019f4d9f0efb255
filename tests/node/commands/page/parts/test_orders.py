"""The owner's controls: a form for each limit that may change, and the others as text."""

from __future__ import annotations

from node.commands.page.parts.orders import LIMITS, UNREADABLE, learner_orders, node_orders
from node.config.live_limits import SECTIONS, named
from node.config.node_config import NodeConfig
from node.config.swarm_config import LearnSection, ModelSection, SwarmConfig, SwarmSection
from node.reports.model.report import Role
from node.rollout_role.resource_limits import in_force
from node.state.status_file import NodeStatus
from node.ui.live_view import ViewState
from tests.node.commands.page.parts.test_learner_page import read

Element = dict[str, str | None]


def inputs(status: NodeStatus) -> dict[str, Element]:
    """Return the visible input of each limit's form, by the key that it changes."""
    found: dict[str, Element] = {}
    waits: Element | None = None
    for tag, attributes in read(node_orders(status, is_paused=False).text).elements:
        if tag == "input" and attributes["name"] == "value":
            waits = attributes
        elif tag == "input" and attributes["name"] == "key":
            assert waits is not None
            found[str(attributes["value"])] = waits
    return found


def test_every_limit_that_can_change_has_a_form_with_its_value() -> None:
    limits = in_force(NodeConfig())
    assert set(LIMITS) == set(SECTIONS)
    values = {"hours": "19:00-07:30", "upload_mbit": 12.5, "download_mbit": None, "quota_gb": 123456.789}
    status = NodeStatus(doing="at work", limits=limits, changeable=values)
    found = inputs(status)
    assert {key: one["value"] for key, one in found.items()} == {
        "hours": "19:00-07:30", "upload_mbit": "12.5", "download_mbit": "", "quota_gb": "123456.789"
    }  # fmt: skip
    assert [key for key, one in found.items() if "required" in one] == ["quota_gb"]
    text = node_orders(status, is_paused=False).text
    for key in limits:
        assert (f"<li>{key}: " in text) == (key not in map(named, values)), "the others change with a restart"
    assert "In force" not in text


def test_a_changed_limit_says_how_long_it_holds() -> None:
    shown = "8 Mbit/s (until the node ends; at its start: none)"
    status = NodeStatus(doing="", limits={"[network] upload_mbit": shown}, changeable={"upload_mbit": 8.0})
    assert f">In force: {shown}<" in node_orders(status, is_paused=False).text


def test_settings_that_nobody_can_see_are_told() -> None:
    """The operator has edited swarm.toml, and something in it is wrong now."""
    view = ViewState(role=Role.LEARNER, staleness=4)
    config = SwarmConfig(
        swarm=SwarmSection(name="a swarm"), model=ModelSection(directory="model"), learn=LearnSection(steps=9)
    )
    assert UNREADABLE in learner_orders(view, None).text
    assert UNREADABLE not in learner_orders(view, config).text


def test_what_cannot_change_has_no_form() -> None:
    status = NodeStatus(doing="", limits={"[store] quota_gb": "64 GB"})
    assert inputs(status) == {}
    assert "<li>[store] quota_gb: 64 GB</li>" in node_orders(status, is_paused=False).text
    assert "form" not in node_orders(None, is_paused=False).text
