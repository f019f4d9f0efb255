"""The processors' counters, in made directories that look like Linux's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from node.energy.rapl import find_rapl
from protocol.accounting.claims import EnergySource


def zone(root: Path, directory: str, name: str, micros: object = 5_000_000, wraps_at: object = 262_143_328_850) -> Path:
    """A zone as the kernel shows it: a link to a directory elsewhere."""
    real = root / "devices" / directory
    real.mkdir(parents=True)
    (real / "name").write_text(f"{name}\n")
    (real / "energy_uj").write_text(f"{micros}\n")
    (real / "max_energy_range_uj").write_text(f"{wraps_at}\n")
    (root / directory).symlink_to(real)
    return real


def test_packages_and_their_memory_count_and_nothing_twice(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 1_500_000)
    zone(tmp_path, "intel-rapl:0:0", "core")
    zone(tmp_path, "intel-rapl:0:1", "dram", 250_000)
    zone(tmp_path, "intel-rapl:1", "psys")
    zone(tmp_path, "intel-rapl:2", "package-1")
    zone(tmp_path, "intel-rapl-mmio:0", "package-0")
    (tmp_path / "intel-rapl").mkdir()
    found = find_rapl(tmp_path)
    assert not found.is_hidden
    assert [(one.device, one.joules) for one in found.look()] == [
        ("intel-rapl:0", 1.5), ("intel-rapl:0:1", 0.25), ("intel-rapl:2", 5.0),
    ]  # fmt: skip
    assert {one.source for one in found.look()} == {EnergySource.RAPL}
    assert [one.wraps_at for one in found.look()] == [pytest.approx(262_143.32885)] * 3


def test_a_machine_without_counters(tmp_path: Path) -> None:
    assert find_rapl(tmp_path / "none").zones == ()
    zone(tmp_path, "intel-rapl:0", "package-0", wraps_at="0")
    (tmp_path / "intel-rapl:1").mkdir()
    assert find_rapl(tmp_path).zones == ()


def test_a_counter_that_goes_away_or_says_nonsense_is_left_out(tmp_path: Path) -> None:
    gone, odd = zone(tmp_path, "intel-rapl:0", "package-0"), zone(tmp_path, "intel-rapl:1", "package-1")
    found = find_rapl(tmp_path)
    (gone / "energy_uj").unlink()
    (odd / "energy_uj").write_text("many\n")
    assert len(found.zones) == 2
    assert found.look() == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_counters_for_root_alone_are_hidden(tmp_path: Path) -> None:
    (zone(tmp_path, "intel-rapl:0", "package-0") / "energy_uj").chmod(0)
    found = find_rapl(tmp_path)
    assert found.is_hidden
    assert found.zones == ()
