"""Claim "turns": other episodes generate while one waits for its tool, and episodes take little of the learner's time.

Two swarms run in turn, each a learner and two nodes with the transformers engine on this machine, audits on. The
trainer computes nothing, so that generation takes the time. In one swarm an episode has `TURNS` turns of `TOKENS`
tokens. In each turn the policy calls a tool that takes `WAIT_S`, in an environment in a verifier's process. In the
tokens. In each turn the policy calls a tool that takes `WAIT_S`, in an environment in a verifier's process. In the
other, a completion is one turn of as many tokens, without an environment. Prompts and shapes of the model are the same.
The policy is made for this (`benchmarks/episodes/chain_model.py`): it generates exactly that many tokens, and always a
call.

Bars:

- turns_of_plain, at least 0.8: tokens generated and admitted a second with the tool, over those without, for two runs
  one after the other; the median of the pairs. `core_turns_of_plain` among the figures is steadier on a busy machine:
  tokens for each core second of the swarm's processes. It does not include waiting.
- env_loop_ms, at most 1: processor time that the learner's event loop spends on environments for each turn. It counts
  all steps of trio tasks in which verifiers are asked, or their pipes read, on the loop's thread
  (`benchmarks/episodes/learner.py`): the problem, the prompt, the question, the answer, the reward. The lease of a turn
  (to grant it, to check its signature, to record and acknowledge it) does not count, since a completion without a tool
  has one, too. `turn_loop_ms` among the figures includes everything: the loop's processor time a token with the tool,
  minus that without, for each turn.

A third swarm, with --instant, has a tool that takes no time (`waiting_of_instant`). Figures are medians; each
repetition reverses the order of the swarms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.episodes.swarm import GROUP, NODES, PROMPTS, TOKENS, TURNS, Shown, Side, run_side
from benchmarks.harness import Bar, arguments, conclude, main, median, number, say, scratch, table

REPS = 3
WAIT_S = 0.2
SPAN_S = 60.0
"""Seconds of each run after its start: more than a hundred turns."""

TURNS_OF_PLAIN_AT_LEAST = 0.8
ENV_LOOP_MS_AT_MOST = 1.0

TOOL = Side(name="tool", turns=TURNS, tokens=TOKENS, wait_s=WAIT_S)
PLAIN = Side(name="plain", turns=1, tokens=TURNS * TOKENS, wait_s=None)
INSTANT = Side(name="instant", turns=TURNS, tokens=TOKENS, wait_s=0.0)


def claim() -> int:
    """Run everything, print the table and the verdict."""
    parser = arguments(__doc__ or "", reps=REPS)
    parser.add_argument("--instant", action="store_true", help="run the third swarm as well")
    parser.add_argument("--span", type=float, default=SPAN_S, metavar="S", help=f"seconds of a run, {SPAN_S:g}")
    options = parser.parse_args()
    sides = (TOOL, PLAIN, INSTANT) if options.instant else (TOOL, PLAIN)
    found: dict[str, list[Shown]] = {side.name: [] for side in sides}
    with scratch(options.keep) as out:
        for repetition in range(options.reps):
            for side in sides if repetition % 2 == 0 else sides[::-1]:
                found[side.name].append(_run(side, out, repetition, options.span, options.seed + repetition))
    tell(found)
    tool, plain, instant = found[TOOL.name], found[PLAIN.name], found.get(INSTANT.name, [])
    failed = sum(one.failed for shown in found.values() for one in shown)
    bars = [
        Bar(name="turns_of_plain", value=_ratio(tool, plain), at_least=TURNS_OF_PLAIN_AT_LEAST),
        Bar(name="env_loop_ms", value=median([one.env_loop_ms for one in tool]), at_most=ENV_LOOP_MS_AT_MOST),
        Bar(name="failed", value=float(failed), at_most=0.0),
    ]
    figures = {
        "tool_tokens_per_s": _median(tool, _tokens_per_s),
        "plain_tokens_per_s": _median(plain, _tokens_per_s),
        "core_turns_of_plain": _ratio(tool, plain, lambda one: one.tokens_per_core_s),
        "waiting_of_instant": _ratio(tool, instant) if instant else None,
        "plain_env_loop_ms": _median(plain, lambda one: one.env_loop_ms),
        "turn_loop_ms": median([_turn_loop_ms(one, other) for one, other in zip(tool, plain, strict=True)]),
        "turns_of_plain_each": [
            round(one.tokens_per_s / other.tokens_per_s, 3) for one, other in zip(tool, plain, strict=True)
        ],
        "wait_s": WAIT_S,
        "turns": TURNS,
        "tokens_a_turn": TOKENS,
        "rollouts_a_step": PROMPTS * GROUP,
        "nodes": NODES,
    }
    return conclude("turns", bars, figures)


def tell(found: dict[str, list[Shown]]) -> None:
    """Print a row for each run."""
    rows: list[list[str]] = [
        [
            str(repetition + 1),
            name,
            number(one.tokens_per_s, 0),
            number(one.seconds, 1),
            str(one.turns),
            number(one.cores),
            number(one.others_cores),
            number(one.env_loop_ms, 3),
            number(1e6 * one.loop_s_per_token, 1),
        ]
        for repetition in range(max(map(len, found.values())))
        for name, shown in found.items()
        for one in shown[repetition : repetition + 1]
    ]
    costs = ["cores", "others' cores", "env_loop_ms", "loop us/token"]
    header = ["repetition", "side", "tokens/s", "seconds", "turns", *costs]
    say(table(header, rows))


def _run(side: Side, out: Path, repetition: int, span_s: float, seed: int) -> Shown:
    shown = run_side(side, out / f"{side.name}-{repetition}", span_s=span_s, seed=seed)
    say(
        f"repetition {repetition + 1}, {side.name}: {shown.tokens_per_s:.0f} tokens/s, {shown.turns} turns, "
        f"{shown.env_loop_ms:.3f} ms of the loop each"
    )
    return shown


def _tokens_per_s(shown: Shown) -> float:
    return shown.tokens_per_s


def _ratio(
    some: Sequence[Shown], others: Sequence[Shown], figure: Callable[[Shown], float] = _tokens_per_s
) -> float | None:
    return median([figure(one) / figure(other) for one, other in zip(some, others, strict=True)])


def _median(shown: Sequence[Shown], figure: Callable[[Shown], float]) -> float | None:
    return median([figure(one) for one in shown])


def _turn_loop_ms(tool: Shown, plain: Shown) -> float:
    """Return the loop's time for a turn beyond the same tokens without a tool, leases and receipts included."""
    return 1000 * (tool.loop_s_per_token - plain.loop_s_per_token) * tool.tokens / max(1, tool.turns)


if __name__ == "__main__":
    main(claim)
