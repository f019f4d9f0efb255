"""Run a real swarm on one machine, from making the model to the report (`volery demo`).

A learner and some rollout nodes teach a new small model to reverse words. Each is a process of its own, and they speak
libp2p over loopback.

Invariants:

- Nothing is downloaded.
- Every process that was started is ended, however the demo ends.
- A rollout node that dies is reported and not restarted. A learner that dies is restarted, and continues from its last
  durable version.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import trio

from node.commands.demo.lessons import LESSONS, REVERSE, Lesson, LessonName
from node.commands.demo.node_process import NodeProcess, family_pss_bytes, stop_all
from node.commands.demo.recipe import OBJECTIVE, Recipe, recipe_for, swarm_toml
from node.commands.init.command import free_port
from node.config.node_config import EngineSection
from node.engine.selection import choose_engine, look
from node.learner_role.training.tiny_model import StartingModel
from node.learner_role.training.warm_start import VLLM_HEAD_DIM
from node.network.invites import found_swarm
from node.reports import as_terminal, as_text, draw_reward, routes_taken, summary, swarm_report, write_html
from node.reports.model.audits import ban_in_words
from node.reports.model.report import Role, SwarmReport
from node.runtime.atomic_files import prepare, writing
from node.runtime.errors import RunError
from node.runtime.events import EventLog
from node.runtime.shutdown import Stopped
from node.state.status_file import FILE as STATUS_FILE
from node.tasks.gate import Gate
from node.tasks.registry import open_task
from node.ui.live_view import ViewState
from node.ui.terminal import Terminal, open_terminal, run_shown
from node.ui.view_updates import apply
from node.web.page import local_url

CONFIG_FILE = "swarm.toml"

LEARNER_RESTARTS = 5
FIRST_SIGN_S = 120.0
"""Seconds until the learner must show a sign of life. Its imports take 2 s on an idle machine."""
LOOPBACK = "127.0.0.1"
LEAVE_S = 15.0
"""Seconds that nodes may take to leave once the learner has finished."""
SAMPLE_S = 1.0
"""Seconds between two updates of the view."""
MEMORY_S = 5.0
"""Seconds between two measurements of memory: finding shared pages walks all page tables, 60 ms of a core each time."""


NODE_CONFIG = """\
# Written by `volery demo`.
name = "{name}"

[network]
listen = ["/ip4/{host}/tcp/0"]

[engine]
kind = "{engine}"
threads = 1
batch_rollouts = {batch}

[web]
listen = ""

[price]
per_hour = {price}
{testing}"""

CHEAT_NAME = "cheat"
CHEAT = "greedy"
"""How the cheat, if there is one, cheats: it always takes the likeliest token. So its rewards are higher than those of
peers that sample as asked, and no reward shows the cheat."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where a process of the demo runs. It listens at `host`; `wrap` turns a command line into one that runs there."""

    host: str = LOOPBACK
    wrap: Callable[[Sequence[str]], Sequence[str]] = list


@dataclass(frozen=True, kw_only=True)
class Sites:
    """Where the learner and each node run. Nodes without an entry run beside the demo itself."""

    learner: Site = field(default_factory=Site)
    nodes: Sequence[Site] = ()

    def of_node(self, number: int) -> Site:
        """Return the site of node `number`, counted from 1."""
        return self.nodes[number - 1] if number <= len(self.nodes) else Site()


PRICES = (0.05, 0.08, 0.12)
"""US dollars an hour that the demo's rollout nodes ask, in turn, so that the report has prices to compare."""


async def run_demo(
    out: Path,
    *,
    seed: int,
    num_nodes: int,
    staleness: int,
    engine: str,
    plain: bool,
    objective: str = OBJECTIVE,
    steps: int | None = None,
    cheater: bool = False,
    task: LessonName = "reverse",
    sites: Sites | None = None,
) -> int:
    """Run the demo into `out` and return the exit code. All of it runs on this machine, unless `sites` says otherwise.

    `steps` None means the number that the lesson `task` needs. Raises UsageError or RunError.
    """
    began = time.monotonic()
    lesson = LESSONS[task]
    recipe = recipe_for(objective, lesson.recipe, steps)
    Gate(open_task(lesson.task)).require()  # fails now if something is missing, rather than in the learner
    if engine != "transformers":  # fails now if vLLM is missing, rather than in every node
        wanted = EngineSection(kind="vllm")
        choose_engine(wanted, look(wanted))
    prepare(out, "demo")
    events = EventLog(out / "events.jsonl")
    demo = Demo(
        out=out,
        seed=seed,
        num_nodes=num_nodes + cheater,
        with_cheat=cheater,
        staleness=staleness,
        engine=engine,
        objective=objective,
        recipe=recipe,
        lesson=lesson,
        events=events,
        began=began,
        sites=sites or Sites(),
    )
    state = ViewState(
        role=Role.LEARNER,
        title="demo",
        batch=demo.recipe.prompts * demo.recipe.group,
        steps=demo.recipe.steps,
        staleness=staleness,
    )
    with open_terminal(state, plain=plain) as console:
        is_done = False
        try:
            with suppress(Stopped):
                await run_shown(console, lambda: demo.run(console))
                is_done = True
        finally:
            events.close()
    if not is_done:
        again = f"Stopped. The results so far are in {out}; starting the demo again replaces them."
        return console.say_stopped(demo.so_far(state), again)
    return demo.conclude(console)


def _of_the_cheat(report: SwarmReport) -> str:
    """Return what became of the node that cheats."""
    cheat = next((peer for peer in report.peers if peer.name == CHEAT_NAME), None)
    if cheat is None or cheat.audits is None:
        return "The cheat delivered nothing that could be audited."
    if not cheat.audits.banned:
        return (
            f"The cheat was NOT found in {cheat.audits.audits} audits; {cheat.trained or 0} of its rollouts were used."
        )
    after_s = (cheat.audits.banned_at_s or 0.0) - (cheat.first_seen_ms - report.started_ms) / 1000
    said = ban_in_words("It", cheat.audits, judged=cheat.judged, trained=cheat.trained or 0)
    return f"The cheat ({CHEAT}) was found {after_s:.1f} s after it joined. {said}"


@dataclass(kw_only=True)
class Demo:
    """One demo: its options, its directory `out`, and its processes."""

    out: Path
    seed: int
    num_nodes: int
    with_cheat: bool
    staleness: int
    engine: str
    objective: str
    recipe: Recipe
    events: EventLog
    began: float
    lesson: Lesson = REVERSE
    sites: Sites = field(default_factory=Sites)
    peak_pss: int = 0

    def _writing(self) -> AbstractContextManager[None]:
        return writing(self.out, "--out", named="directory", within=True)

    @property
    def ledger(self) -> Path:
        return self.out / "learner" / "ledger.sqlite"

    def so_far(self, state: ViewState) -> str:
        """Return what a stopped demo had done; "" if its learner had not begun."""
        if not self.ledger.exists():
            return ""
        report = f"volery report {shlex.quote(str(self.out / CONFIG_FILE))}"
        return f"After step {state.step} of {state.steps}: {state.sum}. Who did what: {report}"

    async def run(self, console: Terminal) -> None:
        """Make the model and run the swarm, and measure the memory meanwhile."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.watch_memory)
            await self.make_model(console)
            await self.run_swarm(console)
            nursery.cancel_scope.cancel()

    async def watch_memory(self) -> None:
        """Record the peak of the summed proportional set size of all processes of the demo, including this one."""
        while True:
            pss = await trio.to_thread.run_sync(family_pss_bytes, os.getpid())
            self.peak_pss = max(self.peak_pss, pss)
            await trio.sleep(MEMORY_S)

    async def make_model(self, console: Terminal) -> None:
        """Make the model and train it until its accuracy on held-out prompts lies in the band."""
        lesson = self.lesson
        console.say(
            f"Making a small model and training it a little, so that it gets some {lesson.things} right "
            "(under a minute)..."
        )
        config = {**lesson.model, **({} if self.engine == "transformers" else {"head_dim": VLLM_HEAD_DIM})}
        start = StartingModel(
            task=lesson.task,
            held_out=lesson.warm_held_out,
            max_new_tokens=lesson.max_new_tokens,
            seed=self.seed,
            config=config,
            terms=lesson.terms,
            write_tokenizer=lesson.write_tokenizer,
            max_turns=lesson.max_turns,
        )
        scores = await start.make(self.out, self.events)
        console.say(
            f"The model {lesson.does} {lesson.share(scores)} of {lesson.warm_held_out} {lesson.things} it never saw. "
            f"From now on it learns from rewards alone, with {self.num_nodes} rollout nodes and a learner. Each is a "
            "process of its own, and they speak libp2p."
        )

    async def run_swarm(self, console: Terminal) -> None:
        """Start all processes, watch until the learner is done, and end them."""
        with self._writing():
            learner = self._learner()
            nodes = [self._node(number) for number in range(1, self.num_nodes + 1)]
        try:
            with self._writing():
                invite = found_swarm(self.out / CONFIG_FILE)
                await learner.start()
            # The nodes load their engines while the learner loads its own: they wait for its first version, but it does
            # not wait for them.
            await self._wait_until_there(learner)
            if (url := local_url(self.out / "learner")) and self.sites.learner.host == LOOPBACK:
                console.say(f"Watch it in a browser: {url}")
            for node in nodes:
                node.arguments = ["join", invite, *node.arguments]
                with self._writing():
                    await node.start()
            async with trio.open_nursery() as nursery:
                for node in nodes:
                    nursery.start_soon(self._watch_node, node)
                nursery.start_soon(self._show_learner, console.state)
                await self._keep_learning(learner)
                nursery.cancel_scope.cancel()
            with trio.move_on_after(LEAVE_S):
                for node in nodes:
                    await node.wait()
        finally:
            await stop_all([*nodes, learner])

    def _engine(self, number: int) -> str:
        """Return the engine of node `number`, from 1: with "mixed", vLLM for the first, transformers for the others."""
        return self.engine if self.engine != "mixed" else "vllm" if number == 1 else "transformers"

    def _learner(self) -> NodeProcess:
        config = self.out / CONFIG_FILE
        # The port is fixed, so that the nodes find a learner that was restarted.
        port = free_port(self.out)
        site = self.sites.learner
        text = swarm_toml(
            self.recipe,
            task=self.lesson.task,
            held_out=self.lesson.held_out,
            max_new_tokens=self.lesson.max_new_tokens,
            host=site.host,
            port=port,
            staleness=self.staleness,
            seed=self.seed,
            objective=self.objective,
        )
        config.write_text(text, encoding="utf-8")
        arguments = ["learn", str(config), "--plain"]
        return NodeProcess(name="learner", arguments=arguments, log=self.out / "learner.log", wrap=site.wrap)

    def _node(self, number: int) -> NodeProcess:
        is_cheat = self.with_cheat and number == self.num_nodes
        name = CHEAT_NAME if is_cheat else f"node-{number}"
        config, site = self.out / f"{name}.toml", self.sites.of_node(number)
        batch = max(self.recipe.group, self.recipe.prompts * self.recipe.group // self.num_nodes)
        price = PRICES[(number - 1) % len(PRICES)]
        config.write_text(
            NODE_CONFIG.format(
                name=name,
                host=site.host,
                engine="transformers" if is_cheat else self._engine(number),
                batch=batch,
                price=price,
                testing=f'\n[testing]\ncheat = "{CHEAT}"\n' if is_cheat else "",
            ),
            encoding="utf-8",
        )
        arguments = ["--config", str(config), "--state", str(self.out / name), "--plain"]
        return NodeProcess(name=name, arguments=arguments, log=self.out / f"{name}.log", wrap=site.wrap)

    async def _wait_until_there(self, learner: NodeProcess) -> None:
        """Return when the learner is about to listen. Raises RunError."""
        path = self.out / "learner" / STATUS_FILE
        with trio.move_on_after(FIRST_SIGN_S):
            while not path.exists():
                if (code := learner.process.poll() if learner.process else None) is not None:
                    raise RunError(f"The learner ended with code {code}. The end of {learner.log}:\n{learner.tail()}")
                await trio.sleep(0.1)
            return
        raise RunError(
            f"The learner did not start within {FIRST_SIGN_S:.0f} s. The end of {learner.log}:\n{learner.tail()}"
        )

    async def _keep_learning(self, learner: NodeProcess) -> None:
        """Wait until the learner finishes, and restart it when it dies. Raises RunError."""
        for _ in range(LEARNER_RESTARTS):
            code = await learner.wait()
            if code == 0:
                return
            self.events.emit("learner_died", code=code)
            if code in (1, 2):
                break
            with self._writing():
                await learner.start()
        raise RunError(f"The learner ended with code {code}. The end of {learner.log}:\n{learner.tail()}")

    async def _watch_node(self, node: NodeProcess) -> None:
        code = await node.wait()
        if code != 0:
            self.events.emit("node_died", node=node.name, code=code, log=str(node.log))

    async def _show_learner(self, state: ViewState) -> None:
        """Follow the learner's event log, and show each event."""
        path = self.out / "learner" / "events.jsonl"
        position = 0
        while True:
            await trio.sleep(SAMPLE_S)
            if path.exists():
                with path.open("rb") as file:
                    file.seek(position)
                    whole, _, _ = file.read().rpartition(b"\n")
                    position += len(whole) + bool(whole)
                for line in whole.splitlines():
                    fields = json.loads(line)
                    apply(state, fields.pop("event"), fields)

    def conclude(self, console: Terminal) -> int:
        """Write the picture, report, page and summary; print the report."""
        report = swarm_report(self.ledger, staleness=self.staleness, with_history=True)
        facts = summary(
            report,
            staleness_bound=self.staleness,
            peak_pss_mib=round(self.peak_pss / 2**20, 1),
            seeds={"demo": self.seed},
            wall_s=round(time.monotonic() - self.began, 2),
            routes=routes_taken(sorted(self.out.glob("node-*/events.jsonl"))),
        )
        with self._writing():
            draw_reward(report, self.out / "reward.png")
            write_html(report, self.out / "report.html")
            (self.out / "report.txt").write_text(as_text(report), encoding="utf-8")
            (self.out / "summary.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        screen = console.console
        text = as_terminal(report, width=max(80, screen.width)) if screen.is_terminal else as_text(report)
        screen.file.write(text + "\n")
        console.say(
            f"Greedy accuracy on {self.lesson.held_out} held-out {self.lesson.things}: "
            f"{facts['greedy_start']:.2f} -> {facts['greedy_end']:.2f} in "
            f"{facts['wall_s']:.0f} s. Picture: {self.out / 'reward.png'}. Numbers: {self.out / 'summary.json'}. "
            f"Full report for a browser: {self.out / 'report.html'}."
        )
        if self.with_cheat:
            console.say(_of_the_cheat(report))
        return 0
