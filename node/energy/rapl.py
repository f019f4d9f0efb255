"""Read the processors' own counters (RAPL), as Linux shows them below /sys/class/powercap.

    intel-rapl:0/name                  package-0      (AMD's processors are there, too)
    intel-rapl:0/energy_uj             microjoules, back to 0 after max_energy_range_uj
    intel-rapl:0:1/name                dram           memory that the package's counter leaves out
    intel-rapl:1/name                  psys           all of a laptop's board: holds the packages, so it is left out

A counter covers everything that the package does, other programs included. Since Linux 5.10 only root may read the
counters; `Rapl.is_hidden` says so.

Invariants:

- Nothing here raises because a file is missing or holds something else.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from node.energy.meter import Counter
from protocol.accounting.claims import EnergySource

POWERCAP = Path("/sys/class/powercap")

MICRO = 1e-6


@dataclass(frozen=True, kw_only=True)
class Zone:
    """A counter that can be read. It returns to 0 at `wraps_at` joules."""

    path: Path
    wraps_at: float


@dataclass(frozen=True, kw_only=True)
class Rapl:
    """The counters of this machine. `is_hidden`: it has counters that this user may not read."""

    zones: tuple[Zone, ...]
    is_hidden: bool = False

    def look(self) -> list[Counter]:
        """Return the counters' values now, without counters that can no longer be read."""
        found = []
        for zone in self.zones:
            if (micros := _number(zone.path / "energy_uj")) is not None:
                found.append(
                    Counter(
                        device=zone.path.name,
                        source=EnergySource.RAPL,
                        joules=micros * MICRO,
                        wraps_at=zone.wraps_at,
                    )
                )
        return found


def find_rapl(root: Path = POWERCAP) -> Rapl:
    """Return the counters below `root`; none if the directory does not exist."""
    zones, is_hidden = [], False
    for path in sorted(root.glob("intel-rapl:*")):
        if not _counts(path):
            continue
        try:
            (path / "energy_uj").read_bytes()
        except PermissionError:
            is_hidden = True
            continue
        except OSError:
            continue
        wraps_at = _number(path / "max_energy_range_uj")
        if wraps_at:
            zones.append(Zone(path=path, wraps_at=wraps_at * MICRO))
    return Rapl(zones=tuple(zones), is_hidden=is_hidden)


def _counts(zone: Path) -> bool:
    """Return whether a zone counts: packages and their memory do. Cores and graphics are parts of a package, and psys
    is the whole board."""
    try:
        name = (zone / "name").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return False
    return name.startswith("package") or name == "dram"


def _number(path: Path) -> int | None:
    try:
        return int(path.read_bytes())
    except (OSError, ValueError):
        return None
