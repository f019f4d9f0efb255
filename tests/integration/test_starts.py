"""A start and its dry run refuse the same things in the same words, and leave nothing behind.

The trainer's process is real and light (`tests.support.refusing_trainer`); `tests/e2e/test_trials.py` shows that the
real ones refuse alike.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from learner.ledger.ledger import Ledger
from learner.ledger.rows import CheckpointRow
from node.learner_role.command import learn
from node.learner_role.dry_run import dry_run
from node.learner_role.preflight import look_at
from node.learner_role.training.fixed_settings import fixed_settings
from node.learner_role.trial.trial_run import trial_terms
from node.runtime.errors import NodeError, RunError, UsageError
from node.runtime.events import Clock
from node.state.learner_state import open_learner_home
from node.tasks.tokenizer import write_character_tokenizer
from tests.learner.ledger.test_ledger import deliver, lease_row
from tests.node.learner_role.test_dry_run import QWEN3_4B, shapes, write_hollow
from tests.support.dry_runs import show_dry_run

STEP = 7
SWARM_TOML = """\
[swarm]
name = "starts"

[network]
listen = ["/ip4/127.0.0.1/tcp/0"]

[model]
directory = "model"

[task]
held_out = 0
[[task.mixture]]
spec = "jsonl:problems.jsonl:match=numeric"
name = "sums"
[[task.mixture]]
spec = "reverse:letters=3"

[learn]
steps = 50
prompts_per_step = 4
group_size = 2
max_new_tokens = 8
threads = 1

[trust]
audits = false
"""


@dataclass
class Place:
    """The files with which a person starts a swarm: the configuration, its model and its problems. Options are those of
    the command line.
    """

    root: Path
    options: dict[str, Any] = field(default_factory=dict)
    trainer: Sequence[str] = ("load", "bad_model", "the trainer was asked, though nothing should get so far")

    @property
    def path(self) -> Path:
        return self.root / "swarm.toml"

    @property
    def state(self) -> Path:
        return self.root / "state"

    def change(self, before: str, after: str) -> None:
        text = self.path.read_text()
        assert before in text
        self.path.write_text(text.replace(before, after))

    def files(self) -> dict[str, bytes]:
        """Return every file here, except those that SQLite keeps beside a database that is read."""
        found = {str(path.relative_to(self.root)): path for path in self.root.rglob("*") if path.is_file()}
        return {name: path.read_bytes() for name, path in found.items() if not name.endswith(("-shm", "-wal"))}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A run that has a checkpoint."""
    found = Place(root=tmp_path)
    found.path.write_text(SWARM_TOML)
    model = tmp_path / "model"
    write_character_tokenizer(model)
    small = QWEN3_4B | {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 64}
    (model / "config.json").write_text(json.dumps(small | {"max_position_embeddings": 64}))
    write_hollow(model / "model.safetensors", shapes(small))
    problems = [{"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in range(40)]
    (tmp_path / "problems.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    make_run(found.path, tmp_path / "state")
    return found


def make_run(path: Path, state: Path) -> None:
    """Make the run that a learner leaves when it is stopped after STEP."""
    start = look_at(path)
    home = open_learner_home(state, name="starts", certificate_days=90, now_ms=Clock.now_ms())
    home.close()
    (state / "checkpoints" / f"1.{STEP}").mkdir(parents=True)
    (state / "checkpoints" / f"1.{STEP}" / "trainer.json").write_text("{}")
    with Ledger(home.ledger, swarm=home.authority.swarm) as ledger:
        ledger.training.begin_incarnation(0, 0)
        ledger.training.begun_under(fixed_settings(start.config))
        row = CheckpointRow(step=STEP, incarnation=1, directory=f"1.{STEP}", state=start.suite.state())
        ledger.training.checkpointed(row, 0)


def other_run(place: Place) -> Path:
    """Return the state directory of a run that a fork may begin with. The fork's own does not exist yet."""
    place.state.rename(place.root / "other")
    return place.root / "other"


def nothing_to_resume(place: Place) -> None:
    other_run(place)
    place.options = {"resume": True}


def no_operator(place: Place) -> None:
    for name in ("operator.key", "certificate"):
        (place.state / name).unlink()


def fork_beyond_the_end(place: Place) -> None:
    place.options = {"fork_from": f"{other_run(place)}@{STEP}"}
    place.change("steps = 50", f"steps = {STEP}")


def fork_of_another_seed(place: Place) -> None:
    place.options = {"fork_from": str(other_run(place))}
    place.change("threads = 1", "threads = 1\nseed = 3")


def fork_of_another_task(place: Place) -> None:
    place.options = {"fork_from": str(other_run(place))}
    place.change("letters=3", "letters=4")


def pairs(place: Place, wait: int = 4) -> None:
    """Make groups of so many pairs wait to be trained on."""
    with Ledger(place.state / "ledger.sqlite", swarm=swarm_of(place)) as ledger:
        ledger.work.leases_issued([replace(lease_row(1), rollouts=wait)])
        deliver(ledger, 1)
    place.change("[trust]", '[trainer]\nobjective = "dpo"\n\n[trust]')


def swarm_of(place: Place) -> Any:
    home = open_learner_home(place.state, name="starts", certificate_days=90, now_ms=Clock.now_ms())
    home.close()
    return home.authority.swarm


def another_line(place: Place) -> None:
    with (place.root / "problems.jsonl").open("a") as file:
        file.write('{"prompt": "1+1=", "answer": "2"}\n')


def foreign(place: Place) -> None:
    place.trainer = ("restore", "foreign_checkpoint", f"{place.state}/checkpoints/1.7 is a checkpoint of another model")


def in_use(place: Place) -> None:
    home = open_learner_home(place.state, name="starts", certificate_days=90, now_ms=Clock.now_ms())
    holding.append(home)


holding: list[Any] = []
"""Homes that are open, so that their locks are not lost with them."""

BROKEN: dict[str, tuple[Callable[[Place], None], type[NodeError], str]] = {
    "a key that is not known": (lambda p: p.change("threads", "thread"), UsageError, "there is no key 'thread'"),
    "no address": (
        lambda p: p.change('listen = ["/ip4/127.0.0.1/tcp/0"]', "listen = []"),
        UsageError,
        r"\[network\] listen = \[\] lets no volunteer reach this learner",
    ),
    "a bad address": (lambda p: p.change("/tcp/0", "/udp/0"), UsageError, r"\[network\] listen: "),
    "no model": (lambda p: (p.root / "model" / "config.json").unlink(), UsageError, "has no config.json"),
    "another seed": (
        lambda p: p.change("threads = 1", "threads = 1\nseed = 3"),
        UsageError,
        r"\[learn\] seed = 3 is not the 0 that this run began with, .* some would come again, and others never\.",
    ),
    "another stop": (
        lambda p: p.change('directory = "model"', 'directory = "model"\nstop = ["<pad>"]'),
        UsageError,
        r"\[model\] stop is not what it was when this run began: .* A fork \(--fork-from\) may have another value\.",
    ),
    "a template that is not there": (
        lambda p: p.change('directory = "model"', 'directory = "model"\nchat_template = "none.jinja"'),
        UsageError,
        r"\[model\] chat_template: .*none\.jinja: cannot be read: No such file or directory\. Name a file",
    ),
    "a system prompt for plain text": (
        lambda p: p.change('directory = "model"', 'directory = "model"\nsystem_prompt = "be brief"'),
        UsageError,
        r"\[model\] directory: .*: has no chat template, and \[model\] system_prompt needs one",
    ),
    "another task": (lambda p: p.change("letters=3", "letters=4"), UsageError, "the task is not the one this run"),
    "another match": (lambda p: p.change("=numeric", "=exact"), UsageError, "the task is not the one this run"),
    "another data file": (another_line, UsageError, "the task is not the one this run began with"),
    "a task of another name": (
        lambda p: p.change('name = "sums"', 'name = "additions"'),
        UsageError,
        r"\[task\] the tasks are called additions, reverse, but were called sums, reverse when this run began",
    ),
    "pairs of what was no pair": (pairs, UsageError, r'objective = "dpo" learns from pairs, but groups of 4 in'),
    "nothing to resume": (
        nothing_to_resume,
        UsageError,
        "has no checkpoint to continue from",
    ),
    "two beginnings": (lambda p: p.options.update(resume=True, fork_from="x"), UsageError, "choose one"),
    "a fork into what is there": (lambda p: p.options.update(fork_from="x"), UsageError, "a fork is a new swarm"),
    "a fork of a step after the last": (
        fork_beyond_the_end,
        UsageError,
        rf"^--fork-from .*@{STEP}: the fork begins with step {STEP}, so \[learn\] steps = {STEP} leaves nothing",
    ),
    "a fork of another seed": (fork_of_another_seed, UsageError, r"^--fork-from .*: \[learn\] seed = 3 is not the 0"),
    "a fork of another task": (fork_of_another_task, UsageError, "^--fork-from .*: the task is not the one this run"),
    "a learner that runs": (in_use, RunError, "is used by a learner that is running"),
    "no ledger": (lambda p: (p.state / "ledger.sqlite").unlink(), RunError, "is missing or empty"),
    "no genesis": (lambda p: (p.state / "genesis").unlink(), UsageError, "it says which swarm this is"),
    "no operator": (no_operator, UsageError, "is not here to renew it"),
    "a key that others can read": (
        lambda p: (p.state / "lease.secret").chmod(0o644),
        UsageError,
        "can be read by others",
    ),
    "a model that the trainer refuses": (
        lambda p: setattr(p, "trainer", ("load", "bad_model", "model_type = 't5' is no causal language model")),
        UsageError,
        r"swarm\.toml: \[model\] directory: model_type = 't5' is no causal language model$",
    ),
    "settings that the trainer refuses": (
        lambda p: setattr(p, "trainer", ("load", "bad_request", 'device = "cuda" is not there')),
        UsageError,
        r'swarm\.toml: \[trainer\] device = "cuda" is not there$',
    ),
    "a trainer without memory": (
        lambda p: setattr(p, "trainer", ("load", "internal", "out of memory")),
        RunError,
        "^The policy cannot be loaded: out of memory$",
    ),
    "another model, or another lora_rank": (
        foreign,
        RunError,
        r"^This run cannot continue: .* is a checkpoint of another model\.$",
    ),
    "checkpoints that cannot be read": (
        lambda p: setattr(p, "trainer", ("restore", "bad_checkpoint", "it is half-written")),
        RunError,
        "^None of the 1 checkpoints in .* can be used, so training would begin at step 0",
    ),
    "a full disk": (
        lambda p: setattr(p, "trainer", ("export", "internal", "weights that nobody can write")),
        RunError,
        "^The first version cannot be published: weights that nobody can write",
    ),
}


async def refused(program: Callable[..., Any], place: Place, **more: Any) -> NodeError:
    trainer = (sys.executable, "-m", "tests.support.refusing_trainer", *place.trainer)
    with pytest.raises(NodeError) as caught:
        await program(place.path, **place.options, trainer=trainer, **more)
    return caught.value


@pytest.mark.parametrize("what", BROKEN)
async def test_a_start_and_its_dry_run_refuse_in_the_same_words(
    place: Place, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, kind, says = BROKEN[what]
    try:
        spoil(place)
        before = place.files()
        told = await refused(dry_run, place)
        assert place.files() == before, "the dry run changed a file"
        started = await refused(learn, place, plain=True)
    finally:
        while holding:
            holding.pop().close()
    with pytest.raises(NodeError, match=says):
        raise told
    assert str(started) == str(told)
    assert (type(told), started.exit_code) == (type(started), kind.exit_code)
    assert "volery join" not in capsys.readouterr().out, "nobody is invited"


async def test_a_trainer_that_cannot_even_start_is_told_alike(place: Place) -> None:
    broken = (sys.executable, "-c", "import sys; sys.exit('there is no torch here')")
    says = r"^The trainer could not run: .*there is no torch here"
    with pytest.raises(RunError, match=says) as told:
        await dry_run(place.path, trainer=broken)
    with pytest.raises(RunError, match=says) as started:
        await learn(place.path, plain=True, trainer=broken)
    assert str(started.value) == str(told.value)


async def test_a_refusal_of_the_trainer_leaves_a_run_that_can_be_gone_on_with(place: Place) -> None:
    for op in ("load", "restore", "export"):
        place.trainer = (op, "internal", "no")
        await refused(learn, place, plain=True)
    start = look_at(place.path, resume=True)
    assert [row.step for row in start.rows] == [STEP]
    with Ledger(place.state / "ledger.sqlite", swarm=swarm_of(place)) as ledger:
        assert len(ledger.training.begun()) == 1
        assert ledger.training.manifests() == []


async def test_a_first_start_that_is_refused_and_a_fork_leave_nothing_to_go_on_from(place: Place) -> None:
    place.options, place.trainer = {"fork_from": str(other_run(place))}, ("export", "internal", "no")
    await refused(learn, place, plain=True)
    assert not place.state.exists(), "the state of the failed fork must be removed"
    place.options = {}
    await refused(learn, place, plain=True)
    assert not (place.state / "invite").exists()
    start = look_at(place.path)
    assert (start.rows, start.origin) == ([], None)
    assert "The run begins at step 0 (no checkpoint)" in show_dry_run(place.path)


def test_what_may_change_may_change(place: Place) -> None:
    place.change("threads = 1", "threads = 2\ntemperature = 1.5\nstaleness = 5")
    place.change("group_size = 2", "group_size = 4")
    place.change("max_new_tokens = 8", "max_new_tokens = 9")
    place.change('directory = "model"', 'directory = "model"\nweights_dtype = "float32"')
    place.change("letters=3", 'letters=3"\nweight = 3.0\n#"')
    assert "The run continues from step 7" in show_dry_run(place.path, resume=True)


def test_pairs_that_wait_are_no_reason_to_refuse_pairs(place: Place) -> None:
    """This holds for any size that the groups had when the run began."""
    pairs(place, wait=2)
    look_at(place.path)


def test_settings_are_held_before_the_first_checkpoint_once_work_was_leased(place: Place) -> None:
    with Ledger(place.state / "ledger.sqlite", swarm=swarm_of(place)) as ledger:
        ledger.training.checkpoints_removed([STEP])
    shutil.rmtree(place.state / "checkpoints" / f"1.{STEP}")
    place.change("threads = 1", "threads = 1\nseed = 3")
    look_at(place.path)
    with Ledger(place.state / "ledger.sqlite", swarm=swarm_of(place)) as ledger:
        ledger.work.leases_issued([lease_row(1)])
        deliver(ledger, 1)
    with pytest.raises(UsageError, match="seed = 3 is not the"):
        look_at(place.path)


def test_a_fork_may_speak_to_its_model_otherwise(place: Place) -> None:
    place.options = {"fork_from": str(other_run(place))}
    place.change('directory = "model"', 'directory = "model"\nstop = ["<pad>"]')
    assert look_at(place.path, fork_from=place.options["fork_from"]).suite.stop_ids == (0, 2)


def test_a_run_of_before_ways_were_kept_had_none(place: Place) -> None:
    with Ledger(place.state / "ledger.sqlite", swarm=swarm_of(place)) as ledger:
        kept = fixed_settings(look_at(place.path).config)
        ledger.training.begun_under({name: value for name, value in kept.items() if name != "ways"})
    look_at(place.path)
    place.change('directory = "model"', 'directory = "model"\nstop_ids = [5]')
    with pytest.raises(UsageError, match=r"\[model\] stop_ids is not what it was"):
        look_at(place.path)


def test_a_ledger_of_before_settings_were_kept_takes_them_as_they_are(place: Place) -> None:
    with Ledger(place.state / "ledger.sqlite", swarm=swarm_of(place)) as ledger, ledger.transaction() as db:
        db.execute("DELETE FROM meta WHERE key = 'settings'")
    place.change('name = "sums"', 'name = "additions"')
    look_at(place.path)


def test_a_run_whose_steps_are_over_says_so(place: Place) -> None:
    place.change("steps = 50", f"steps = {STEP}")
    assert f"the learner publishes its version, and ends. Raise [learn] steps above {STEP}" in show_dry_run(place.path)


def test_a_quick_dry_run_says_in_what_this_machine_computes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.learner_role.dry_run.has_gpu", lambda: False)
    assert "Layers compute in float32 here, where there is no GPU." in show_dry_run(place.path)
    monkeypatch.setattr("node.learner_role.dry_run.has_gpu", lambda: True)
    assert "Layers compute in bfloat16 here, where there is a GPU." in show_dry_run(place.path)
    place.change("[trust]", '[trainer]\ncompute_dtype = "bfloat16"\n\n[trust]')
    assert "Layers compute in bfloat16." in show_dry_run(place.path)


def test_a_run_is_tried_on_the_first_prompt_of_each_task_and_its_curriculum_does_not_move(place: Place) -> None:
    start = look_at(place.path)
    before = start.suite.state()
    terms = trial_terms(start.config, start.suite)
    assert terms is not None
    assert terms.prompts == [encoded.prompt(0) for encoded in start.suite.tasks.values()]
    assert (terms.reach.turn_tokens, terms.reach.tokens, terms.reach.has_turns) == (8, 64, False)
    assert start.suite.state() == before


def test_a_first_prompt_that_leaves_no_room_is_passed_over(place: Place) -> None:
    long = [{"prompt": f"{n}+" * 30, "answer": "1"} for n in range(10)]
    before = (place.root / "problems.jsonl").read_text()
    (place.root / "problems.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in long) + before)
    shutil.rmtree(place.state)
    start = look_at(place.path)
    prompts = [start.suite.tasks["sums"].prompt(index) for index in range(20)]
    found = trial_terms(start.config, start.suite)
    assert found is not None
    assert len(prompts[0]) + 8 > 64
    assert found.prompts[0] == next(prompt for prompt in prompts if len(prompt) + 8 <= 64)


def test_a_run_that_no_engine_takes_part_in_has_no_trial(place: Place) -> None:
    (place.root / "logs.jsonl").write_text('{"prompt": "1+1=", "chosen": "2", "rejected": "3"}\n' * 4)
    shutil.rmtree(place.state)
    place.change("[trust]", '[offline]\npath = "logs.jsonl"\nshare = 1.0\n\n[trust]')
    start = look_at(place.path)
    assert trial_terms(start.config, start.suite) is None
    place.change("held_out = 0", "held_out = 2")
    start = look_at(place.path)
    assert trial_terms(start.config, start.suite) is not None, "an engine evaluates"
