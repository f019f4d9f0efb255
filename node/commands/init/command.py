"""`volery init`: the swarm.toml that an operator begins with, every key explained where it stands.

What always holds: an existing file is never overwritten; the file is there whole or not at all; what is written reads
back through `node.config.swarm_config`, and its defaults are those of the code, but for what a model is known to want.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import socket
from itertools import chain
from pathlib import Path

from node.config.swarm_config import LearnSection
from node.runtime.errors import RunError, UsageError
from node.runtime.user_paths import real_path
from protocol.core.digest import digest_of
from protocol.core.limits import MAX_NAME_CHARS

PORTS = range(4001, 5001)
"""Where to look for a free port: 4001 is what libp2p programs use by custom, and one of many is rarely met twice."""

TEMPLATE = """\
# A Volery swarm. Start it:   volery learn {path}
# It prints an invite; whoever runs   volery join INVITE   lends a machine to it.
# Every value below is the default, but for the port and what is marked (set this) or (of the model).

[swarm]
name = {name} # (set this)
state = "state"            # keys, ledger, weights, checkpoints; relative to this file. Back up state/operator.key.
# certificate_days = 90    # how long the operator's word for this learner's key lasts; renewed in time

[network]
listen = ["/ip4/0.0.0.0/tcp/{port}", "/ip6/::/tcp/{port}"]
announce = []              # what volunteers should dial, if it differs: ["/ip4/203.0.113.7/tcp/{port}"] behind a router
join_token = ""            # a password inside the invite; empty lets everybody who has the invite join
# upload_mbit = 100.0      # at most so many million bits a second leave this machine; without it, what the line takes
# download_mbit = 100.0    # the same for what comes in
# heartbeat_s = 5.0        # silence of four heartbeats and a node's leases go to others

[model]
directory = "model"        # (set this) a Hugging Face causal LM directory: config.json, *.safetensors, tokenizer.json
weights_dtype = "bfloat16" # what travels to the peers: "bfloat16" or "float32"

[task]
spec = "reverse:letters=6" # (set this) see `volery tasks`, for example "jsonl:data/train.jsonl:match=numeric"
held_out = 128             # prompts of each task kept for evaluation, never trained on
# mixture = []             # several in place of spec: [{{ spec = "sort", weight = 3.0 }}, {{ spec = "reverse" }}]

[verifiers]                # who says what completions are worth, where that takes a task some time: programs, for one
# workers = 4              # processes here; without it, half as many as cores
timeout_s = 30.0           # for one completion; then its process is ended, and another takes its place
memory_gb = 4.0            # of each process
on_failure = "zero"        # what counts for a completion that cannot be judged; or "drop", without its whole group
machine = []               # elsewhere: [{{ command = ["ssh", "HOST", "volery", "verifier"], workers = 8 }}]

[curriculum]
order = "shuffled"         # of the problems of a file in each pass; or "easy_first", by their pass rates
low = 0.0                  # problems whose pass rate was at or below it, or at or above high, sit out passes
high = 1.0
dynamic_sampling = false   # groups whose rewards are all equal are credited, but no batch counts them

[learn]
steps = 1000               # (set this) training steps; the run ends after the last
mode = "async"             # generate while training; or "sequential": by turns, exactly on-policy, S = 0, kappa = 1
staleness = 3              # S: how many steps a rollout may be older than the policy it trains; 1 or more
publish_every = 1          # kappa: publish a version every so many steps; 0 = chosen by what is measured
prompts_per_step = 16
group_size = 16            # completions per prompt; a training step consumes prompts_per_step * group_size rollouts
max_new_tokens = 512       # budget of one completion
temperature = 1.0
lease_s = 600.0            # a volunteer has this long to deliver what it leased
seed = 0
threads = 0                # of the trainer; 0 = half the cores
max_turns = 16             # of an episode, in tasks of several turns; max_new_tokens is the budget of each
# max_episode_tokens = 4096 # of prompt, answers and all turns; without it, as many as the model takes
# ahead = 2.0              # batches leased or waiting at most; without it, as many as measurements ask for
# keep_checkpoints = 2     # to go on from after a crash
# keep_every = 0           # 100, say: beyond these a milestone every so many steps, to go back to; 0 = none
# keep_milestones = 4      # at most, the best by evaluation among them
# quantized_engines = false # or true, with [trust] audits = false: nodes may join whose engine quantises the weights

[trainer]
objective = "topr"         # or "grpo", "dapo", "gspo", "cispo", "rloo", "decoupled", "tis", ...: docs/objectives.md
# advantage = "group_mean_std"         # parts of the objective that are not its own
# correction = "masked_weight"
# aggregation = "per_token"
# clip_low = 0.2           # the ratio is held in [1 - clip_low, 1 + clip_high]; without these, as the objective asks
# clip_high = 0.28
# weight_cap = 2.0
kl = 0.0                   # weight of the KL to the model that the run began with
# gae_gamma = 1.0          # of "ppo"
# gae_lambda = 0.95
# value_coefficient = 0.1
# value_clip = 0.2
# value_learning_rate = 1e-4
# dpo_beta = 0.1           # of "dpo"
learning_rate = 1e-6
warmup_steps = 0           # the rate rises linearly over so many steps
# decay_steps = 0          # and falls linearly over so many, to decay_floor times itself; without it, over the run
decay_floor = 0.1
beta1 = 0.5                # of AdamW: stale rollouts bear less momentum than fresh ones
beta2 = 0.95
weight_decay = 0.0
grad_clip = 1.0
updates_per_step = 1       # cuts a batch into so many, an update on each
max_tokens_per_microbatch = 16384
activation_checkpointing = false  # less memory for a third more work
device = "auto"            # "cpu", "cuda"; auto = a GPU if there is one
compute_dtype = "auto"     # "bfloat16", "float32"; weights and moments are float32 either way
compile = false            # let torch compile the layers: slower to begin, faster steps on a GPU
ranks = 1                  # processes that share the model on each machine, one for each GPU
machines = 1
rendezvous = ""            # "HOST:PORT" of this machine, where the others reach it; with machines above 1
lora_rank = 0              # above 0 only a low-rank adapter is trained
lora_alpha = 0             # 0 = twice the rank
lora_targets = []          # ["q_proj", "v_proj"]; none = all linear layers but the head

[offline]
# path = "logs.jsonl"      # completions with rewards, or preference pairs, beside the swarm's rollouts
# share = 0.5              # of each batch; 1.0 = all of it, and nothing is leased
chat = "auto"              # prompts through the model's chat template: "auto", "always", "never"

[plan]
activate = true            # pay the cheapest peers that keep the learner busy, the others stand by; false = all are on
review_s = 30.0            # how often that is looked at, and whenever somebody comes or goes

[evaluate]
every_versions = 10        # evaluate every so many published versions; 0 = only the first and the last
samples = 1                # completions of each held-out prompt, beside the greedy one
k = [1]                    # pass@k is estimated from them, for each of these
device = "auto"            # of the engine that does it: "cpu", "cuda", "cuda:1", "mps"; auto = a GPU if there is one
# kv_cache_gb = 4.0        # a batch's keys and values take at most so much; without it, half of a GPU's free memory
keep_best = 1              # checkpoints of the best so many versions stay, to go back to; 0 = none

[trust]
audits = true              # draw a share of all completions again, and ban who makes them up; false: believe everybody
floor = 0.03               # of each peer's groups at least; all of a newcomer's first
# arithmetic = "any"       # or "float32": all engines must compute in it, and audits judge draws eight times as close
compute_share = 0.25       # of the time, for audits that training does not wait for
# peer_share = 1.0         # of what is under way, at most, is one peer's; 1.0 is no bound

[metrics]
sqlite = true              # every step's metrics into metrics.sqlite
prometheus = ""            # or "127.0.0.1:9464", to be scraped there
tensorboard = false        # event files
wandb = ""                 # or a project of Weights & Biases
wandb_offline = false      # written here, and sent by `wandb sync`
samples = 2                # groups of every training step that are kept for `volery show`

[store]
# quota_gb = 100.0         # published versions may take so much of the disk; without it, what there is

[price]                    # what an hour of the learner's machine costs, for the report
per_hour = 0.0
currency = "USD"

[cost]                     # what costs are held against in the report, in that currency
# per_kwh = 0.30           # what a kWh costs
reference = ""             # a machine to compare peers with, by name; then its price, and its tokens of this model:
# reference_per_hour = 0.40
# reference_tokens_per_s = 900.0

[energy]
report = true              # joules that the learner's machine takes, where they can be read, are in the ledger
# watts = 400.0            # what it takes all the time, where you know that better
"""


MODEL = "model"
"""Where a model is looked for beside swarm.toml, and where the template says that it is."""

MAX_NEW_TOKENS = LearnSection(steps=1).max_new_tokens
"""The default, which wants a model that takes twice as much: a prompt needs room, too."""

SMALL_PARAMETERS = 100_000_000
SMALL_RATE = "3e-4"
"""Below so many parameters the default rate, which suits models of 0.5 B and more, moves next to nothing."""


def write_swarm_config(directory: Path, *, name: str, port: int, model: Path | None = None) -> Path:
    """Write `directory`/swarm.toml and return its path. With `model`, what that wants is in it.

    Raises UsageError when it exists or there is no model, RunError when it cannot be written.
    """
    path = directory / "swarm.toml"
    name = name or real_path(directory).name
    if '"' in name or "\\" in name or not name.isprintable() or not 0 < len(name) <= MAX_NAME_CHARS:
        raise UsageError(
            f"--name {name!r}: use 1 to {MAX_NAME_CHARS} printable characters without quotes or backslashes."
        )
    shown = shlex.quote(str(path)) if str(path).isprintable() else path.name
    text = TEMPLATE.format(path=shown, name=f'"{name}"', port=port or free_port(directory))
    if model is not None:
        text = _fitted(text, model, directory)
    draft = directory / f".swarm.toml.{secrets.token_hex(8)}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{directory} cannot be made: {error.strerror}. Choose another directory.") from None
    try:
        draft.write_text(text, encoding="utf-8")
        os.link(draft, path)  # fails when there is one
    except FileExistsError:
        raise UsageError(f"{path} exists already; it was not touched. Edit it, or choose another directory.") from None
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}. Choose a directory you may write to.") from None
    finally:
        draft.unlink(missing_ok=True)
    return path


def model_beside(directory: Path) -> Path | None:
    """The model that lies where the template looks for one; None if there is none (yet)."""
    model = directory / MODEL
    return model if (model / "config.json").is_file() else None


def _fitted(text: str, model: Path, directory: Path) -> str:
    """The template for the model in that directory. Raises UsageError, naming what is wrong with it."""
    from node.config.preflight import require_model
    from node.learner_role.training.footprint import read_facts
    from node.tasks.tokenizer import positions_of

    try:
        require_model(model)
    except UsageError as error:
        raise UsageError(str(error).replace("[model] directory", "--model", 1)) from None
    positions, parameters = positions_of(model), read_facts(model).parameters
    path = str(model) if model.is_absolute() else os.path.relpath(real_path(model), real_path(directory))
    text = _with(text, "directory", json.dumps(path, ensure_ascii=False), "")
    if positions is not None and positions < 2 * MAX_NEW_TOKENS:
        note = f"(of the model: half of its {positions} positions)"
        text = _with(text, "max_new_tokens", str(max(1, positions // 2)), note)
    if parameters < SMALL_PARAMETERS:
        text = _with(text, "learning_rate", SMALL_RATE, f"(of the model: it has {parameters:,} parameters)")
    return text


def _with(text: str, key: str, value: str, note: str) -> str:
    """The template with another value for a key that stands once in it, and a note before what it says of that."""

    def line(found: re.Match[str]) -> str:
        comment = " ".join(filter(None, (note, found["comment"])))
        return f"{key} = {value}" + (f"  # {comment}" if comment else "")

    changed, count = re.subn(rf"(?m)^{key} = \S+ *(?:# (?P<comment>.*))?$", line, text)
    assert count == 1, (key, count)
    return changed


def free_port(directory: Path = Path()) -> int:
    """A port nobody listens on right now.

    The search begins at a place that follows from the directory: two swarms that are founded before either is started
    should not be given the same port.
    """
    first = int.from_bytes(digest_of(str(real_path(directory)).encode())[:8], "big") % len(PORTS)
    for port in chain(PORTS[first:], PORTS[:first]):
        with socket.socket() as probe:
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                continue
            return port
    return PORTS[first]
