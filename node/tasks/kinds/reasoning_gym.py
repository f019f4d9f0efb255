"""Use the generated problems of reasoning-gym, `reasoning_gym:NAME`, with the library's own scores as rewards.

The library is imported when such a task is opened, which takes seconds. Its problems and scores are computed in
verifiers' processes, because some of the computations have no bound.

Invariants:

- Problem i is drawn with seeds of its own, and the digest of its prompt decides its side, as in the built-in tasks. So
  training and held-out problems share no prompt, whatever the seeds.
- The fingerprint contains the package's version and a few problems. So a machine on which the library draws other
  problems is noticed before any reward.
- The library scores a text outside the sandbox (`node.tasks.sandbox.confined_library`) only if it is known not to
  execute it. Some of its scores pass the policy's text to `eval`, or to sympy, which does the same.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from node.installation.extras import line_of_extra
from node.tasks.api.interface import Chat, Completion, Problem, Task, TaskArguments, TaskError, TaskKind
from node.tasks.api.options import CHAT, suggestion
from node.tasks.kinds.generated import MAX_DRAWS, is_held_out, label_of
from node.tasks.sandbox.confined_library import Confined

BLOCK = 4096
"""Problems in one data set of the library. Its generators add the number of a problem to a seed, and a few of them make
lists as long as the data set when it is opened."""

APART = 16
"""Numbers that each index may draw from before it draws from elsewhere. One problem in eight is held out."""

TRAINING_FROM, SEEDS_APART = 1 << 48, 1 << 40
"""The first number of training problems, and the distance between seeds. Held-out problems begin at 0."""

SEVERAL = 8
"""Problems of each side in the fingerprint."""

OPEN_SETS = 4
"""Data sets that each task keeps open, because some take seconds to open: those of a training and of a held-out index,
the next one when one ends, and that of the far numbers. The scores need the first held-out one."""

READ_VERSION = "0.1.25"
"""The version whose source was read for HARMLESS. All scores of another version are computed in the sandbox."""

_HARMLESS = """
    ab acre aiw arc_1d arc_agi base_conversion binary_alternation boxnet caesar_cipher calendar_arithmetic chain_sum
    circuit_logic coin_flip color_cube_rotation complex_arithmetic count_bits count_primes course_schedule
    cryptarithm decimal_arithmetic decimal_chain_sum dice emoji_mystery family_relationships figlet_font
    fraction_simplification futoshiki game_of_life game_of_life_halting gcd graph_color group_anagrams
    isomorphic_strings jugs kakurasu knight_swap knights_knaves largest_island lcm leg_counting letter_counting
    letter_jumble mahjong_puzzle manipulate_matrix maze mini_sudoku modulo_grid needle_haystack number_filtering
    number_format number_sequence palindrome_generation palindrome_partitioning path_star pool_matrix power_function
    prime_factorization products quantum_lock ransom_note rectangle_count rotate_matrix rotten_oranges rubiks_cube
    rush_hour self_reference sentence_reordering shortest_path simple_geometry sokoban spell_backward
    string_manipulation string_splitting string_synthesis sudoku survo syllogism time_intervals tower_of_hanoi
    tsumego word_ladder word_sequence_reversal word_sorting zebra_puzzles
"""
HARMLESS = frozenset(_HARMLESS.split())
"""Data sets whose source, with all that it imports of the library, contains nothing that could execute a text: no
`eval`, no sympy and the like. `tests/integration/test_gym_source.py` reads it again, and says which belong here."""

PROGRAM = Path(__file__).with_name("gym_program.py")

_BEGIN, _END = "<answer>", "</answer>"

_SCORES = Confined(PROGRAM.read_text(encoding="utf-8"), "reasoning-gym")
"""One for all tasks of this process, so that the library is loaded once."""


@dataclass(frozen=True, kw_only=True)
class GymProblem(Problem):
    """A problem of the library. `entry` is what the library's score needs to know of it."""

    entry: Mapping[str, Any] = field(default_factory=dict)

    @property
    def literal(self) -> str:
        """The entry as a Python literal. Raises TaskError if it contains anything but plain data."""
        return repr(_plain(self.entry))


@dataclass(frozen=True, kw_only=True)
class GymTask:
    """A data set of reasoning-gym as a task. `dataset`: its name in the library. `config`: its configuration."""

    name: str
    label: str
    dataset: str
    config: Mapping[str, Any]
    seed: int
    chat: Chat
    levels: int = 1

    @property
    def fingerprint(self) -> str:
        drawn = [(self.problem(index), self.held_out(index)) for index in range(SEVERAL)]
        digest = hashlib.blake2b(repr(drawn).encode(), digest_size=8).hexdigest()
        return f"{self.label}/{version('reasoning-gym')}/{self.seed}/{digest}"

    def problem(self, index: int) -> GymProblem:
        return self._draw(TRAINING_FROM + SEEDS_APART * self.seed, index, held_out=False)

    def held_out(self, index: int) -> GymProblem:
        return self._draw(0, index, held_out=True)

    def require(self) -> None:
        """Raise TaskError if the scores need a sandbox and there is none."""
        if self.is_confined:
            _SCORES.require()

    @cached_property
    def is_confined(self) -> bool:
        """Whether its scores are only computed in the sandbox."""
        return version("reasoning-gym") != READ_VERSION or self.dataset not in HARMLESS

    def reward(self, problem: Problem, completion: Completion) -> float:
        """Return the library's score. Raises TaskError if that needs a sandbox and there is none."""
        assert isinstance(problem, GymProblem), "a problem of this task"
        if not completion.finished:
            return 0.0
        answer = answer_of(completion.text)
        if self.is_confined:
            return self._confined_score(problem, answer)
        score = self._opened(0).score_answer
        try:
            return float(score(answer, dict(problem.entry)))
        except Exception:  # some data sets raise for an answer of another form, or with thousands of brackets
            return 0.0

    def _confined_score(self, problem: GymProblem, answer: str) -> float:
        """Return the score from the sandbox. An answer that is executed may return anything, so only a score counts."""
        topic = {"dataset": self.dataset, "config": self.config, "seed": 0, "size": BLOCK, "entry": problem.literal}
        score = _SCORES.ask(topic, answer)
        return float(score) if isinstance(score, int | float) and 0.0 <= score <= 1.0 else 0.0

    @cached_property
    def _opened(self) -> Callable[[int], Any]:
        """Opens the data set of a seed. Each task has its own cache: in a mixture they would evict each other's."""
        return lru_cache(maxsize=OPEN_SETS)(partial(_open, self.dataset, self.config))

    def _draw(self, base: int, index: int, *, held_out: bool) -> GymProblem:
        for attempt in range(MAX_DRAWS):
            # After its own numbers, use numbers that are far from all others.
            place = index * APART + attempt if attempt < APART else (1 << 36) + index * MAX_DRAWS + attempt
            block, inner = divmod(place, BLOCK)
            entry = _entry(self._opened(base + block * BLOCK), inner)
            if is_held_out(entry["question"]) == held_out:
                answer = entry["answer"]
                return GymProblem(
                    prompt=entry["question"],
                    answer=None if answer is None else str(answer),
                    chat=self.chat,
                    entry=entry,
                )
        raise TaskError(f"task {self.label} has too few different problems; make its options larger.")


def answer_of(text: str) -> str:
    """Return the answer in a completion: the content of the last <answer></answer>, or else all of it."""
    answer, place = text, 0
    while (begin := text.find(_BEGIN, place)) >= 0 and (end := text.find(_END, begin)) >= 0:
        answer, place = text[begin + len(_BEGIN) : end], end
    return answer.strip()


def _plain(value: Any) -> Any:
    """Return the value in Python's own types. Raises TaskError if it is not plain data."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(one) for key, one in value.items()}
    for kind in (list, tuple, set):
        if isinstance(value, kind):
            return kind(map(_plain, value))
    if value is None or isinstance(value, bool | bytes):
        return value
    for scalar in (str, int, float):
        if isinstance(value, scalar):
            return scalar(value)
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a number of numpy
        return value.item()
    raise TaskError(
        f"reasoning-gym has a problem with something of type {type(value).__name__}, which cannot be passed to the "
        "sandbox where answers are scored. Use another data set, or reasoning-gym " + READ_VERSION + "."
    )


def _entry(dataset: Any, place: int) -> Any:
    """Return the data set's problem at `place`, the same each time. Some data sets (list_functions) draw from the
    process's random numbers instead of their own."""
    before = random.getstate()
    random.seed(dataset.seed + place)
    try:
        return dataset[place]
    finally:
        random.setstate(before)


def _open(dataset: str, config: Mapping[str, Any], seed: int) -> Any:
    from reasoning_gym import create_dataset

    return create_dataset(dataset, **config, seed=seed, size=BLOCK)


def _build(arguments: TaskArguments) -> Task:
    dataset = arguments.argument
    try:
        from reasoning_gym.factory import DATASETS
    except (ImportError, PackageNotFoundError) as error:
        raise TaskError(
            f"task 'reasoning_gym' needs reasoning-gym, which cannot be imported here ({error}). Type: "
            f"{line_of_extra('tasks')}"
        ) from error
    if dataset not in DATASETS:
        known = sorted(DATASETS)
        raise TaskError(f"reasoning-gym has no {dataset!r}{suggestion(dataset, known)}. It has: {', '.join(known)}.")
    given = {key: str(value) for key, value in arguments.options.items() if key != "chat"}
    config = _config(dataset, DATASETS[dataset][1], given)
    label = label_of(f"reasoning_gym:{dataset}", arguments)
    task = GymTask(
        name=dataset,
        label=label,
        dataset=dataset,
        config=config,
        seed=arguments.seed,
        chat=Chat(arguments.text("chat")),
    )
    try:
        task.held_out(0)
        first = task.problem(0)
        if task.is_confined:
            _ = first.literal
    except TaskError:
        raise
    except Exception as error:  # its configurations raise AssertionError, ValueError and others
        raise TaskError(
            f"task {label} cannot be opened: {type(error).__name__}: {error}. Correct its options."
        ) from error
    return task


def _config(dataset: str, kind: type[Any], given: Mapping[str, str]) -> dict[str, Any]:
    """Return the options with the types of the library's configuration. Raises TaskError."""
    usual = {one.name: one.default for one in fields(kind) if one.name not in ("seed", "size")}
    config: dict[str, Any] = {}
    for key, text in given.items():
        if key not in usual:
            raise TaskError(
                f"task 'reasoning_gym': {dataset} has no key {key!r}{suggestion(key, usual)}. Keys: "
                f"{', '.join(usual) or 'none'}."
            )
        config[key] = _value(f"task 'reasoning_gym': {key}={text}", usual[key], text)
    return config


def _value(where: str, usual: Any, text: str) -> Any:
    if isinstance(usual, bool):
        if text.lower() not in ("true", "false"):
            raise TaskError(f"{where}: must be true or false.")
        return text.lower() == "true"
    if isinstance(usual, int | float):
        try:
            return type(usual)(text)
        except ValueError as error:
            raise TaskError(f"{where}: must be a number, like {usual}.") from error
    if isinstance(usual, str):
        return text
    raise TaskError(f"{where}: is neither a number, a word, nor true or false, so a spec cannot set it. Leave it out.")


REASONING_GYM = TaskKind(
    name="reasoning_gym",
    summary="a data set of reasoning-gym, by its name, with its own scores: reasoning_gym:leg_counting:max_animals=4",
    build=_build,
    argument="NAME",
    options=(CHAT,),
    free_options=True,
)
