"""Claim "drill": with 40 peers of which 30 % cheat, cheats contribute almost nothing, and no honest peer is banned.

The benchmark runs the swarm of `volery drill`: a real learner with its trainer and audits, and simulated peers. The
first run has no cheats. In the next two, 10 % and 30 % of the peers cheat, every attack in turn. In two more, 20 % of
the peers append a text of their own to right completions, on a task that rewards only the first word, with checks and
without. In the last run, of 24 steps, six of eight peers cheat from the start, and background audits have a hundredth
of the time, so that they come late. All runs but the two with the text are repeated with several seeds, in turn: even
two runs without cheats end some points apart.

Bars:

- cheater_share_pct: the share of all trained rollouts that cheats made beyond their first 100; the worse of 10 % and
  30 %, median over the seeds.
- eval_loss_points: how many points of held-out accuracy the policy ends below the run of the same seed without cheats.
  The worst of 10 % and 30 %, greedy and sampled, medians over the seeds.
- honest_bans: bans in 1000 peer-days of honest peers at the limit of every margin, and in all runs.
- poison_success_pct: the share of the last completions of honest peers that contain the text, with checks.
- early_false_pct: the share of all trained rollouts in those 24 steps that cheats made after they began to cheat; the
  median over the seeds.

Invariants:

- All runs of a seed begin with the same model and task.
- Rollouts of cheats are counted in the learner's ledger.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import trio

from benchmarks.drills.lifetimes import Lives, lives
from benchmarks.harness import Bar, arguments, conclude, main, number, say, scratch, table
from learner.trust.margins import LARGE, LARGE_FLOAT32, MEDIUM, SMALL, SMALL_FLOAT32, TINY
from node.commands.drill.attacks import Attack
from node.commands.drill.command import (
    COMPUTE_SHARE,
    HELD_OUT,
    MAX_NEW_TOKENS,
    POISON,
    PROMPTS_PER_STEP,
    STATE,
    TASK,
    small_swarm_toml,
)
from node.commands.drill.results import Outcome, outcome_of
from node.commands.drill.swarm import DrillSetup, perform
from node.commands.drill.text import as_json, as_text
from node.config.loader import read_swarm_config
from node.learner_role.preflight import check_config
from node.learner_role.training.tiny_model import MODEL, StartingModel
from node.learner_role.training.warm_start import TINY_QWEN3
from node.runtime.events import EventLog
from node.tasks.tokenizer import TextCodec

CHEATER_SHARE_AT_MOST = 1.0
EVAL_LOSS_AT_MOST = 2.0
POISON_AT_MOST = 2.0
EARLY_AT_MOST = 2.0

PEERS = 40
STEPS = 300
PEER_DAYS = 1000
MARGINS = (TINY, SMALL, MEDIUM, LARGE, SMALL_FLOAT32, LARGE_FLOAT32)
POISONERS = 0.2
FIRST_WORD = "python:benchmarks.drills.first_word:FirstWord:letters=24"
SAMPLES = 8
"""Samples of each held-out problem at the end. With one of each of 512, the standard error is 1.6 points at 85 %."""

ROOM = len(POISON) + 1
"""Tokens of a space and the text: one for each character."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One run: the share of `cheats`, their `attacks`, and whether anything is checked.

    `is_clear`: the outcome is all or nothing, so one repetition is enough.
    """

    name: str
    cheats: float
    attacks: Sequence[Attack] = tuple(Attack)
    checks: bool = True
    task: str = TASK
    max_new_tokens: int = MAX_NEW_TOKENS
    is_clear: bool = False
    peers: int | None = None
    steps: int | None = None
    prompts_per_step: int = PROMPTS_PER_STEP
    returns: bool = True
    compute_share: float = COMPUTE_SHARE


CLEAN = Scene(name="nobody cheats", cheats=0.0)
FEW = Scene(name="10 % cheat", cheats=0.1)
MANY = Scene(name="30 % cheat", cheats=0.3)
POISONED = Scene(
    name="20 % poison",
    cheats=POISONERS,
    attacks=(Attack.POISONED,),
    task=FIRST_WORD,
    max_new_tokens=MAX_NEW_TOKENS + ROOM,
    is_clear=True,
)
UNCHECKED = Scene(
    name="20 % poison, unchecked",
    cheats=POISONERS,
    attacks=(Attack.POISONED,),
    checks=False,
    task=FIRST_WORD,
    max_new_tokens=MAX_NEW_TOKENS + ROOM,
    is_clear=True,
)
EARLY = Scene(
    name="six of eight cheat from the start",
    cheats=0.75,
    attacks=(Attack.LAG_1, Attack.BASE, Attack.RECYCLED, Attack.EARLY_SLEEPER, Attack.CANNED, Attack.COLD),
    peers=8,
    steps=24,
    prompts_per_step=8,
    returns=False,
    compute_share=0.01,
)
SCENES = (CLEAN, FEW, MANY, EARLY, POISONED, UNCHECKED)


@dataclass(frozen=True, kw_only=True)
class Played:
    """The outcome of a scene."""

    scene: Scene
    repetition: int
    outcome: Outcome
    poisoned: float
    seconds: float


async def play(
    scene: Scene, directory: Path, model: Path, steps: int, peers: int, seed: int, repetition: int
) -> Played:
    """Run the scene in `directory`."""
    steps, peers = scene.steps or steps, scene.peers or peers
    directory.mkdir()
    shutil.copytree(model, directory / MODEL)
    path = directory / "swarm.toml"
    text = small_swarm_toml(
        steps=steps,
        seed=seed,
        task=scene.task,
        max_new_tokens=scene.max_new_tokens,
        audits=scene.checks,
        every_versions=0,
        samples=SAMPLES,
        prompts_per_step=scene.prompts_per_step,
        compute_share=scene.compute_share,
    )
    path.write_text(text, encoding="utf-8")
    config = read_swarm_config(path)
    suite = check_config(config, path)
    poison = TextCodec.load(directory / MODEL).encode_answer(f" {POISON}")[:-1]
    cheats = round(scene.cheats * peers)
    cast = DrillSetup(
        honest=peers - cheats, cheats=cheats, attacks=scene.attacks, poison=poison, seed=seed, returns=scene.returns
    )
    events = EventLog(directory / "events.jsonl")
    began = time.monotonic()
    try:
        done = await perform(config, suite, cast, events)
    finally:
        events.close()
    outcome = outcome_of(directory / STATE / "ledger.sqlite", done.played, done.relayed)
    seconds = time.monotonic() - began
    return Played(scene=scene, repetition=repetition, outcome=outcome, poisoned=done.poisoned, seconds=seconds)


async def make_model(directory: Path, seed: int) -> Path:
    """Make the model that all scenes begin with, and return its directory."""
    directory.mkdir()
    model = StartingModel(task=TASK, held_out=HELD_OUT, max_new_tokens=MAX_NEW_TOKENS, seed=seed, config=TINY_QWEN3)
    await model.make(directory, EventLog())
    return directory / MODEL


def verdict(played: Sequence[Played], honest: Sequence[Lives]) -> list[Bar]:
    """Return the bars: medians over the repetitions, except for events that must never happen."""
    attacked = [[one for one in played if one.scene is scene] for scene in (FEW, MANY)]
    shares = [100 * median([one.outcome.late_share for one in runs]) for runs in attacked if runs]
    clean = {one.repetition: one.outcome for one in played if one.scene is CLEAN}
    losses = []
    for runs in attacked:
        pairs = [(clean[one.repetition], one.outcome) for one in runs if one.repetition in clean]
        if pairs:
            losses.append(100 * median([before.greedy - after.greedy for before, after in pairs]))
            losses.append(100 * median([before.sampled - after.sampled for before, after in pairs]))
    early = [100 * one.outcome.share for one in played if one.scene is EARLY]
    poisoned = [100 * one.poisoned for one in played if one.scene is POISONED]
    bans = sum(one.banned for one in honest) + sum(one.outcome.honest_banned for one in played)
    return [
        Bar(name="cheater_share_pct", value=max(shares, default=None), at_most=CHEATER_SHARE_AT_MOST),
        Bar(name="eval_loss_points", value=max([0.0, *losses]) if losses else None, at_most=EVAL_LOSS_AT_MOST),
        Bar(name="early_false_pct", value=median(early) if early else None, at_most=EARLY_AT_MOST),
        Bar(name="honest_bans", value=float(bans), at_most=0.0),
        Bar(name="poison_success_pct", value=max(poisoned, default=None), at_most=POISON_AT_MOST),
    ]


def measure() -> int:
    """Run the benchmark; return its exit code."""
    parser = arguments("Measure the damage that cheats do in a swarm of 40 peers, and false bans.", reps=3)
    parser.add_argument("--steps", type=int, default=STEPS, help="training steps of each run")
    parser.add_argument("--peers", type=int, default=PEERS, help="simulated peers")
    parser.add_argument("--scene", action="append", choices=[scene.name for scene in SCENES], help="only this run")
    options = parser.parse_args()
    scenes = [scene for scene in SCENES if not options.scene or scene.name in options.scene]
    played: list[Played] = []
    with scratch(options.keep) as directory:
        for repetition in range(options.reps):
            seed = options.seed + repetition
            model = trio.run(make_model, directory / f"model-{repetition}", seed)
            for number_, scene in enumerate(scenes):
                if repetition and scene.is_clear:
                    continue
                say(f"{scene.name}, seed {seed} ...")
                place = directory / f"{repetition}-{number_}"
                one = trio.run(partial(play, scene, place, model, options.steps, options.peers, seed, repetition))
                played.append(one)
                say(as_text(one.outcome))
                say(f"{one.poisoned:.2%} of the last honest completions contain the text. {one.seconds:.0f} s.\n")
    honest = (
        []
        if options.scene
        else [lives(margins, peer_days=PEER_DAYS, seed=seed) for seed, margins in enumerate(MARGINS)]
    )
    rows = [
        (
            one.scene.name,
            options.seed + one.repetition,
            one.outcome.trained,
            number(100 * one.outcome.share),
            number(100 * one.outcome.late_share),
            number(100 * one.outcome.greedy, 1),
            number(100 * one.outcome.sampled, 1),
            number(100 * one.poisoned),
            one.outcome.honest_banned,
        )
        for one in played
    ]
    header = (
        "run",
        "seed",
        "trained",
        "cheats, %",
        "beyond 100, %",
        "greedy, %",
        "sampled, %",
        "poison, %",
        "honest banned",
    )
    say(table(header, rows))
    for life in honest:
        say(
            f"{life.peer_days} honest peer-days at the limit: {life.audits} audits, {life.failed} failed; "
            f"{life.choices} groups regenerated to detect selective delivery; {life.banned} peers banned."
        )
    figures = {
        f"{one.scene.name}, seed {options.seed + one.repetition}": {**as_json(one.outcome), "poisoned": one.poisoned}
        for one in played
    }
    return conclude("drill", verdict(played, honest), figures)


if __name__ == "__main__":
    main(measure)
