"""Compute one reward before a run begins, so that a task without a usable reward fails at once, not hours later.

It judges the reference answer of the first problem, or an empty text if there is none. Only a wrong value stops the
start, such as the None of a forgotten `return`. An error does not, because in a run rewards are computed on the main
thread of other processes, and a completion that cannot be judged is an expected result there
(`node.verifiers.dispatch`). A task that takes longer than TRIAL_S is left to those processes as well.
"""

from __future__ import annotations

from threading import Thread

from node.tasks.api.interface import Completion, TaskError
from node.tasks.composed_reward import parts_of
from node.tasks.gate import Gate, Place, WrongValue
from node.tasks.grading import Asked, grade
from node.tasks.services.loop_thread import wait_for

TRIAL_S = 10.0
"""Seconds that the first reward may take. Most take milliseconds; one that imports a large library takes seconds."""


def require_reward(gate: Gate) -> frozenset[str] | None:
    """Return the names of the rewards of the task's first answer: empty for one plain reward, None if it is not known.

    Waits for TRIAL_S at most. Raises WrongValue if the task returns something that is not a reward."""
    raised: list[WrongValue] = []
    found: list[frozenset[str]] = []

    def judge() -> None:
        try:
            found.append(frozenset(part.name for part in parts_of(_judge(gate))))
        except WrongValue as error:
            raised.append(error)
        except TaskError:
            return

    # A daemon, because at its end Python would wait for a thread that never returns.
    thread = Thread(target=judge, name="first reward", daemon=True)
    thread.start()
    thread.join(TRIAL_S)
    if raised:
        raise raised[0]
    return found[0] if found else None


def require_services(gate: Gate) -> None:
    """Raise TaskError if the task needs services for its rewards and they do not answer one request. Waits as long as
    the services' own timeouts allow."""
    wait_for(gate.try_services(Place(index=0)))


def _judge(gate: Gate) -> float:
    """Return the first reward. Raises TaskError."""
    place = Place(index=0)
    problem = gate.problem(place)
    said = problem.answer or ""
    if gate.has_environments:
        reward = grade(gate, Asked(index=0, held_out=False, said=(said,), finished=True, wants_reward=True))
        assert isinstance(reward, float), "a reward was asked"
        return reward
    if gate.has_turns:
        gate.answer_turn(place, problem, (), said)
    return gate.reward(place, problem, Completion(text=said, finished=True))
