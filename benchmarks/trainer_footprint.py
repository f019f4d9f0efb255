"""Claim "trainer_footprint": the trainer takes little memory beside its state, and a version is out soon.

bytes_per_parameter: the highest peak of a trainer of 48 M parameters while it loads, steps, exports, checkpoints and
restores (AdamW, float32 weights and moments, activations of next to nothing), on a CPU, each block of a MiB or more
mapped for itself. publication_of_write: seconds to export a model of 1 GiB in bfloat16 and to cut, hash and sign it,
over those of a plain write of as many bytes to the same disk. What always holds: each repetition is a process of its
own (`benchmarks/baselines/footprint.py`); a copy that a checkpoint is written from counts as memory as long as it is
there.
"""

from __future__ import annotations

from benchmarks.baselines.footprint import measured
from benchmarks.harness import Bar, arguments, conclude, main, median, number, say, table

BYTES_PER_PARAMETER_AT_MOST = 18.0
"""Weights, gradients and two moments are 16."""

OF_WRITE_AT_MOST = 1.5

REPS = 3


def claim() -> int:
    asked = arguments(__doc__ or "", reps=REPS).parse_args()
    memory = [measured("memory") for _ in range(asked.reps)]
    publication = [measured("publication") for _ in range(asked.reps)]
    peaks = sorted(name for name in memory[0] if name.endswith("_bytes_per_parameter"))
    middle = {name: median([one[name] for one in memory]) for name in peaks}
    shown = [[name.removesuffix("_bytes_per_parameter"), number(middle[name])] for name in peaks]
    say(table(["peak of", "bytes a parameter"], shown))
    rows = [
        [number(one[key]) for key in ("gib", "export_s", "publish_s", "write_s", "of_write")] for one in publication
    ]
    say("\n" + table(["GiB", "export s", "publish s", "write s", "of a write"], rows))
    bars = [
        Bar(
            name="bytes_per_parameter",
            value=median([one["peak_bytes_per_parameter"] for one in memory]),
            at_most=BYTES_PER_PARAMETER_AT_MOST,
        ),
        Bar(
            name="publication_of_write",
            value=median([one["of_write"] for one in publication]),
            at_most=OF_WRITE_AT_MOST,
        ),
    ]
    return conclude("trainer_footprint", bars, middle)


if __name__ == "__main__":
    main(claim)
