"""Find other distributions in this environment that own one of the names of our import packages.

Our wheel has the top-level packages `node`, `swarm`, `learner` and `protocol`, and others may choose the same plain
names. In one environment the later installation overwrites files of the earlier one. So the recommended ways to install
Volery give it an environment of its own, and a start warns of the rest.

Invariants:

- Only the records of distributions are read, as text: `importlib.metadata.packages_distributions` says the same, and
  takes five times as long.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import Distribution, distributions

OURS = frozenset({"volery", "node", "swarm", "learner", "protocol"})
NAME = "volery"


def find_clashes(installed: Iterable[Distribution] | None = None) -> dict[str, str]:
    """Return our package names that another distribution owns as well, each with the distribution's name."""
    found: dict[str, str] = {}
    for one in distributions() if installed is None else installed:
        record = "\n" + (one.read_text("RECORD") or "")
        tops = (one.read_text("top_level.txt") or "").split()
        owned = [name for name in OURS if f"\n{name}/" in record or f"\n{name}.py," in record or name in tops]
        if owned and one.metadata["Name"] != NAME:
            found |= dict.fromkeys(owned, str(one.metadata["Name"]))
    return dict(sorted(found.items()))


def clash_sentence(clashes: dict[str, str]) -> str:
    """Return what to tell a person about clashes, and what to do."""
    names = ", ".join(f"{name} (of {other})" for name, other in clashes.items())
    return (
        f"another distribution in this environment has a package of the same name as ours: {names}. Either program may "
        "fail. Give Volery an environment of its own, for example: uv tool install volery"
    )
