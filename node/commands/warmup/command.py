"""Run `volery warmup`: open, connect and close the parts of a warm-up.

The trainer process teaches with the device, ranks and memory of `[trainer]`. If held-out prompts are evaluated, the
learner's evaluation engine generates and verifiers judge, as in a run.

Invariants:

- Mistakes that can be found without the model are found before it is loaded.
- The result appears whole or not at all, and never replaces anything.
- When the command ends for any reason, all its processes have ended.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import trio

from learner.rollouts.environment import MAX_EPISODE_TOKENS
from node.commands.warmup.batches import Batches, Endless, Finite
from node.commands.warmup.conversations import Reader, open_data
from node.commands.warmup.examples import Lessons, of_rows, of_tasks
from node.commands.warmup.kept import Kept, open_kept
from node.commands.warmup.lesson import Ending, Lesson
from node.commands.warmup.options import ENDLESS_STEPS, EPOCHS, Wanted
from node.commands.warmup.progress import Progress
from node.commands.warmup.schedule import BETAS, Schedule
from node.commands.warmup.scoring import Judged, Scoring
from node.config.loader import read_swarm_config
from node.config.preflight import require_model
from node.config.swarm_config import SwarmConfig
from node.engine.factory import learners_engine, open_verifying_engine
from node.engine.interface import EngineError
from node.learner_role.training.base_model import digests_of
from node.learner_role.training.evaluation import EvaluationTerms
from node.learner_role.training.fixed_settings import ways_of
from node.learner_role.training.footprint import read_facts, require_targets
from node.learner_role.training.learning_rates import rates_of
from node.learner_role.training.restore import load_policy
from node.learner_role.training.supervised import Example
from node.learner_role.training.trainer_process import TRAINER, CallTrainer, child_spec, load_request
from node.processes.child import SupervisedChild, open_child
from node.processes.event_log import child_events
from node.processes.outcomes import ChildCrashed, ChildGaveUp, ChildRefused
from node.runtime.errors import RunError, UsageError, about_keys_of
from node.runtime.events import EventLog, Fields
from node.runtime.shutdown import STOPPED_EXIT_CODE, Stopped, stop_when_told
from node.tasks.task_suite import TaskSuite, open_task_suite
from node.tasks.tokenizer import TextCodec, positions_of
from node.tasks.tools.reading import END_OF_THINKING
from node.tasks.ways.model_ways import read_ways
from node.verifiers.dispatch import Verifiers, require_here
from protocol.core.pipe import Arrays, Header
from swarm.transport.error_groups import first_cause

SEED_APART = 1_000_003
"""Added to [learn] seed, so that a task without end teaches other problems than the run will use."""

LOOKED_AT = 32
"""Examples that are checked for a thought that the chat template opens."""

CANNOT = "The trainer cannot continue"

MEMORY = (
    "The trainer has no memory left. Lower [trainer] max_tokens_per_microbatch, set activation_checkpointing = true, "
    "or teach an adapter (--lora)"
)

TRAINERS_FAULT = {
    "diverged": "The loss is not finite any more. Lower --learning-rate and add --anew, or look for broken examples",
    "disk": "The disk cannot store what has to be written",
}


@dataclass(frozen=True, kw_only=True)
class Planned:
    """All that is known before a process is started.

    `suite` is None if no task is needed; `notes` are shown to the person who started the command.
    """

    config: SwarmConfig
    suite: TaskSuite | None
    lessons: Lessons
    batches: Batches
    schedule: Schedule
    fixed: Mapping[str, Any]
    notes: Sequence[str]


async def warmup(wanted: Wanted, *, as_json: bool = False, trainer: Sequence[str] = TRAINER) -> int:
    """Run `volery warmup` and return the exit code. Raises UsageError, RunError.

    `trainer` is the command of the trainer process.
    """
    wanted.require()
    out = Path(os.path.abspath(wanted.out))
    require_out(out)
    progress = Progress(as_json=as_json)
    kept: Kept | None = None
    try:
        with first_cause():
            async with trio.open_nursery() as nursery:
                await nursery.start(stop_when_told)
                progress.reading()
                with about_keys_of(wanted.config):
                    planned = await trio.to_thread.run_sync(plan, wanted, abandon_on_cancel=True)
                    progress.examples(planned.lessons.text)
                    for note in planned.notes:
                        progress.trouble(note)
                    with open_kept(out, planned.fixed, anew=wanted.anew) as kept:
                        ending = await _teach(wanted, planned, out, kept, progress, trainer)
                        kept.remove()
                nursery.cancel_scope.cancel()
    except Stopped:
        progress.stopped(_stopped(kept))
        return STOPPED_EXIT_CODE
    progress.done(_ending_text(out, ending, wanted), out=str(out), steps=ending.steps)
    return 0


def require_out(out: Path) -> None:
    """Check that the place for the result is free and can be written. Raises UsageError, RunError."""
    if os.path.lexists(out):
        raise UsageError(f"{out} already exists, and was not changed. Name a directory that does not exist.")
    parent = next(one for one in out.parents if one.exists())
    if not parent.is_dir():
        raise UsageError(f"{out} cannot be made: {parent} is a file. Name another directory.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise RunError(f"{out} cannot be made: {parent} is not writable. Name another directory.")


def plan(wanted: Wanted) -> Planned:
    """Read the configuration, tasks and examples. Raises UsageError, TaskError, RunError."""
    config = read_swarm_config(wanted.config)
    directory, base = Path(config.model.directory), wanted.config.resolve().parent
    require_model(directory)
    if wanted.lora:
        require_targets(directory, config.trainer)
    suite = None
    if wanted.scored or wanted.data is None:
        suite = _open_suite(config, base)
    if wanted.scored:
        assert suite is not None
        _require_scores(config, suite)
    most = positions_of(directory) or MAX_EPISODE_TOKENS
    most = min(most, wanted.max_tokens or most)
    codec = suite.codec if suite else TextCodec.load(directory, read_ways(config.model))
    lessons = _lessons(wanted, config, suite, codec, most)
    batches = _batches(wanted, lessons, config.learn.seed)
    return Planned(
        config=config,
        suite=suite if wanted.scored else None,
        lessons=lessons,
        batches=batches,
        schedule=wanted.schedule(batches.total, rates_of(read_facts(directory).parameters)),
        fixed={
            "model": digests_of(directory),
            "ways": ways_of(config.model),
            "examples": lessons.digest,
            "seed": config.learn.seed,
            "batch": [wanted.batch_tokens, wanted.batch_examples],
            "lora": _lora(wanted, config),
        },
        notes=[*codec.notes, *thoughtless(lessons.held_back or lessons.examples[:LOOKED_AT], codec)],
    )


def thoughtless(examples: Sequence[Example], codec: TextCodec) -> list[str]:
    """Return a note if the chat template opens a thought that no example closes."""
    if not examples or not codec.begins_in_thinking:
        return []
    if any(END_OF_THINKING in codec.decode(one.tokens[one.learnt == 1].tolist()) for one in examples):
        return []
    return [
        "the chat template opens <think> before each answer, and no checked example closes it, so the model learns to "
        "answer inside its thoughts. Use examples with thoughts, or set chat_template_kwargs of [model]."
    ]


def _open_suite(config: SwarmConfig, base: Path) -> TaskSuite:
    if not config.task.tasks:
        raise UsageError(
            "[task] names no task. Name one in spec, or teach from a file for a fixed length: --data FILE --epochs 3."
        )
    seed = (config.learn.seed + SEED_APART) % (1 << 32)
    return open_task_suite(
        msgspec.structs.replace(config, learn=msgspec.structs.replace(config.learn, seed=seed)), base
    )


def _require_scores(config: SwarmConfig, suite: TaskSuite) -> None:
    """Raise UsageError if a range is wanted and no prompt is held out."""
    if not suite.held_out:
        why = "held_out = 0" if config.task.held_out == 0 else "no prompt is held out"
        raise UsageError(
            f"[task] {why}, so no score can be measured. Hold some prompts out (128 is usual), or give only a length: "
            "--epochs 3, or --steps."
        )
    require_here(suite, config.verifiers, config.curriculum.decided_by)


def _lessons(wanted: Wanted, config: SwarmConfig, suite: TaskSuite | None, codec: TextCodec, most: int) -> Lessons:
    if wanted.data is None:
        assert suite is not None
        return of_tasks(suite, [one.weight for one in config.task.tasks], most)
    reader = Reader(codec=codec, chat=wanted.chat, names=wanted.names)
    return of_rows((one for _, one in reader.read(open_data(wanted.data, wanted.split))), most)


def _batches(wanted: Wanted, lessons: Lessons, seed: int) -> Batches:
    if lessons.draw is None:
        epochs = wanted.epochs or EPOCHS
        return Finite(lessons.examples, wanted.bounds, seed, epochs=epochs, steps=wanted.steps)
    if wanted.epochs:
        raise UsageError(
            "--epochs: these examples have no end, so there are no passes over them. Give --steps instead."
        )
    total = wanted.steps or ENDLESS_STEPS
    return Endless(draw=lessons.draw, weights=lessons.weights, bounds=wanted.bounds, total=total)


def _lora(wanted: Wanted, config: SwarmConfig) -> dict[str, Any] | None:
    if not wanted.lora:
        return None
    alpha = config.trainer.lora_alpha or 2 * wanted.lora
    return {"rank": wanted.lora, "alpha": alpha, "targets": config.trainer.lora_targets}


async def _teach(
    wanted: Wanted, planned: Planned, out: Path, kept: Kept, progress: Progress, trainer: Sequence[str]
) -> Ending:
    config, events = planned.config, EventLog()
    events.listen(_troubles(progress))
    progress.total = planned.batches.total
    async with AsyncExitStack() as stack:
        try:
            child = await stack.enter_async_context(
                open_child(
                    child_spec(trainer, config),
                    on_event=child_events(events, "trainer"),
                    on_frame=lambda header, _: progress.waiting(header),
                )
            )
            judge = await stack.enter_async_context(_scoring(wanted, planned, kept, events))
        except ChildCrashed as crash:
            raise RunError(f"The trainer cannot run: {crash}") from crash
        call = _caller(child, kept)
        await load_policy(_asking(child), _load(wanted, planned))
        export = {"dtype": config.model.weights_dtype, **({"merge": True} if wanted.lora else {})}

        async def judged(number: int) -> Judged:
            assert judge is not None
            progress.asking(len(judge.suite.held_out))
            directory = kept.look(number)
            await call("export", {"directory": str(directory), **export}, None)
            try:
                return await judge.score(directory, number)
            except EngineError as error:
                raise RunError(f"Held-out prompts cannot be evaluated: {error}") from error

        lesson = Lesson(
            call=call,
            batches=planned.batches,
            schedule=planned.schedule,
            held_back=planned.lessons.held_back,
            kept=kept,
            progress=progress,
            block=wanted.block(planned.batches.total),
            target=wanted.target,
            judge=judged if judge is not None else None,
        )
        progress.begun(kept.reached.steps if kept.reached else 0, _of(wanted, planned.schedule))
        ending = await lesson.run()
        await call("export", {"directory": str(out), **export}, None)
    return ending


def _of(wanted: Wanted, schedule: Schedule) -> str:
    what = f"an adapter of rank {wanted.lora}" if wanted.lora else "all weights"
    until = f", until {wanted.score} lies in {wanted.target}" if wanted.target else ""
    return f"{what}, at a rate of up to {schedule.rate:g}{until}"


@asynccontextmanager
async def _scoring(wanted: Wanted, planned: Planned, kept: Kept, events: EventLog) -> AsyncIterator[Scoring | None]:
    """Yield the evaluation of held-out prompts; None if none are evaluated."""
    suite, config = planned.suite, planned.config
    if suite is None:
        yield None
        return
    section = msgspec.structs.replace(learners_engine(config), threads=0, nice=0)  # nothing else runs meanwhile
    verifiers = Verifiers(suite=suite, section=config.verifiers, events=events)
    async with (
        verifiers.open(),
        open_verifying_engine(section, events, name="evaluation", state=kept.place) as engine,
    ):
        yield Scoring(
            engine=engine,
            suite=suite,
            ask=verifiers.held_out_replies,
            by=wanted.score,
            terms=EvaluationTerms(
                every_versions=0,
                temperature=config.learn.temperature,
                max_new_tokens=config.learn.max_new_tokens,
                stop_ids=frozenset(suite.stop_ids),
                samples=config.evaluate.samples,
                ks=(1,),
                decides=config.curriculum.decided_by,
            ),
        )


def _load(wanted: Wanted, planned: Planned) -> dict[str, Any]:
    """Return the trainer's load request, with the settings of [trainer] and without an objective."""
    config, trainer = planned.config, planned.config.trainer
    return {
        **load_request(config),
        "lora": _lora(wanted, config),
        "hyperparameters": {
            "learning_rate": planned.schedule.rate,
            "betas": list(BETAS),
            "weight_decay": wanted.weight_decay,
            "grad_clip": wanted.grad_clip,
            "max_new_tokens": config.learn.max_new_tokens,
            "max_tokens_per_microbatch": trainer.max_tokens_per_microbatch,
            "gradient_checkpointing": trainer.activation_checkpointing,
        },
    }


def _asking(child: SupervisedChild) -> Any:
    async def ask(op: str, header: Mapping[str, object]) -> Header:
        return (await child.call(op, header))[0]

    return ask


def _caller(child: SupervisedChild, kept: Kept) -> CallTrainer:
    async def call(op: str, header: Mapping[str, object], arrays: Arrays | None) -> tuple[Header, Arrays]:
        try:
            return await child.call(op, header, arrays)
        except ChildRefused as refused:
            why = MEMORY if "out of memory" in refused.error.lower() else TRAINERS_FAULT.get(refused.kind, CANNOT)
            raise RunError(f"{why}: {refused.error.rstrip('.')}. {_go_on(kept)}") from None
        except (ChildCrashed, ChildGaveUp) as end:
            raise RunError(f"The trainer cannot continue: {end}\n{_go_on(kept)}") from end

    return call


def _go_on(kept: Kept | None) -> str:
    if kept is None or kept.reached is None:
        return "No result was written, and no checkpoint was kept."
    return f"No result was written. The same command continues from step {kept.reached.steps}, kept in {kept.place}."


def _stopped(kept: Kept | None) -> str:
    return f"Stopped. {_go_on(kept)}"


def _troubles(progress: Progress) -> Any:
    def hear(event: str, fields: Fields) -> None:
        if event == "trouble":
            progress.trouble(str(fields["text"]))

    return hear


def _ending_text(out: Path, ending: Ending, wanted: Wanted) -> str:
    figures = [] if ending.loss is None else [f"held-out loss {ending.loss:.4f}"]
    figures += [] if ending.judged is None else [ending.judged.text]
    shown = f": {'; '.join(figures)}" if figures else ""
    name = shlex.quote(str(wanted.out))
    swarm = shlex.quote(next_swarm(wanted.config))
    return (
        f"Wrote {out} after step {ending.steps}{shown}.\nTo begin reinforcement learning with it, set [model] "
        f"directory = {str(out)!r} in {wanted.config}, or run volery init {swarm} --model {name} with your --data."
    )


def next_swarm(config: Path) -> str:
    """Return a directory that does not exist, beside that of `config` and named after it: my-swarm-2."""
    here = Path(os.path.abspath(config)).parent
    free = next(path for number in count(2) if not (path := here.with_name(f"{here.name}-{number}")).exists())
    return os.path.relpath(free)
