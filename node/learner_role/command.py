"""Run `volery learn`: a learner with its log, its view and its exit code."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from node.learner_role.app import LearnerOutcome, run_learner
from node.learner_role.preflight import look_at
from node.learner_role.services import LearnerServices
from node.learner_role.training.resume import fork, unfork
from node.learner_role.training.trainer_process import TRAINER
from node.notices.destination import destination_of
from node.notices.learner_notices import LearnerNotices
from node.notices.sender import notifying
from node.reports.model.report import Role
from node.runtime import formatting as words
from node.runtime.errors import NodeError, about_keys_of
from node.runtime.events import Clock, EventLog
from node.ui.endings import done_of_learner
from node.ui.live_view import ViewState
from node.ui.terminal import NO_LOG, LogChoice, go_on, open_terminal, run_session
from node.ui.view_updates import follow
from node.web.address import PATIENCE_S
from node.web.page import open_page, page_server

EVENTS_FILE = "events.jsonl"

NOBODY_JOINS = "There is no invite: with [network] listen = [] nobody can join, and all batches come from logs."


async def learn(
    path: Path,
    *,
    plain: bool,
    resume: bool = False,
    fork_from: str = "",
    trainer: Sequence[str] = TRAINER,
    trial: bool = True,
    log: LogChoice = NO_LOG,
) -> int:
    """Run `volery learn`, and return the exit code.

    `trainer` is the command of the trainer's process. Without `trial`, that process need not compute anything real.
    With `resume`, the command refuses to begin a new run. `fork_from` names the run to fork, as RUN or RUN@STEP.
    """
    start = look_at(path, resume=resume, fork_from=fork_from)
    config, suite, state_directory = start.config, start.suite, Path(start.config.swarm.state)
    if fork_from:
        fork(fork_from, config, suite.restore, Clock.now_ms())
    events = EventLog(state_directory / EVENTS_FILE)
    learn = config.learn
    state = ViewState(
        role=Role.LEARNER,
        title=config.swarm.name,
        batch=config.swarm_rollouts,
        steps=learn.steps,
        staleness=learn.staleness,
    )
    follow(state, events)
    with about_keys_of(path):
        to = destination_of(config.notify)
        page = open_page(
            config.web,
            kind="learner",
            title=config.swarm.name,
            state=state_directory,
            events=events,
            config=path,
            patience_s=PATIENCE_S,
        )
    notices = LearnerNotices(source=config.swarm.name, kinds=config.notify.events)
    with open_terminal(state, plain=plain, log=log, events=events) as terminal:
        terminal.tell_report(f"volery report {shlex.quote(str(path))}")
        if page.text:
            terminal.say(page.text)
        running: LearnerServices | None = None

        def ready(invite: str, services: LearnerServices) -> None:
            nonlocal running
            running = services
            terminal.say(
                f"The invite. Each machine that helps runs this:\n\n  volery join {invite}\n"
                if invite
                else NOBODY_JOINS
            )

        async def run() -> LearnerOutcome:
            async with notifying(to, notices, events), page_server() as serve:
                serve(page)
                return await run_learner(config, suite, events, ready, trainer=trainer, trial=trial)

        async def leave() -> None:
            if running is not None:
                await running.leave()

        try:
            with about_keys_of(path):
                outcome = await run_session(terminal, events, run, leave)
        except NodeError:
            if fork_from and (running is None or not running.state.opened.is_set()):
                unfork(state_directory)
            raise
    done = done_of_learner(state)
    told = f"Since this start: {state.sum}. Who did what: volery report {shlex.quote(str(path))}"
    if outcome is None:
        again = go_on(f"volery learn {shlex.quote(str(path))}")
        if running is None:
            return terminal.say_stopped(again)
        return terminal.say_stopped(done, f"{stopped_after(state, running.training.saving.saved)}{told}", again)
    terminal.say(done)
    terminal.say(f"Finished after {words.counted(outcome.steps, 'step')}; raise [learn] steps to train on. {told}")
    return 0


def stopped_after(state: ViewState, durable: int) -> str:
    """Return how far a stopped run came, "" if it took no step. `durable`: the step of its newest checkpoint."""
    if not state.step:
        return ""
    lost = f" Its newest checkpoint is of step {durable}: it continues from there." if durable < state.step else ""
    return f"Stopped after step {state.step} of {state.steps}.{lost} "
