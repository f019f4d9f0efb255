"""Claim "trainer_footprint": the trainer needs little memory beyond its state.

Bars:

- bytes_per_parameter: the highest peak of a trainer of 48 M parameters while it loads, steps, exports, checkpoints and
  restores, on a CPU (AdamW, float32 weights and moments, almost no activations). Each block of a MiB or more is mapped
  separately.
- beside_bytes_per_parameter: the same for a training step that is taken while a checkpoint is being written. The step
  copies the parts that the checkpoint has not read yet.

Invariant: each repetition is a process of its own (`benchmarks/baselines/footprint.py`).
"""

from __future__ import annotations

from benchmarks.baselines.footprint import BESIDE, measured
from benchmarks.harness import Bar, arguments, conclude, main, median, number, say, table

BYTES_PER_PARAMETER_AT_MOST = 18.0
"""Weights, gradients and two moments take 16."""

BESIDE_AT_MOST = 30.0
"""The weights and moments that the checkpoint copies take 12 more."""

REPS = 3


def claim() -> int:
    asked = arguments(__doc__ or "", reps=REPS).parse_args()
    runs = [measured() for _ in range(asked.reps)]
    peaks = sorted(name for name in runs[0] if name.endswith("_bytes_per_parameter"))
    middle = {name: median([one[name] for one in runs]) for name in peaks}
    shown = [[name.removesuffix("_bytes_per_parameter"), number(middle[name])] for name in peaks]
    say(table(["peak of", "bytes a parameter"], shown))
    bars = [
        Bar(name="bytes_per_parameter", value=middle["peak_bytes_per_parameter"], at_most=BYTES_PER_PARAMETER_AT_MOST),
        Bar(
            name="beside_bytes_per_parameter",
            value=middle[f"{BESIDE}_bytes_per_parameter"],
            at_most=BESIDE_AT_MOST,
        ),
    ]
    return conclude("trainer_footprint", bars, middle)


if __name__ == "__main__":
    main(claim)
