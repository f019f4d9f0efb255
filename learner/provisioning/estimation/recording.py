"""Record what a swarm did and when, as events, one JSON object a line.

Pure. Estimates, plans and simulations are made from recordings. A last line without its end is what a kill leaves, and
is skipped. Any other line that is no event raises an error with its number.

Invariants:

- `at_s` never falls from one event to the next within one run, which begins with `Began`.
- A file is only ever appended to, by one run after the other.
- Each event that was written reads back equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

FORMAT = 2
"""Version of the format. It goes up when an older program could misread a newer recording. Format 1 has no kinds of the
learner's time."""

FILE = "recording.jsonl"
"""The file's name in a learner's state directory."""

Seconds = Annotated[float, Meta(ge=0, le=1e12)]
Number = Annotated[int, Meta(ge=0, lt=1 << 53)]
Rate = Annotated[float, Meta(ge=0, le=1e12)]


class RecordingError(ValueError):
    """A line is no event. The message names it."""


class Event(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", forbid_unknown_fields=True
):
    """Base of all events. `at_s`: seconds since 1970 on the learner's clock, or since the beginning of a simulation."""

    at_s: Seconds


class Began(Event, frozen=True, kw_only=True, tag="began"):
    """A run begins, or continues after a restart, with these terms. R = `rollouts` in groups of `group_size`. An event
    without `format` is of format 1."""

    format: Number = 1
    swarm: str
    mode: Literal["async", "sequential"]
    rollouts: Annotated[int, Meta(ge=1)]
    group_size: Annotated[int, Meta(ge=1)]
    staleness: Number
    kappa: Annotated[int, Meta(ge=1)]
    step: Number = 0
    currency: str = "USD"


class Joined(Event, frozen=True, kw_only=True, tag="joined"):
    """A peer came, or described itself again: its price per hour, and the rollouts a second that its own benchmark
    promises, 0 if unknown. `until_s` is when its owner's hours end, by the clock of `at_s`. If that is past, it is
    outside them; if it is absent, the owner has set no hours."""

    peer: str
    name: str = ""
    machine: str = ""
    price: Rate = 0.0
    rate: Rate = 0.0
    until_s: Seconds | None = None


class Left(Event, frozen=True, kw_only=True, tag="left"):
    """A peer left, or timed out."""

    peer: str
    reason: str = ""


class Stepped(Event, frozen=True, kw_only=True, tag="stepped"):
    """A training step is over. All times are of what passed since the step before.

    `waited_s` is the time that the learner waited for the batch, and `busy_s` the rest; in `publish_s` of that,
    publication or a checkpoint kept the trainer from training. `time` has seconds by kind
    (`learner.provisioning.estimation.learner_time`), including the start of the run with the first step; it is absent
    in format 1. `lags` has the batch's rollouts by lag; `stale` counts those dropped since the step before.
    """

    step: Number
    waited_s: Seconds
    busy_s: Seconds
    publish_s: Seconds = 0.0
    rollouts: Number
    lags: dict[int, Number]
    stale: Number = 0
    time: dict[str, Seconds] = {}


class Passed(Event, frozen=True, kw_only=True, tag="passed"):
    """Time passed outside of training steps, as in `Stepped.time`."""

    time: dict[str, Seconds]


class Published(Event, frozen=True, kw_only=True, tag="published"):
    """A version was announced, `made_s` after the end of its training step: it was exported and signed meanwhile, while
    the trainer went on. `size_bytes` is the size of all its chunks, `patch_bytes` of the smallest patch to it, 0 if
    there is none."""

    version: Number
    made_s: Seconds = 0.0
    size_bytes: Number = 0
    patch_bytes: Number = 0


class Installed(Event, frozen=True, kw_only=True, tag="installed"):
    """A peer has this version in service."""

    peer: str
    version: Number


class Delivered(Event, frozen=True, kw_only=True, tag="delivered"):
    """A lease was delivered and judged: `admitted` and `refused` rollouts of `version`. `dropped` of the admitted ones
    will be in no batch, since their group teaches nothing.

    `leased_s` is when it was leased, `started_s` when the peer said that it began to generate.
    """

    peer: str
    admitted: Number
    refused: Number = 0
    dropped: Number = 0
    tokens: Number = 0
    version: Number
    leased_s: Seconds
    started_s: Seconds


class Withdrawn(Event, frozen=True, kw_only=True, tag="withdrawn"):
    """Leases of this many rollouts ended without a delivery: 'expired', 'returned', 'lost', or, because they came too
    late for any batch, 'recalled' after they had been begun or 'spared' before."""

    peer: str
    rollouts: Number
    status: str


class Planned(Event, frozen=True, kw_only=True, tag="planned"):
    """The active peers from now on, the publication period, and why something changed."""

    kappa: Annotated[int, Meta(ge=1)]
    active: list[str]
    price: Rate
    reasons: list[str]


Recorded = Began | Joined | Left | Stepped | Passed | Published | Installed | Delivered | Withdrawn | Planned

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Recorded] = msgspec.json.Decoder(Recorded)


def encode_line(event: Recorded) -> bytes:
    """Return the event as one line, with its end."""
    return _encoder.encode(event) + b"\n"


def read_lines(lines: Iterable[bytes], name: str) -> Iterator[Recorded]:
    """Yield the events in `lines` of the file `name`, in order. Raises RecordingError, naming the line."""
    began = False
    before_s = -math.inf
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):
            return  # only the last line can lack its end
        try:
            event = _decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RecordingError(f"{name}, line {number}: {error}. The recording is damaged there.") from None
        if isinstance(event, Began):
            if event.format > FORMAT:
                raise RecordingError(
                    f"{name}, line {number}: format {event.format}, but this program reads up to {FORMAT}. Use the "
                    "version of volery that wrote it."
                )
            began, before_s = True, -math.inf
        if not began:
            raise RecordingError(f"{name}, line {number}: {type(event).__name__.lower()} before the start of a run.")
        if event.at_s < before_s:
            raise RecordingError(
                f"{name}, line {number}: at {event.at_s} s, earlier than the line before ({before_s} s). Lines were "
                "moved or mixed."
            )
        before_s = event.at_s
        yield event
