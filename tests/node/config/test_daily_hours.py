"""Owner's hours: the accepted forms, and the time that is left at any minute of a day."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.config.daily_hours import ALWAYS, MINUTES, Hours, HoursError, parse_hours

MIDNIGHT = datetime(2026, 3, 1)


def at(clock: str) -> datetime:
    hour, minute, *second = map(int, clock.split(":"))
    return MIDNIGHT.replace(hour=hour, minute=minute, second=second[0] if second else 0)


def test_a_night_and_a_lunch_break() -> None:
    hours = parse_hours(" 19:00-07:30,12:00 - 13:00")
    assert hours.spells == ((0, 450), (720, 780), (1140, MINUTES))
    told = {clock: hours.left_s(at(clock)) for clock in ("07:29:59", "07:30", "12:00", "18:59:59", "19:00", "23:59:30")}
    assert told == {
        "07:29:59": 1.0,
        "07:30": 0.0,
        "12:00": 3600.0,
        "18:59:59": 0.0,
        "19:00": 12.5 * 3600,
        "23:59:30": 7.5 * 3600 + 30,
    }
    assert (hours.begin_in_s(at("07:30")), hours.begin(at("07:30:01"))) == (4.5 * 3600, "12:00")
    assert (hours.begin_in_s(at("18:59:59")), hours.begin(at("18:59:59"))) == (1.0, "19:00")
    assert (hours.end(at("23:59:30")), hours.begin(at("23:59:30"))) == ("07:30", "")
    assert hours.end(at("08:00")) == ""


def test_hours_that_end_before_they_began_today_begin_tomorrow() -> None:
    hours = parse_hours("01:00-02:00")
    assert hours.begin_in_s(at("22:00")) == 3 * 3600
    assert hours.begin(at("22:00")) == "01:00"


@pytest.mark.parametrize("text", ["", "  ", "00:00-24:00", "08:00-20:00,20:00-08:00", "00:00-12:00, 11:00-24:00"])
def test_hours_without_an_end_are_none(text: str) -> None:
    hours = parse_hours(text)
    assert hours == ALWAYS
    assert hours.left_s(at("03:00")) is None
    assert (hours.begin_in_s(at("03:00")), hours.end(at("03:00"))) == (0.0, "")


def test_midnight_is_an_end_and_a_beginning() -> None:
    assert parse_hours("22:00-00:00") == parse_hours("22:00-24:00") == Hours(((1320, MINUTES),))
    assert parse_hours("00:00-06:00") == parse_hours("24:00-06:00") == Hours(((0, 360),))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("19-7", "'19-7' is not a range of hours. Write"),
        ("19:00-07:30,", "'' is not a range"),
        ("19:00-07:30; 12:00-13:00", "is not a range"),
        ("12:00-13:00,19:00-25:00", "'19:00-25:00': 25:00 is not a time of day"),
        ("19:60-20:00", "19:60 is not a time of day"),
        ("23:00-24:01", "24:01 is not a time of day"),
        ("08:00-08:00", "'08:00-08:00' ends when it begins. Leave the hours empty to work always."),
        ("24:00-00:00", "ends when it begins"),
        ("\u0661:\u0660\u0660-2:00", "is not a range"),
    ],
)
def test_what_tells_no_hours_is_quoted(text: str, said: str) -> None:
    with pytest.raises(HoursError) as caught:
        parse_hours(text)
    assert said in str(caught.value)


minutes = st.integers(0, MINUTES - 1)
ranges = st.lists(st.tuples(minutes, minutes).filter(lambda ends: ends[0] != ends[1]), min_size=1, max_size=6)


def written(spells: list[tuple[int, int]]) -> str:
    return ",".join("-".join(f"{minute // 60:02}:{minute % 60:02}" for minute in ends) for ends in spells)


def minute_by_minute(spells: list[tuple[int, int]]) -> list[bool]:
    """Whether each minute of the day is in any of them, each followed from its start until its end."""
    lent = [False] * MINUTES
    for start, end in spells:
        minute = start
        while minute != end:
            lent[minute] = True
            minute = (minute + 1) % MINUTES
    return lent


@given(ranges, minutes, st.floats(0, 59.999))
def test_what_is_left_is_what_stepping_through_the_day_finds(
    spells: list[tuple[int, int]], minute: int, second: float
) -> None:
    hours, lent = parse_hours(written(spells)), minute_by_minute(spells)
    now = MIDNIGHT + timedelta(minutes=minute, seconds=second)
    ahead = [lent[(minute + step) % MINUTES] for step in range(MINUTES)]
    left, begin = hours.left_s(now), hours.begin_in_s(now)
    if all(lent):
        assert (left, begin) == (None, 0.0)
        return
    into = (now - MIDNIGHT).total_seconds() - 60 * minute
    lent_for, away_for = ahead.index(False), ahead.index(True) if any(ahead) else 0
    assert left == pytest.approx(60 * lent_for - into if lent_for else 0.0)
    assert begin == pytest.approx(60 * away_for - into if away_for else 0.0)
    for told, in_s in ((hours.end(now), left), (hours.begin(now), begin)):
        assert told == (f"{now + timedelta(seconds=in_s or 0.0):%H:%M}" if in_s else "")
