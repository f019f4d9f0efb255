"""One reward before a run begins, so that a task that gives none is refused at the start and not after hours.

What is judged is the reference answer of the first problem, or an empty text where there is none. Only a wrong value
refuses the task, such as the None of a forgotten `return`. An error does not: rewards are computed on the main thread
of other processes, and a completion that cannot be judged is a value there (`node.verifiers.dispatch`). A task that
takes longer than TRIAL_S is left to them as well.
"""

from __future__ import annotations

from threading import Thread

from node.tasks.api.interface import Completion, TaskError
from node.tasks.gate import Gate, Place, WrongValue

TRIAL_S = 10.0
"""Most rewards take milliseconds; one that imports a large library takes seconds the first time."""


def require_reward(gate: Gate) -> None:
    """Raises WrongValue where the task cannot say what its own first answer is worth. Takes TRIAL_S at most."""
    raised: list[WrongValue] = []

    def judge() -> None:
        try:
            _judge(gate)
        except WrongValue as error:
            raised.append(error)
        except TaskError:
            return

    # A daemon, since Python would wait at its end for a thread that never returns.
    thread = Thread(target=judge, name="first reward", daemon=True)
    thread.start()
    thread.join(TRIAL_S)
    if raised:
        raise raised[0]


def _judge(gate: Gate) -> None:
    """Raises TaskError."""
    place = Place(index=0)
    problem = gate.problem(place)
    said = problem.answer or ""
    if gate.has_turns:
        gate.answer_turn(place, problem, (), said)
    gate.reward(place, problem, Completion(text=said, finished=True))
