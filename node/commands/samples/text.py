"""Format samples for a terminal, for a file, and for programs. Pure.

Invariants:

- No line is wider than requested, in terminal cells.
- A completion's own text cannot move the cursor or look like the program's words: every line of it stands behind a bar
  (`visible`).
- The JSON form is ASCII, with the texts as they are and the token ids. Its keys are added to, never renamed or removed.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from rich.cells import chop_cells
from rich.text import Text

from node.commands.samples.view import Part, Shown, ShownCompletion, ShownGroup
from node.runtime import formatting as words
from node.runtime.safe_console import HarmlessConsole
from protocol.core.ids import short
from protocol.core.visible import visible

FORMAT = "volery-samples/1"

PROMPT_LINES = 16
"""Lines of a prompt that are shown, the last ones: rules and examples come first, the question last. JSON has all."""

BAR, DOTS = "│ ", "┊ "
"""Before what the policy wrote, and before what it read."""

PLAIN_BAR, PLAIN_DOTS = "| ", ": "

INDENT = "    "


def as_terminal(shown: Shown, *, width: int, color: bool = True) -> str:
    """Return the samples for a terminal of `width` columns."""
    return _drawn(shown, width, (BAR, DOTS), color=color)


def as_text(shown: Shown, *, width: int = 100) -> str:
    """Return the samples for files and pipes: no colours, and bars in ASCII."""
    return _drawn(shown, width, (PLAIN_BAR, PLAIN_DOTS), color=False)


def _drawn(shown: Shown, width: int, bars: tuple[str, str], *, color: bool) -> str:
    out = io.StringIO()
    console = HarmlessConsole(
        file=out, width=width, force_terminal=color, color_system="standard" if color else None, highlight=False,
        emoji=False, markup=False, legacy_windows=False,
    )  # fmt: skip
    for line in _lines(shown, width, bars):
        console.print(line, no_wrap=True, crop=False, overflow="ignore")
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _lines(shown: Shown, width: int, bars: tuple[str, str]) -> Iterator[Text]:
    yield from _wrapped(_heading(shown), width, style="bold")
    for group in shown.groups:
        yield Text()
        yield from _wrapped(_group(group), width, style="bold")
        yield from _wrapped(f"prompt, {len(group.prompt.tokens):,} tokens", width, style="dim")
        yield from _quoted(group.prompt, width, bars, last=PROMPT_LINES)
        for completion in group.completions:
            yield from _wrapped(_completion(completion), width, style="cyan")
            for part in completion.parts:
                yield from _quoted(part, width, bars)
        if group.kept.left_out:
            yield from _wrapped(f"{group.kept.left_out} more were too long to be kept", width, style="dim")


def _heading(shown: Shown) -> str:
    at = datetime.fromtimestamp(shown.at_ms / 1000, UTC)
    whole = ""
    if shown.rollouts is not None and shown.reward is not None:
        whole = f" on {shown.rollouts:,} rollouts with mean reward {shown.reward:.3f}"
    groups = "1 group is" if shown.kept == 1 else f"{shown.kept} groups are"
    return f"Version {shown.version} was trained{whole} ({at:%Y-%m-%d %H:%M:%S} UTC); {groups} kept, the worst first."


def _group(group: ShownGroup) -> str:
    kept, who = group.kept, f"{words.plain_name(group.peer_name)} {short(group.kept.peer)}".strip()
    return (
        f"Group {group.number}: prompt {kept.prompt_index} of {words.plain_name(group.task, 64)}, by {who}, lag "
        f"{kept.lag}, mean reward {kept.reward:.3f}, lease {short(kept.lease)}"
    )


def _completion(one: ShownCompletion) -> str:
    kept = one.kept
    advantage = "" if kept.advantage is None else f", advantage {kept.advantage:+.3f}"
    made_by = ", ".join(
        f"by version {version}" if len(kept.spans) == 1 else f"{number} by version {version}"
        for number, version in kept.spans
    )
    several = ", ".join(f"{words.plain_name(name, 64)} {_reward(value)}" for name, (value, _) in kept.rewards.items())
    named = f" ({several})" if several else ""
    reward = f"reward {kept.reward:.3f}{named}{advantage}"
    return f"{one.number}: {reward}, {len(kept.tokens):,} tokens, {made_by}, {one.verdict}"


def _reward(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _wrapped(text: str, width: int, *, style: str) -> Iterator[Text]:
    """Yield the program's own text, wrapped between words."""
    line = ""
    for word in text.split(" "):
        if line and Text(f"{line} {word}").cell_len > width:
            yield Text(line, style=style)
            line = f"{INDENT}{word}"
        else:
            line = f"{line} {word}" if line else word
    for piece in chop_cells(line, width):
        yield Text(piece, style=style)


def _quoted(part: Part, width: int, bars: tuple[str, str], last: int = 0) -> Iterator[Text]:
    """Yield another author's text behind a bar: all of it, or its `last` lines."""
    bar, style = (bars[0], "") if part.is_policys else (bars[1], "dim")
    pieces = [
        piece for line in visible(part.text).split("\n") for piece in chop_cells(line, max(2, width - len(bar))) or [""]
    ]
    if last and len(pieces) > last:
        yield Text(f"{bar}({len(pieces) - last} earlier lines not shown)", style="dim italic")
        pieces = pieces[-last:]
    for piece in pieces:
        yield Text(bar + piece, style=style)


def as_json(shown: Shown) -> str:
    """Return the samples as indented JSON."""
    told = {
        "format": FORMAT,
        "version": str(shown.version),
        "step": shown.version.version,
        "at_ms": shown.at_ms,
        "rollouts": shown.rollouts,
        "reward": shown.reward,
        "groups_kept": shown.kept,
        "groups": [
            {
                "group": group.number,
                "task": group.kept.task,
                "prompt_index": group.kept.prompt_index,
                "lease": group.kept.lease.hex(),
                "peer": group.kept.peer,
                "peer_name": group.peer_name,
                "lag": group.kept.lag,
                "reward": group.kept.reward,
                "prompt": group.prompt.text,
                "prompt_tokens": list(group.prompt.tokens),
                "left_out": group.kept.left_out,
                "completions": [_exported_completion(completion) for completion in group.completions],
            }
            for group in shown.groups
        ],
    }
    return json.dumps(told, indent=2) + "\n"


def _exported_completion(one: ShownCompletion) -> dict[str, Any]:
    return {
        "completion": one.number,
        "reward": one.kept.reward,
        "advantage": one.kept.advantage,
        "rewards": {name: {"value": value, "weight": weight} for name, (value, weight) in one.kept.rewards.items()},
        "tokens": len(one.kept.tokens),
        "made_by": [{"tokens": number, "version": str(version)} for number, version in one.kept.spans],
        "verdict": one.verdict,
        "parts": [
            {"by": "policy" if part.is_policys else "environment", "text": part.text, "tokens": list(part.tokens)}
            for part in one.parts
        ],
    }
