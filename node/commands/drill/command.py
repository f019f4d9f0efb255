"""Run attacks against a copy of one's own swarm, before somebody else makes them (`volery drill`).

Invariants:

- A running swarm is not touched: the drill has its own state below `out`, and its peers reach only its learner.
- A directory that exists is replaced only if a drill made it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import trio

from node.commands.drill.attacks import Attack
from node.commands.drill.results import Outcome, outcome_of
from node.commands.drill.swarm import DrillSetup, perform
from node.commands.drill.text import as_json, as_text
from node.config.loader import read_swarm_config
from node.config.swarm_config import SwarmConfig
from node.engine.interface import EngineError
from node.learner_role.preflight import check_config
from node.learner_role.training.tiny_model import MODEL, StartingModel
from node.learner_role.training.warm_start import TINY_QWEN3
from node.reports.model.report import Role
from node.runtime.atomic_files import prepare, write_whole, writing
from node.runtime.errors import RunError, UsageError
from node.runtime.events import EventLog
from node.runtime.shutdown import Stopped
from node.runtime.stdout import say
from node.tasks.tokenizer import TextCodec
from node.ui.live_view import ViewState
from node.ui.terminal import Terminal, open_terminal, run_shown
from node.ui.view_updates import follow

OUTCOME = "drill.json"
STATE = "learner"

TASK = "reverse:letters=24"
HELD_OUT = 512
MAX_NEW_TOKENS = 26
PROMPTS_PER_STEP = 64
COMPUTE_SHARE = 0.25

POISON = "zap"
"""The text that the poisoning cheat writes after right answers."""

CONFIG = """\
# Written by `volery drill`.
[swarm]
name = "drill"
state = "{state}"

[network]
listen = ["/ip4/127.0.0.1/tcp/0"]
heartbeat_s = 1.0

[model]
directory = "{model}"
weights_dtype = "float32"

[task]
spec = "{task}"
held_out = {held_out}

[learn]
steps = {steps}
staleness = 3
prompts_per_step = {prompts_per_step}
group_size = 4
max_new_tokens = {max_new_tokens}
max_batches_ahead = 1.5
lease_timeout_s = 60.0
seed = {seed}
threads = 1

[trainer]
learning_rate = 0.0008
warmup_steps = 20

[provisioning]
select_peers = false

[evaluate]
every_versions = {every_versions}
samples = {samples}

[trust]
audits = {audits}
required_compute_dtype = "float32"
max_audit_compute_share = {compute_share}

[metrics]
samples = 0
"""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The options of a drill, with the model, task and rules of a swarm.toml, or of a small swarm made for it.

    Args:
        peers: number of peers; the fraction `cheats` of them cheats.
        attacks: attacks in the order in which cheats take turns.
        steps: training steps.
    """

    config: Path | None
    out: Path
    peers: int
    cheats: float
    attacks: Sequence[Attack]
    steps: int
    seed: int

    @property
    def num_cheats(self) -> int:
        return round(self.peers * self.cheats)


async def run_drill(terms: Terms, *, as_json_text: bool, plain: bool) -> int:
    """Run the drill and return the exit code: 1 if an honest peer was banned. Raises UsageError or RunError."""
    _require_parts(terms)
    config = None if terms.config is None else read_swarm_config(terms.config)
    prepare(terms.out, "drill")
    events = EventLog(terms.out / "events.jsonl")
    view = ViewState(role=Role.LEARNER, title="drill", batch=0, steps=terms.steps, staleness=0)
    with open_terminal(view, plain=plain, aside=as_json_text) as terminal:
        outcome: Outcome | None = None
        try:
            with suppress(Stopped):
                outcome = await run_shown(terminal, lambda: _drill(terms, config, events, terminal))
        except EngineError as error:
            said = str(error).rstrip(".")
            raise RunError(f"The engine of the drill's peers failed: {said}. Fix that, and start again.") from None
        finally:
            events.close()
    if outcome is None:
        return terminal.say_stopped(
            f"After step {view.step} of {view.steps}: {view.sum}." if view.step else "",
            f"Stopped. The results so far are in {terms.out}; another drill there replaces them.",
        )
    told = as_json(outcome)
    text = json.dumps(told, indent=2) + "\n"
    with writing(terms.out / OUTCOME, "--out"):
        write_whole(terms.out / OUTCOME, lambda path: path.write_text(text, encoding="utf-8"))
    say(text.rstrip() if as_json_text else as_text(outcome))
    return 1 if outcome.honest_banned else 0


def _require_parts(terms: Terms) -> None:
    """Raise UsageError unless at least one peer is honest and, if `cheats` is not 0, at least one cheats."""
    if terms.num_cheats >= terms.peers:
        raise UsageError(f"--cheats: {terms.num_cheats} of {terms.peers} peers would leave no honest one. Lower it.")
    if terms.cheats and not terms.num_cheats:
        least = math.ceil(100 / terms.peers) / 100
        more = f"--cheats {least:g} or more, or more --peers" if terms.peers > 1 else "more --peers"
        raise UsageError(
            f"--cheats {terms.cheats:g} of --peers {terms.peers} comes to no cheat at all. Use {more}; --cheats 0 runs "
            "without any."
        )


async def _drill(terms: Terms, config: SwarmConfig | None, events: EventLog, terminal: Terminal) -> Outcome:
    path = terms.config
    if config is None or path is None:
        terminal.say("Making a small model and training it a little (under a minute)...")
        path = await small_swarm(terms.out, steps=terms.steps, seed=terms.seed, events=events)
        config = read_swarm_config(path)
    config = adapt_config(config, terms.out / STATE, terms.steps)
    suite = check_config(config, path)
    terminal.state.batch, terminal.state.staleness = config.swarm_rollouts, config.learn.staleness
    follow(terminal.state, events)
    poison = await trio.to_thread.run_sync(lambda: TextCodec.load(Path(config.model.directory)).encode_answer(POISON))
    cast = DrillSetup(
        honest=terms.peers - terms.num_cheats,
        cheats=terms.num_cheats,
        attacks=terms.attacks,
        poison=poison[:-1],
        seed=terms.seed,
    )
    terminal.say(
        f"{cast.honest} honest peers and {cast.cheats} cheats for {terms.steps} steps. The cheats' attacks take turns."
    )
    done = await perform(config, suite, cast, events)
    ledger = terms.out / STATE / "ledger.sqlite"
    return await trio.to_thread.run_sync(outcome_of, ledger, done.played, done.relayed)


async def small_swarm(out: Path, *, steps: int, seed: int, events: EventLog) -> Path:
    """Make a small model in `out`, and a swarm.toml for it; return the path of the swarm.toml."""
    model = StartingModel(task=TASK, held_out=HELD_OUT, max_new_tokens=MAX_NEW_TOKENS, seed=seed, config=TINY_QWEN3)
    await model.make(out, events)
    path = out / "swarm.toml"
    with writing(path, "--out", named="directory"):
        path.write_text(small_swarm_toml(steps=steps, seed=seed), encoding="utf-8")
    return path


def small_swarm_toml(
    *,
    steps: int,
    seed: int,
    task: str = TASK,
    max_new_tokens: int = MAX_NEW_TOKENS,
    held_out: int = HELD_OUT,
    audits: bool = True,
    every_versions: int = 20,
    samples: int = 1,
    prompts_per_step: int = PROMPTS_PER_STEP,
    compute_share: float = COMPUTE_SHARE,
) -> str:
    """Return the configuration of a small swarm, beside its model.

    Args:
        every_versions: versions between two evaluations; 0 evaluates only the first and the last version.
        samples: sampled completions of each held-out prompt, besides the greedy one.
    """
    return CONFIG.format(
        state=STATE,
        model=MODEL,
        task=task,
        held_out=held_out,
        steps=steps,
        max_new_tokens=max_new_tokens,
        seed=seed,
        audits=str(audits).lower(),
        every_versions=every_versions,
        samples=samples,
        prompts_per_step=prompts_per_step,
        compute_share=compute_share,
    )


def adapt_config(config: SwarmConfig, state: Path, steps: int) -> SwarmConfig:
    """Return the configuration for the drill: with its own state, `steps` training steps, and all peers active."""
    changed: dict[str, Any] = {
        "swarm": msgspec.structs.replace(config.swarm, state=str(state)),
        "learn": msgspec.structs.replace(config.learn, steps=steps),
        "provisioning": msgspec.structs.replace(config.provisioning, select_peers=False),
        "network": msgspec.structs.replace(config.network, listen=[], announce=[], heartbeat_s=1.0),
        "metrics": msgspec.structs.replace(config.metrics, prometheus="", wandb="", tensorboard=False),
    }
    return msgspec.structs.replace(config, **changed)
