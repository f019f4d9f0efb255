"""Make the part of a page with samples: prompts, completions and rewards of one version, the best and the worst.

Both `part` and `NewestSamples` read the learner's files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from node.commands.samples.command import samples_of
from node.commands.samples.view import Shown, ShownCompletion, ShownGroup
from node.learner_role.metrics.sample_store import FILE
from node.reports.html.charts.markup import Child, Fragment, strangers, tag
from node.reports.html.components import section
from node.runtime import formatting as words
from node.runtime.errors import NodeError

BEST, WORST = 3, 3
"""Completions that are shown first."""

MOST = 20
"""Most best, or worst, completions that a browser may ask for."""

MAX_TEXT_CHARS = 4000
"""Characters of a prompt or a completion; `volery samples` has them whole."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which samples are asked for. `version`: "" for the newest that is kept. `find`: text that a completion holds."""

    version: str = ""
    best: int = BEST
    worst: int = WORST
    find: str = ""


@dataclass(eq=False)
class NewestSamples:
    """The samples of the newest version, which are read again only when there are others."""

    state: Path
    _seen: tuple[int, int] | None = None

    def part(self) -> Fragment | None:
        """Return the section; None if it is as before."""
        now = (0, 0)
        with suppress(OSError):
            # A row that is written lands in the write-ahead log, if there is one.
            files = [path.stat() for path in self.state.glob(f"{FILE}*")]
            now = (sum(file.st_size for file in files), max((file.st_mtime_ns for file in files), default=0))
        if now == self._seen:
            return None
        self._seen = now
        return part(self.state, Wanted())


def part(state: Path, wanted: Wanted) -> Fragment:
    """Return the section. A version that is not kept is told in it."""
    try:
        shown = samples_of(
            state, version=wanted.version, best=min(wanted.best, MOST), worst=min(wanted.worst, MOST), find=wanted.find
        )
    except NodeError as error:
        return section("samples", "Samples", _form(wanted), tag("p", f"{error}"))
    return part_of(shown, wanted)


def part_of(shown: Shown, wanted: Wanted) -> Fragment:
    """Return the section with these samples. Pure."""
    return section("samples", "Samples", _form(wanted), tag("p", _said(shown)), list(_groups(shown)))


def _form(wanted: Wanted) -> Fragment:
    """Return the fields that ask for other samples. Without a script they are an ordinary form."""
    return tag(
        "form",
        tag("label", "Version ", tag("input", name="version", value=wanted.version, size=10, autocomplete="off")),
        tag("label", "Text ", tag("input", name="find", value=wanted.find, size=16, type="search")),
        tag("button", "Show", type="submit"),
        action="samples",
        method="get",
        class_="ask",
    )


def _said(shown: Shown) -> str:
    reward = "" if shown.reward is None else f", mean reward {shown.reward:.3f}"
    batch = "" if shown.rollouts is None else f" of {words.counted(shown.rollouts, 'rollout')}"
    groups = words.counted(shown.kept, "group")
    return (
        f"Version {shown.version}, from a batch{batch}{reward}. {groups} of it are kept; below are the best and worst."
    )


def _groups(shown: Shown) -> Iterator[Fragment]:
    for group in shown.groups:
        yield tag(
            "article",
            tag("h3", f"Prompt {group.number} of task ", strangers(group.task), _by(group)),
            tag("pre", group.prompt.text[:MAX_TEXT_CHARS], tabindex=0),
            tag("ol", [_completion(one) for one in group.completions]),
            class_="sample",
        )


def _by(group: ShownGroup) -> Child:
    return [", from ", strangers(group.peer_name)] if group.peer_name else None


def _completion(one: ShownCompletion) -> Fragment:
    kept = one.kept
    advantage = "" if kept.advantage is None else f", advantage {kept.advantage:+.3f}"
    verdict = "" if one.verdict == "admitted" else f", {one.verdict}"
    said = tag("p", f"reward {kept.reward:.3f}{advantage}{verdict}")
    return tag("li", said, tag("pre", list(_text(one)), tabindex=0))


def _text(one: ShownCompletion) -> Iterator[Fragment]:
    """Yield the completion's text; what an environment said, and not the policy, is marked."""
    left = MAX_TEXT_CHARS
    for piece in one.parts:
        yield tag("span", piece.text[:left]) if piece.is_policys else tag("q", piece.text[:left], class_="environment")
        left -= len(piece.text)
        if left <= 0:
            return
