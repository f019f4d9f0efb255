"""Print the results of a drill as a table for a terminal, and as JSON."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from statistics import median
from typing import Any

from node.commands.drill.attacks import Attack
from node.commands.drill.relays import Relayed
from node.commands.drill.results import FIRST, Key, Outcome, cost_of
from node.reports.text.tables import fitted
from node.runtime import formatting as words


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome as plain values."""
    return {
        "trained": outcome.trained,
        "greedy": outcome.greedy,
        "sampled": outcome.sampled,
        "cheater_share": outcome.share,
        "cheater_share_late": outcome.late_share,
        "honest_banned": outcome.honest_banned,
        "honest_failed": outcome.honest_failed,
        "relays": {
            "versions": list(outcome.relayed.versions),
            "seconds": outcome.relayed.seconds,
            "slandered": outcome.relayed.slandered,
            "liars": {one.lie.value: {"asked": one.asked, "named_by": one.by} for one in outcome.relayed.liars},
        },
        "honest_cents_per_1000_tokens": outcome.honest_cost,
        "attacks": {attack.value: _row(outcome.of(attack)) for attack in Attack if outcome.of(attack)},
    }


def _row(keys: list[Key]) -> dict[str, Any]:
    found = [key.found_after for key in keys if key.found_after is not None]
    return {
        "keys": len(keys),
        "rollouts": sum(key.made for key in keys),
        "trained": sum(key.trained for key in keys),
        "trained_late": sum(key.trained_late for key in keys),
        "found": len(found),
        "banned": sum(bool(key.banned) for key in keys),
        "rollouts_until_found": median(found) if found else None,
        "refused_by": dict(sum((key.rejected for key in keys), Counter[str]())),
        "signed_bytes": sum(key.signed_bytes for key in keys),
        "engine_s": sum(key.engine_s for key in keys),
        "cents_per_1000_tokens": cost_of(keys),
    }


COLUMNS = (
    "attack", "keys", "rollouts", "found", "banned", "rollouts until found", "trained", f"trained past {FIRST}",
    "rejected by",
)  # fmt: skip


def as_text(outcome: Outcome) -> str:
    """Return the outcome for a terminal."""
    rows = []
    for attack in Attack:
        if not (keys := outcome.of(attack)):
            continue
        row = _row(keys)
        until = row["rollouts_until_found"]
        rows.append(
            (
                attack.value,
                str(row["keys"]),
                str(row["rollouts"]),
                f"{row['found'] / row['keys']:.0%}",
                f"{row['banned'] / row['keys']:.0%}",
                "-" if until is None else f"{until:.0f}",
                str(row["trained"]),
                str(row["trained_late"]),
                ", ".join(f"{rule} {count}" for rule, count in sorted(row["refused_by"].items())) or "-",
            )
        )
    lines = fitted(COLUMNS, rows, sys.maxsize, left=True)
    honest = sum(key.attack is None for key in outcome.keys)
    shown = {key.attack for key in outcome.keys if key.made} | {one.lie for one in outcome.relayed.liars}
    lines += [
        "",
        f"Cheats made {outcome.share:.2%} of the {outcome.trained} rollouts that were trained on, and "
        f"{outcome.late_share:.2%} without the first {FIRST} rollouts of each cheat.",
        f"Honest peers: {outcome.honest_banned} of {honest} were banned, and {outcome.honest_failed} failed an audit.",
        f"Accuracy at the end on held-out prompts: greedy {outcome.greedy:.1%}, sampled {outcome.sampled:.1%}.",
        *_credit(outcome),
        *_relays(outcome.relayed),
        "",
        *(f"{attack.value}: {attack.said}." for attack in Attack if attack in shown),
    ]
    return "\n".join(lines)


def _credit(outcome: Outcome) -> Iterator[str]:
    """Yield what the attacks on credit gained."""
    if minted := outcome.of(Attack.MINTED):
        signed = sum(key.signed_bytes for key in minted)
        yield f"minted: {words.size(signed)} were credited to keys that sent nothing."
    dear, cheap = cost_of(outcome.of(Attack.OVERCHARGING)), outcome.honest_cost
    if dear and cheap:
        claimed = sum(key.engine_s for key in outcome.of(Attack.OVERCHARGING))
        yield (
            f"overcharging: 1000 tokens cost {words.figure(dear)} cents, and {words.figure(cheap)} cents from honest "
            f"peers. The {words.figure(claimed / 3600)} hours that it claimed cost nothing."
        )


def _relays(relayed: Relayed) -> Iterator[str]:
    if relayed.seconds is None:
        return
    versions = " and ".join(str(number) for number in relayed.versions)
    yield (
        f"Honest relays obtained {versions} versions, each in {relayed.seconds:.2f} s (median), with every chunk "
        f"correct. They reported each other {relayed.slandered} times."
    )
    for one in relayed.liars:
        yield f"{one.lie.value}: asked for {one.asked} chunks; reported by {one.by} of {len(relayed.versions)} relays."
