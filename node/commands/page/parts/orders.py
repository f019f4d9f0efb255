"""Make the part of a page with which its owner gives orders. Pure.

A form sends `{"order": ORDER, FIELD: value, ...}` with the token that the page's address ended with. Without a token,
or without a script, the page says how to get one, and the forms stay closed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from node.config.daily_hours import MAX_CHARS
from node.config.live_limits import CHANGED, DOWNLOAD, HOURS, QUOTA, UPLOAD, Value, named
from node.config.swarm_config import MAX_WINDOW, SwarmConfig
from node.reports.html.charts.markup import Attribute, Child, Fragment, tag
from node.reports.html.components import section
from node.state.status_file import NodeStatus
from node.ui.live_view import ViewState

LOCKED = (
    "To give orders here, open the page with the address that the program printed at its start: it ends with a token."
)
UNREADABLE = (
    "Settings cannot change here: swarm.toml could not be read when this page began. The learner goes on as it "
    "started. Mend the file: the page reads it again once nobody has looked at it for six minutes."
)

NUMBER: Mapping[str, Attribute] = {"type": "number", "step": "any"}

LIMITS: Mapping[str, tuple[str, str, Mapping[str, Attribute]]] = {
    HOURS: ("Hours", "such as 19:00-07:30; empty: always", {"type": "text", "maxlength": MAX_CHARS}),
    UPLOAD: ("Upload", "Mbit/s; empty: no limit", {**NUMBER, "min": "0.1"}),
    DOWNLOAD: ("Download", "Mbit/s; empty: no limit", {**NUMBER, "min": "0.1"}),
    QUOTA: ("Disk for versions", "GB", {**NUMBER, "min": "0", "required": True}),
}
"""For each limit that may change: its name, unit, and the attributes of its input."""


def learner_orders(view: ViewState, config: SwarmConfig | None) -> Fragment:
    """Return the operator's controls."""
    settings = [tag("p", UNREADABLE)] if config is None else list(_settings(view, config))
    forms = [
        *settings,
        form("stop", "Stop after this step", remark="The learner saves what it has learned, and ends."),
        form("ban", "Ban", _text("peer", "Peer (id or name)"), _text("reason", "Reason")),
        form("pardon", "Pardon", _text("peer", "Peer (id or name)")),
    ]
    said = "A change holds until the learner ends; to keep it, write it into swarm.toml."
    return _section("Control", [tag("p", said, class_="soft"), *forms])


def _settings(view: ViewState, config: SwarmConfig) -> Iterator[Fragment]:
    """Yield a form for each setting that may change."""
    if view.staleness:
        least = max(1, config.learn.publish_every)
        hint = f"Training steps that a rollout may lag behind: {least} to {MAX_WINDOW}."
        yield _setting("staleness", "Staleness window S", view.staleness, step="1", least=least, remark=hint)
    rate = view.settings.get("learning_rate", config.trainer.learning_rate)
    every = view.settings.get("every_versions", config.evaluate.every_versions)
    yield _setting("learning_rate", "Learning rate", rate, step="any", least=0, remark="Above 0, and at most 1.")
    hint = "0: only the first and the last version are evaluated."
    yield _setting("every_versions", "Versions between evaluations", every, step="1", least=0, remark=hint)
    publishes = view.publishes
    yield form(
        "change",
        "Hold back new versions" if publishes else "Publish versions again",
        tag("input", type="hidden", name_="key", value="publish"),
        tag("input", type="hidden", name_="value", value="0" if publishes else "1", data_number=True),
        remark="Nodes keep the version that they have, and training goes on for at most S steps." if publishes else "",
    )


def _setting(key: str, label: str, value: float, *, step: str, least: float, remark: str) -> Fragment:
    field = tag(
        "input", type="number", name_="value", value=f"{value:g}", step=step, min=f"{least:g}", size=10, required=True
    )
    hidden = tag("input", type="hidden", name_="key", value=key)
    return form("change", "Change", tag("label", f"{label} ", field), hidden, remark=remark)


def node_orders(status: NodeStatus | None, *, is_paused: bool) -> Fragment:
    """Return the owner's controls. is_paused: whether the owner has paused the node, whatever else lets it rest."""
    if status is None:
        return _section("Control", [tag("p", "The node does not run.")])
    forms = [
        form("resume" if is_paused else "pause", "Resume" if is_paused else "Pause"),
        form("drain", "Drain: deliver what is leased, then end"),
    ]
    return _section("Control", [*forms, *_limits(status)])


def _limits(status: NodeStatus) -> Iterator[Fragment]:
    """Yield a form for each limit that may change, then the others."""
    if status.changeable:
        yield tag("h3", "Limits")
        said = (
            "A change takes effect within a second, and holds until the node ends; to keep it, write it in node.toml."
        )
        yield tag("p", said, class_="soft")
    shown = dict(status.limits)
    for key, value in status.changeable.items():
        if key in LIMITS:
            text = shown.pop(named(key), "")
            yield _limit(key, value, "" if CHANGED not in text else f"In force: {text}")
    if shown:
        yield tag("p", "These change in node.toml, after a restart:", class_="soft")
        yield tag("ul", [tag("li", f"{key}: {value}") for key, value in shown.items()])


def _limit(key: str, value: Value, in_force: str) -> Fragment:
    """Return the form of one limit. in_force: what is said beside it; "" if it is as at the start."""
    label, unit, rules = LIMITS[key]
    written = "" if value is None else value if isinstance(value, str) else f"{value:.10g}"
    field = tag("input", name_="value", value=written, size=24, autocomplete="off", **rules)
    named_field = tag("label", tag("span", f"{label} "), field, tag("span", f" {unit}", class_="soft"))
    hidden = tag("input", type="hidden", name_="key", value=key)
    return form("limit", "Change", named_field, hidden, about=label, remark=in_force)


def form(order: str, name: str, *fields: Child, about: str = "", remark: str = "") -> Fragment:
    """Return a form that gives `order`. about: what its button changes, for a screen reader. remark: what is said
    beside it."""
    button = tag("button", name, type="submit", aria_label=f"{name}: {about}" if about else None)
    said = tag("span", remark, class_="soft") if remark else None
    return tag("form", fields, button, said, data_order=order, class_=f"order {order}")


def _text(name: str, label: str) -> Fragment:
    return tag("label", f"{label} ", tag("input", name_=name, autocomplete="off", size=18))


def _section(title: str, content: list[Fragment]) -> Fragment:
    locked = tag("p", LOCKED, class_="locked")
    return section("orders", title, locked, tag("div", content, class_="orders"))
