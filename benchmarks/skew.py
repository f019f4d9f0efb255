"""Claim "skew": if completions differ much in length, starting with the longest ends a batch sooner.

Lengths are those of a recorded run of our own with a long tail, of some 2000 groups of eight completions. Volery
trained a small model to write out Collatz sequences (`benchmarks/lengths/record.py`). A simulated swarm is leased those
prompts in the order in which they come (today's order, `[learn] longest_first = false`), and longest first. The swarm
runs the learner's own scheduler and buffer (`learner/simulation`). The scheduler predicts lengths from the rollouts
that it admitted before, as in a run, so the first pass over the problems counts, too.

tail_of_today, at most 0.7: seconds from the first lease of a batch until its last completion has come, longest first
over today's order. Each side's figure is the mean over all steps, in the setting MAIN. Each repetition draws other
machines, and the bar is on the median of the repetitions. Within a repetition all sides have the same machines and
luck, and run one after the other.

The figures have the same for other settings (`OTHERS`). `tail_of_today_late` is that of the second half of the steps.
`tail_of_today_known` has a scheduler that is told lengths beforehand. `step_of_today` compares the seconds from one
training step to the next.

The tokens that a leaving node loses are measured by `benchmarks/parts.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.harness import ROOT, Bar, arguments, conclude, main, median, number, say, table
from benchmarks.lengths.recording import Recording, read_recording
from benchmarks.lengths.trial import Ran, Setting, Side, Trial, run_trial

RECORDED = ROOT / "benchmarks" / "recorded" / "lengths.jsonl"
REPS = 5

TAIL_OF_TODAY_AT_MOST = 0.7

MAIN = Setting(name="main", staleness=3)
"""Sixteen nodes of unequal speed make a batch of 128 rollouts in groups of eight. S = 3, as by default. Engines take
eight rollouts at once, so each node makes about one group of a batch."""

LARGE = replace(MAIN, rollouts=512)
"""Each node makes about four groups of a batch."""

OTHERS: Sequence[Setting] = (
    replace(MAIN, name="S = 1", staleness=1),
    replace(MAIN, name="S = 0", staleness=0),
    replace(MAIN, name="twice the supply", supply=2.0),
    replace(LARGE, name="512 rollouts"),
    replace(LARGE, name="512, S = 1", staleness=1),
    replace(LARGE, name="512, S = 0", staleness=0),
    replace(LARGE, name="512, S = 0, engines take 16", staleness=0, batch=16),
    replace(LARGE, name="512, S = 0, engines do not batch", staleness=0, fixed_share=0.0),
    replace(LARGE, name="512, S = 0, nodes equally fast", staleness=0, rate_spread=0.0),
    replace(LARGE, name="512, S = 0, problems never repeat", staleness=0, repeat=False),
)
"""Each name says what differs from MAIN. With S = 0 the learner waits for all of a batch, and nothing else is generated
meanwhile; with a window, a batch is formed of the completions that have arrived."""


def claim() -> int:
    """Run everything, print the table and the verdict."""
    options = arguments(__doc__ or "", reps=REPS).parse_args()
    recording = read_recording(RECORDED)
    say(f"{len(recording.groups)} groups; tokens of a completion: {spread_of(recording)}")
    found: dict[str, list[Trial]] = {}
    for setting in (MAIN, *OTHERS):
        seeds = range(options.seed, options.seed + options.reps)
        found[setting.name] = [run_trial(setting, recording, seed) for seed in seeds]
        say(f"{setting.name}: {number(of_today(found[setting.name]))}")
    say(table(HEADER, [row(setting, found[setting.name]) for setting in (MAIN, *OTHERS)]))
    mine = found[MAIN.name]
    bars = [Bar(name="tail_of_today", value=of_today(mine), at_most=TAIL_OF_TODAY_AT_MOST)]
    figures = {
        "tail_of_today_each": [round(share(one, "longest first", gathered_s), 3) for one in mine],
        **{name: value for name, value in figures_of(mine).items() if name != "tail_of_today"},
        "others": {one.name: figures_of(found[one.name]) for one in OTHERS},
        "groups": len(recording.groups),
        "tokens_median": recording.percentile(0.5),
        "tokens_p99": recording.percentile(0.99),
    }
    return conclude("skew", bars, figures)


def share(trial: Trial, side: Side, figure: Callable[[Ran], float]) -> float:
    """Return a figure of that side over today's."""
    return figure(trial[side]) / figure(trial["today"])


def gathered_s(ran: Ran) -> float:
    """Return the seconds from a batch's first lease until its last completion."""
    return ran.gathered_s


def late_s(ran: Ran) -> float:
    """Return the same for the second half of the steps."""
    return ran.late_s


def step_s(ran: Ran) -> float:
    """Return the seconds from one training step to the next."""
    return ran.step_s


def of_today(
    trials: Sequence[Trial], figure: Callable[[Ran], float] = gathered_s, side: Side = "longest first"
) -> float | None:
    """Return the median of the repetitions: a figure of that side over today's."""
    return median([share(one, side, figure) for one in trials])


def figures_of(trials: Sequence[Trial]) -> dict[str, float | None]:
    """Return the figures of a setting."""
    shown = {
        "tail_of_today": of_today(trials),
        "tail_of_today_late": of_today(trials, late_s),
        "tail_of_today_known": of_today(trials, side="known"),
        "step_of_today": of_today(trials, step_s),
    }
    return {name: None if value is None else round(value, 3) for name, value in shown.items()}


HEADER = ["setting", "today, s", "longest first, s", "of today", "second half", "known", "step", "in vain, %"]


def row(setting: Setting, trials: Sequence[Trial]) -> list[str]:
    """Return the setting's row of the table: medians."""
    today, mine = ([one[side] for one in trials] for side in ("today", "longest first"))
    return [
        setting.name,
        number(median([one.gathered_s for one in today]), 1),
        number(median([one.gathered_s for one in mine]), 1),
        *(number(value) for value in figures_of(trials).values()),
        " / ".join(number(median([100 * one.vain_share for one in side]), 1) for side in (today, mine)),
    ]


def spread_of(recording: Recording) -> str:
    """Return percentiles in words."""
    shown = [f"{recording.percentile(percent / 100)} for {percent} %" for percent in (50, 90, 99)]
    return f"at most {', '.join(shown)}, mean {number(recording.mean, 0)}"


if __name__ == "__main__":
    main(claim)
