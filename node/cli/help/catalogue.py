"""List the commands: the panel of the help that shows each, its summary, and the module that holds it.

It imports nothing of the program, so that `volery --help` is quick.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

START, WATCH, MACHINE, SWARM, PLAN, EVIDENCE = "Start", "Watch", "Your machine", "Your swarm", "Plan", "Evidence"
PANELS = (START, WATCH, MACHINE, SWARM, PLAN, EVIDENCE)
"""In the order in which the help shows them."""

EXITS = {
    0: "Done.",
    1: "Something failed while it ran.",
    2: "An argument, a configuration file or an invite is wrong.",
    130: "Stopped by Ctrl-C, SIGTERM or a closed terminal.",
}
"""Exit codes of every command, and what each means."""


class Command(NamedTuple):
    """One command. `module` is a module of `node.cli`; `function` is its function or group there.

    exits: meanings of exit codes that differ from EXITS.
    """

    name: str
    panel: str
    summary: str
    module: str
    function: str
    exits: Mapping[int, str] = {}
    is_group: bool = False


WHY_EXITS = {
    1: "The result of --replay differs from the ledger, or something failed.",
    2: "Nothing has that name, or --replay needs what is no longer stored.",
}

COMMANDS = (
    Command(
        "demo", START, "Run a whole swarm on this machine: three nodes teach a small model.", "demo_commands", "demo"
    ),
    Command(
        "doctor",
        START,
        "Check whether this machine can take part in a swarm, and what is missing.",
        "run_commands",
        "doctor",
        {0: "This machine can take part.", 1: "It cannot take part, or something failed."},
    ),
    Command("join", START, "Lend this machine to a swarm until you stop it.", "run_commands", "join"),
    Command("init", START, "Write a swarm.toml for a new swarm, or a whole example.", "run_commands", "init"),
    Command(
        "warmup", START, "Teach a model the form of answers, before reinforcement learning.", "warmup_command", "warmup"
    ),
    Command(
        "learn", START, "Run the learner of a swarm: judge, train, publish. Prints the invite.", "run_commands", "learn"
    ),
    Command(
        "tasks",
        START,
        "List the tasks that a swarm.toml can name; show or check one.",
        "task_commands",
        "tasks",
        is_group=True,
    ),
    Command(
        "new", START, "Write a task or an environment of your own to start from.", "task_commands", "new", is_group=True
    ),
    Command("status", WATCH, "Show in a few lines how a learner or a node is doing.", "inspect_commands", "status"),
    Command(
        "report", WATCH, "Show who did what at what cost, in a swarm or on your own node.", "inspect_commands", "report"
    ),
    Command(
        "why",
        WATCH,
        "Explain why a record, lease or peer was judged as it was.",
        "inspect_commands",
        "why",
        WHY_EXITS,
    ),
    Command("explain", WATCH, "The same as why.", "inspect_commands", "why", WHY_EXITS),
    Command(
        "samples", WATCH, "Show completions that a version was trained on, with rewards.", "inspect_commands", "samples"
    ),
    Command("notify", WATCH, "Post a test notice to where alarms will go.", "operator_commands", "notify"),
    Command("pause", MACHINE, "Stop a node's generating until `volery resume`.", "owner_commands", "pause"),
    Command("resume", MACHINE, "Let a paused node work again.", "owner_commands", "resume"),
    Command("drain", MACHINE, "Let a node finish its leases, then end.", "owner_commands", "drain"),
    Command("limits", MACHINE, "Show or change a running node's hours and limits.", "owner_commands", "limits"),
    Command(
        "service",
        MACHINE,
        "Run a node or a learner as a service: install, status, uninstall.",
        "owner_commands",
        "service",
        is_group=True,
    ),
    Command("engines", MACHINE, "Show which engines work here; install vLLM.", "run_commands", "engines"),
    Command("identity", MACHINE, "Show the peer ids of the nodes on this machine.", "inspect_commands", "identity"),
    Command("invite", SWARM, "Print an invite to your swarm.", "inspect_commands", "invite"),
    Command("ban", SWARM, "Ban a peer: reject its work, and refuse its key.", "operator_commands", "ban"),
    Command("pardon", SWARM, "Lift a ban: the peer may join again, as a newcomer.", "operator_commands", "pardon"),
    Command(
        "compact", SWARM, "Make the ledger of a stopped learner smaller, without loss.", "operator_commands", "compact"
    ),
    Command("export", SWARM, "Write a version as a model directory; push it to a hub.", "inspect_commands", "export"),
    Command("serve", SWARM, "Serve a version to programs that speak OpenAI's API.", "serving_commands", "serve"),
    Command("chat", SWARM, "Talk to a version in the terminal.", "serving_commands", "chat"),
    Command("verifier", SWARM, "Compute rewards for a learner on another machine.", "run_commands", "verifier"),
    Command(
        "plan",
        PLAN,
        "Say which machines keep the learner busy, and what they cost.",
        "planning_commands",
        "plan",
        {1: "No machines of the pool suffice, or something failed."},
    ),
    Command("simulate", PLAN, "Simulate a swarm in virtual time, and ask what-if.", "planning_commands", "simulate"),
    Command(
        "drill", PLAN, "Attack a copy of your swarm on this machine, and see what is found.", "demo_commands", "drill"
    ),
    Command(
        "receipts",
        EVIDENCE,
        "List, export and check receipts: the learner's signed answers.",
        "receipt_commands",
        "receipts",
        is_group=True,
    ),
    Command("prove", EVIDENCE, "Show that a record trained a version; write the proof.", "receipt_commands", "prove"),
    Command(
        "reputation",
        EVIDENCE,
        "Export and check signed reputations of peers.",
        "receipt_commands",
        "reputation",
        is_group=True,
    ),
)
"""In the order in which the help lists them."""


def command_named(name: str) -> Command | None:
    """Return the command called `name`; None if there is none."""
    return next((command for command in COMMANDS if command.name == name), None)
