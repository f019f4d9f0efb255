"""Open all tasks of a run: their prompts, their curriculum, their held-out prompts and their rewards, in token ids.

Several tasks share one space of indexes (`learner.curriculum.problem_index`). If there is only one task, an index is
the task's own. The suite decides at once which prompt comes next. Its text may take the task some time, and is prepared
elsewhere (`node.learner_role.scheduling.prompt_writer`).

Invariants:

- The reward of (prompt index, tokens) is a pure function. So a recovered record keeps its reward, and any thread may
  compute it.
- The curriculum changes only when a group is judged, on one thread. Its state is part of every checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from learner.curriculum.difficulty_levels import LevelCursor
from learner.curriculum.epochs import PassCursor
from learner.curriculum.mixture import Curriculum, Cursor, OtherTask, Part
from learner.curriculum.offline_stream import OfflineStream
from learner.curriculum.problem_index import place_of
from learner.rollouts.environment import MAX_EPISODE_TOKENS, ONE_TURN, EpisodeLimits, Reply, Said
from learner.rollouts.open_leases import Prompt
from node.config.services import services_of
from node.config.swarm_config import CurriculumSection, LearnSection, MixtureTask, SwarmConfig
from node.config.unused_keys import idle_key_of_tasks
from node.runtime.errors import naming
from node.runtime.typed_signal import Signal
from node.runtime.user_paths import as_path
from node.tasks.api.interface import Chat, Problem, TaskError
from node.tasks.gate import Gate, Place
from node.tasks.held_out import HeldOut
from node.tasks.offline_data import Logs, read_logs
from node.tasks.registry import open_task
from node.tasks.tokenized_task import EncodedTask
from node.tasks.tokenizer import TextCodec, limit_of, vocabulary_of
from node.tasks.ways.model_ways import read_ways
from protocol.core.limits import MAX_NAME_CHARS
from protocol.core.visible import one_line

LOOKED_AT = 64
"""Number of training prompts of each task to check before a start. If none of them leaves room for a completion, hardly
any other does."""

MAX_SKIPPED = 4096
"""Maximum number of unusable prompts in a row. A data set of nothing else would make the learner search for ever."""

Written = tuple[int, ...] | str
"""The token ids of a prompt, or the reason why it cannot be leased."""


@dataclass(kw_only=True)
class TaskSuite:
    """All tasks of a run. `tasks`: by name, in the order of the indexes. `held_out`: fixed for the run. `limits`: end
    the episodes of tasks of several turns. `ways`: notes for the operator on how prompts are written, by task.
    `offline`, `logs`: logged completions that are trained on as well, if there are any.

    A prompt that leaves no room for `max_new_tokens` is never leased, because no engine could use it and the lease
    would come back whole. Neither is a prompt that tokenizer or chat template cannot write: one such line of many must
    not end a run that is days old. `troubles` reports the first of each task.

    `own_names`: by name of a task, the task's own name for people, if swarm.toml gives it none and it is the only one.
    `origins`: by task, the `spec`, `directory`, `seed` and `services` with which another process opens the same task.
    `looked_at`: by task, the usable ones of the first LOOKED_AT training prompts, at least one. `progressed`: emitted
    when the next prompts may have changed.
    """

    codec: TextCodec
    tasks: Mapping[str, EncodedTask]
    curriculum: Curriculum
    held_out: list[HeldOut]
    looked_at: Mapping[str, Sequence[tuple[int, ...]]]
    limits: EpisodeLimits = ONE_TURN
    ways: Sequence[tuple[str, str]] = ()
    offline: OfflineStream | None = None
    logs: Logs | None = None
    own_names: Mapping[str, str] = field(default_factory=dict)
    origins: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    troubles: Signal[str] = field(default_factory=Signal)
    progressed: Signal[None] = field(default_factory=Signal)
    _skipping: set[str] = field(default_factory=set)
    _skipped: int = 0
    """Prompts passed over since the last usable one."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Token ids that end a completion."""
        return tuple(sorted(self.codec.stop_ids))

    @property
    def notes(self) -> list[tuple[str, str]]:
        """Notes for the operator about the tasks, each with the task's name."""
        finite = [
            (name, note)
            for name, encoded in self.tasks.items()
            if encoded.gate.finite is not None
            for note in encoded.gate.finite.notes
        ]
        return [*finite, *self.ways, *([("offline", self.logs.note)] if self.logs else [])]

    def known_as(self, name: str) -> str:
        """Return what people call the task that leases call `name`."""
        return self.own_names.get(name, name)

    @property
    def has_turns(self) -> bool:
        """Whether some task has several turns."""
        return any(encoded.gate.has_turns for encoded in self.tasks.values())

    def next_prompt(self) -> Prompt:
        """Return the next prompt to lease, and wait for the task to write it. Raises TaskError if MAX_SKIPPED prompts
        in a row are unusable."""
        prompt = self.draw(self.write_prompt)
        assert prompt is not None, "write_prompt always has it"
        return prompt

    def write_prompt(self, index: int) -> Written:
        """Return the prompt of `index`. Calls the task, which may take some time."""
        inner, name = self.place(index)
        return _written(self.known_as(name), self.tasks[name], inner)

    def upcoming(self, count: int) -> list[int]:
        """Return the indexes that come next if nothing is observed meanwhile: at least one, at most `count`."""
        return self.curriculum.upcoming(count)

    def draw(self, written: Callable[[int], Written | None]) -> Prompt | None:
        """Return the next prompt to lease, with the tokens that `written` has for its index. If `written` does not have
        them yet, return None and draw nothing.

        Passes over unusable prompts. Raises TaskError if MAX_SKIPPED in a row are unusable.
        """
        while (said := written(index := self.upcoming(1)[0])) is not None:
            assert self.curriculum.next_index() == index, "`upcoming` named this index"
            _, name = self.place(index)
            why = said if isinstance(said, str) else _too_long(self.known_as(name), len(said), self.limits)
            if not why and not isinstance(said, str):
                self._skipped = 0
                self.progressed.emit(None)
                return Prompt(task=name, index=index, tokens=said)
            self._pass_over(name, why)
        return None

    def _pass_over(self, name: str, why: str) -> None:
        self._skipped += 1
        if self._skipped >= MAX_SKIPPED:
            raise TaskError(f"{why}; none of the {MAX_SKIPPED} prompts before it can be used either. {SHORTER}")
        if name not in self._skipping:
            self._skipping.add(name)
            self.troubles.emit(f"{why}; such prompts are passed over")
        self.progressed.emit(None)

    def first_prompts(self) -> list[tuple[int, ...]]:
        """Return the first usable prompt of each task, of those that were checked."""
        return [asked[0] for asked in self.looked_at.values()]

    @property
    def longest_prompt(self) -> int:
        """Number of tokens of the longest usable prompt, of those that were checked."""
        return max(len(prompt) for asked in self.looked_at.values() for prompt in asked)

    def place(self, index: int) -> tuple[int, str]:
        """Return which problem of which task an index names."""
        inner, number = place_of(index, len(self.tasks))
        return inner, self.curriculum.parts[number].name

    def reward(self, index: int, tokens: tuple[int, ...]) -> float:
        """Return the reward of completion `tokens` to training prompt `index`."""
        inner, name = self.place(index)
        return self.tasks[name].reward(inner, tokens)

    def environment(self, index: int, said: Said, transcript: int) -> Reply:
        """Return the reply to `said` in training problem `index`: an answer, or the reward; see `Environment`."""
        inner, name = self.place(index)
        return self.tasks[name].reply(inner, said, transcript, self.limits)

    def observe(self, index: int, mean_reward: float) -> None:
        """Record for the curriculum that a group of prompt `index` was admitted with this mean reward."""
        self.curriculum.observe(index, mean_reward)
        self.progressed.emit(None)

    def expected_reward(self, index: int) -> float | None:
        """Return the mean reward that groups of prompt `index` are known to get; None while nothing is known."""
        return self.curriculum.expected(index)

    def state(self, unleased: Sequence[int] = ()) -> dict[str, Any]:
        """Return the state of curriculum and logs, for a checkpoint. `unleased`: indexes that were drawn and are leased
        to no peer; a restart begins with them."""
        state = self.curriculum.state()
        again = [*unleased, *state.get("again", ())]
        offline = {"offline": self.offline.state()} if self.offline else {}
        return {**state, **({"again": again} if again else {}), **offline}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint's state. Raises TaskError if it belongs to other tasks."""
        try:
            self.curriculum.restore(state)
        except OtherTask as other:
            what = what_changed(other.then, other.now)
            raise TaskError(
                f"the task is not the one this run began with: {what} ({other}). Restore what it was, or start a new "
                "run in another directory."
            ) from None
        if self.offline is not None:
            self.offline.restore(state.get("offline"))
        self.progressed.emit(None)


def what_changed(then: Sequence[str], now: Sequence[str]) -> str:
    """Return what differs between the fingerprints of a run's tasks at its beginning and now, as a clause.

    The fingerprint of a task that reads a file begins with its name and the file's digest.
    """
    if len(then) != len(now):
        return "the mixture has other tasks"
    pairs = [(old.split("/"), new.split("/")) for old, new in zip(then, now, strict=True) if old != new]
    for old, new in pairs:
        if old[0] == new[0] and old[1:2] != new[1:2] and _DIGEST.fullmatch("".join(new[1:2])):
            return f"the file of {new[0]} has changed"
    return "its options or its seed have changed, or the tasks of the mixture"


_DIGEST = re.compile(r"[0-9a-f]{16,}")


SHORTER = "Lower [learn] max_new_tokens, or use shorter prompts."


def _too_long(name: str, prompt: int, limits: EpisodeLimits) -> str:
    """Return why a prompt of `prompt` tokens of the task called `name` cannot be used; "" if it can."""
    if limits.allow(0, prompt):
        return ""
    return (
        f"task {name}: a prompt of {prompt} tokens and [learn] max_new_tokens = {limits.turn_tokens} are more than the "
        f"{limits.tokens} that the model, or max_episode_tokens, allows"
    )


def _written(name: str, encoded: EncodedTask, index: int) -> Written:
    """Return the training prompt of `index` of the task called `name`, or why it cannot be written."""
    try:
        return encoded.prompt(index)
    except TaskError as error:
        return f"task {name}: {error}"


def _first_problems(name: str, encoded: EncodedTask) -> dict[int, tuple[Problem, tuple[int, ...]]]:
    """Return those of the first LOOKED_AT training problems whose prompts can be written, with the prompts, by index.
    Raises TaskError if there are none."""
    found, why = dict[int, tuple[Problem, tuple[int, ...]]](), ""
    for index in range(LOOKED_AT):
        try:
            problem = encoded.gate.problem(Place(index=index))
            found[index] = problem, encoded.encode_prompt(problem)
        except TaskError as error:
            why = why or str(error)
    if not found:
        raise TaskError(f"task {name}: {why.rstrip('.')}. All {LOOKED_AT} prompts that were checked fail like this.")
    return found


def answers_note(name: str, troubles: Sequence[str | None]) -> str:
    """Return a note about reference answers that the model cannot write; "" if it can write all.

    `troubles`: of each problem that was checked, why its answer cannot be written, "" if it can, None if there is none.
    Raises TaskError if no answer can be written: no completion could equal one.
    """
    known = [why for why in troubles if why is not None]
    if not (whys := [why for why in known if why]):
        return ""
    if len(whys) == len(known):
        raise TaskError(
            f"task {name}: {whys[0].rstrip('.')}. The model can write none of the {len(whys)} reference answers that "
            "were checked. Change the answers, or use a model that can write them."
        )
    return (
        f"the model cannot write {len(whys) / len(known):.0%} of the {len(known)} reference answers that were checked, "
        f"so these problems may earn no reward: {whys[0].rstrip('.')}"
    )


def _askable(
    name: str, written: Sequence[tuple[int, ...]], limits: EpisodeLimits, reason: str
) -> list[tuple[int, ...]]:
    """Return those prompts that leave room for a completion. Raises TaskError if there are none.

    `reason`: why the model takes no longer sequence; "" if that is simply its size.
    """
    if why := _too_long(name, min(map(len, written)), limits):
        raise TaskError(f"{why}, and it is the shortest of {LOOKED_AT}. {SHORTER}{reason}")
    return [one for one in written if limits.allow(0, len(one))]


def open_task_suite(config: SwarmConfig, base: Path) -> TaskSuite:
    """Open the configured tasks with the model's tokenizer. Paths in a spec are relative to `base`.

    Raises TaskError, which begins with the configuration key that is wrong.
    """
    directory = Path(config.model.directory)
    with _about_model():
        codec = TextCodec.load(directory, read_ways(config.model))
        limit = limit_of(directory)
    positions, reason = (limit.tokens, limit.why and f" {limit.why}.") if limit else (None, "")
    limits = episode_limits(config.learn, positions, reason)
    parts, tasks, held_out, origins, looked_at = [], {}, [], {}, {}
    own_names: dict[str, str] = {}
    ways = [("model", note) for note in codec.notes]
    services = services_of(config, base)
    for number, one in enumerate(config.task.tasks):
        with naming("[task] spec" if config.task.spec else f"[task] mixture[{number}].spec"):
            task = EncodedTask(
                task=open_task(one.spec, directory=base, seed=config.learn.seed, services=services),
                codec=codec,
            )
            parts.append(part_of_mixture(one, task.gate, config.curriculum, config.learn.seed))
            tasks[one.title] = task
            origins[one.title] = {
                "spec": one.spec,
                "directory": str(base.resolve()),
                "seed": config.learn.seed,
                "services": services,
            }
            if config.task.spec is not None:
                own_names[one.title] = one_line(task.gate.name, MAX_NAME_CHARS)
            name = own_names.get(one.title, one.title)
            found = _first_problems(name, task)
            looked_at[one.title] = _askable(name, [prompt for _, prompt in found.values()], limits, reason)
            unwritten = answers_note(name, [task.answer_trouble(problem) for problem, _ in found.values()])
            ways += [(one.title, note) for note in (*task.check_template(min(found)), unwritten) if note]
            held_out += held_out_of(tasks[one.title], config.task.held_out, limits, name=one.title)
    gates = [encoded.gate for encoded in tasks.values()]
    if idle := idle_key_of_tasks(
        config,
        any_finite=any(gate.finite is not None for gate in gates),
        any_turns=any(gate.has_turns for gate in gates),
        any_dear=not all(gate.is_cheap for gate in gates),
        any_environments=any(gate.has_environments for gate in gates),
        any_awaited=any(gate.has_async_reward for gate in gates),
    ):
        raise TaskError(idle)
    suite = TaskSuite(
        codec=codec,
        tasks=tasks,
        curriculum=Curriculum(parts=parts),
        held_out=held_out,
        looked_at=looked_at,
        limits=limits,
        ways=ways,
        own_names=own_names,
        origins=origins,
    )
    if config.offline.path is not None:
        with naming("[offline] path"):
            logs = read_logs(
                base / as_path(config.offline.path),
                codec,
                Chat(config.offline.chat),
                positions=positions,
                vocabulary=vocabulary_of(directory),
            )
            _require_pairs(config, logs)
        suite.logs = logs
        suite.offline = OfflineStream(
            groups=logs.groups,
            rollouts=config.offline_rollouts,
            fingerprint=logs.digest,
            seed=f"offline/{config.learn.seed}",
        )
    return suite


@contextmanager
def _about_model() -> Iterator[None]:
    """Begin a TaskError with the model's directory, unless it names another key."""
    try:
        yield
    except TaskError as error:
        if str(error).startswith("[model] "):
            raise
        raise TaskError(f"[model] directory: {error}") from error


def _require_pairs(config: SwarmConfig, logs: Logs) -> None:
    if (chosen := config.trainer.pairs_by) and logs.pairs < len(logs.groups):
        raise TaskError(
            f"{logs.path}: {len(logs.groups) - logs.pairs} of {len(logs.groups)} groups are not pairs, and [trainer] "
            f"{chosen} learns only from pairs. Keep two completions of each group, or choose another objective."
        )


def episode_limits(learn: LearnSection, positions: int | None, reason: str = "") -> EpisodeLimits:
    """Return the limits of an episode. Raises TaskError if the model cannot take an episode of that length.

    Args:
        learn: the configured limits.
        positions: tokens of the longest sequence that the model takes, if known.
        reason: a sentence that says why the model takes no more.
    """
    most = min(positions or MAX_EPISODE_TOKENS, MAX_EPISODE_TOKENS)
    if (tokens := learn.max_episode_tokens or most) > most:
        raise TaskError(
            f"[learn] max_episode_tokens = {tokens} is more than the {most} positions of the model. Lower it, or leave "
            f"it out to use all of them.{reason}"
        )
    return EpisodeLimits(turns=learn.max_turns, tokens=tokens, turn_tokens=learn.max_new_tokens)


def part_of_mixture(one: MixtureTask, task: Gate, how: CurriculumSection, seed: int) -> Part:
    """Return a task with its cursor: passes over a finite task, or the levels of an endless one."""
    cursor: Cursor = (
        PassCursor(
            size=task.finite.size,
            seed=f"{one.title}/{seed}",
            low=how.min_pass_rate,
            high=how.max_pass_rate,
            easy_first=how.order == "easy_first",
            priors=task.finite.pass_rates,
        )
        if task.finite is not None
        else LevelCursor(levels=task.levels)
    )
    return Part(name=one.title, fingerprint=task.fingerprint, weight=one.weight, cursor=cursor)


def held_out_of(encoded: EncodedTask, count: int, limits: EpisodeLimits = ONE_TURN, *, name: str = "") -> list[HeldOut]:
    """Return the first `count` held-out prompts of the task called `name`, each with the functions that judge it.

    There are fewer if a finite task has fewer, because the same prompt twice would say nothing new. Prompts that leave
    no room for a completion are left out.
    """
    if encoded.gate.finite is not None:
        count = min(count, encoded.gate.finite.num_held_out)
    return [
        HeldOut(
            prompt=prompt,
            reward=partial(encoded.reward, index, held_out=True),
            reply=partial(encoded.reply, index, limits=limits, held_out=True),
            task=name or encoded.gate.name,
            index=index,
        )
        for index in range(count)
        if limits.allow(0, len(prompt := encoded.prompt(index, held_out=True)))
    ]
