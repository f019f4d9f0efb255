"""Turn readings of devices into joules, and leave out the impossible ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.energy.meter import MAX_DEVICE_WATTS, MAX_GAP_S, Counter, Meter, Power, Reading
from protocol.accounting.claims import EnergySource

NVML, RAPL = EnergySource.NVML, EnergySource.RAPL


def gpu(joules: float, device: str = "gpu:0") -> Counter:
    return Counter(device=device, source=NVML, joules=joules)


def package(joules: float, wraps_at: float = 1000.0) -> Counter:
    return Counter(device="intel-rapl:0", source=RAPL, joules=joules, wraps_at=wraps_at)


def power(watts: float) -> Power:
    return Power(device="gpu:0", source=NVML, watts=watts)


def metered(*looks: tuple[float, Reading | None, bool] | tuple[float, Reading | None]) -> dict[EnergySource, float]:
    meter = Meter()
    for at_s, reading, *lent in looks:
        meter.look([] if reading is None else [reading], at_s, lent=lent[0] if lent else True)
    return dict(meter.joules)


def test_a_counter_counts_from_the_first_look_on() -> None:
    assert metered((0, gpu(5e9))) == {NVML: 0.0}
    assert metered((0, gpu(5e9)), (5, gpu(5e9 + 700)), (10, gpu(5e9 + 900))) == {NVML: 900.0}


def test_devices_and_sources_are_added_up_apart() -> None:
    meter = Meter()
    meter.look([gpu(0), gpu(50, "gpu:1"), package(10)], 0, lent=True)
    meter.look([gpu(100), gpu(70, "gpu:1"), package(30)], 5, lent=True)
    assert meter.joules == {NVML: 120.0, RAPL: 20.0}


def test_a_counter_that_wrapped_is_read_across_it() -> None:
    assert metered((0, package(990)), (5, package(15))) == {RAPL: 25.0}


def test_a_counter_that_began_anew_counts_from_there() -> None:
    assert metered((0, gpu(900)), (5, gpu(1)), (10, gpu(101))) == {NVML: 100.0}, "a driver that was loaded anew"
    huge = 1e6
    found = metered((0, package(9e5, huge)), (5, package(1, huge)), (10, package(51, huge)))
    assert found == {RAPL: 50.0}, "100 kJ in five seconds was no wrap"


def test_what_no_device_draws_is_not_counted() -> None:
    assert metered((0, gpu(0)), (5, gpu(5 * MAX_DEVICE_WATTS))) == {NVML: 5 * MAX_DEVICE_WATTS}
    assert metered((0, gpu(0)), (5, gpu(5 * MAX_DEVICE_WATTS + 1)), (10, gpu(5 * MAX_DEVICE_WATTS + 11))) == {
        NVML: 10.0
    }
    assert metered((0, gpu(0)), (0, gpu(1))) == {NVML: 0.0}, "nor in no time"


def test_a_machine_that_slept_while_its_clock_stood_still() -> None:
    assert metered((0, gpu(0)), (5, gpu(100)), (10, gpu(300_000)), (15, gpu(300_100))) == {NVML: 200.0}


def test_a_look_without_an_answer_loses_nothing_of_a_counter() -> None:
    assert metered((0, gpu(0)), (5, None), (10, gpu(100))) == {NVML: 100.0}


def test_watts_are_joined_by_straight_lines_unless_nobody_looked() -> None:
    assert metered((0, power(100)), (10, power(300))) == {NVML: 2000.0}
    assert metered((0, power(100)), (MAX_GAP_S + 1, power(100)), (MAX_GAP_S + 2, power(100))) == {NVML: 100.0}
    assert metered((0, power(-5)), (10, power(1))) == {NVML: 0.0}
    assert metered((0, power(1e9)), (10, power(1e9))) == {NVML: 0.0}


def test_a_gpu_that_tells_its_joules_no_more_tells_watts() -> None:
    assert metered((0, gpu(0)), (5, gpu(50)), (10, power(20)), (15, power(20))) == {NVML: 150.0}


def test_the_owners_own_time_counts_nothing() -> None:
    looks = [(0, gpu(0)), (5, gpu(50)), (10, gpu(1000), False), (15, gpu(2000)), (20, gpu(2050))]
    assert metered(*looks) == {NVML: 100.0}
    assert metered((0, gpu(0), False), (5, gpu(99), False)) == {}


@given(
    st.lists(
        st.tuples(
            st.floats(0, 100),
            st.one_of(
                st.none(),
                st.builds(package, st.floats(-1e6, 1e12), st.floats(0, 1e9)),
                st.builds(gpu, st.floats(-1e6, 1e12)),
                st.builds(power, st.floats(-1e6, 1e6)),
            ),
            st.booleans(),
        )
    )
)
def test_sums_never_fall_and_never_outrun_the_devices(
    steps: list[tuple[float, Reading | None, bool]],
) -> None:
    meter, now_s, before = Meter(), 0.0, 0.0
    for seconds, reading, lent in steps:
        now_s += seconds
        meter.look([] if reading is None else [reading], now_s, lent=lent)
        found = sum(meter.joules.values())
        assert before <= found <= 2 * MAX_DEVICE_WATTS * now_s * (1 + 1e-9)
        before = found


@given(st.lists(st.floats(0, 1000), min_size=1), st.floats(0, 5000))
def test_however_often_a_counter_wraps_all_of_it_counts(gains: list[float], begin: float) -> None:
    wraps_at = 5000.0
    meter, total = Meter(), begin
    for number, gain in enumerate([0.0, *gains]):
        total += gain
        meter.look([package(total % wraps_at, wraps_at)], float(number), lent=True)
    assert meter.joules[RAPL] == pytest.approx(sum(gains), abs=1e-6)
