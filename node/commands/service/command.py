"""Run `volery service install`, `status` and `uninstall`: find out what to run, and say what was done.

A node's service reads its invite from the node's state directory, so that the join token stands in no unit and in no
list of processes.

Invariants:

- Everything is checked before the first file is written.
- A service of another swarm or state directory is never replaced.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from node.commands.service.manager import Advice, ServiceManager, Standing
from node.commands.service.managers import installed_services, service_at
from node.commands.service.service_spec import MEMORY_SHARE, NICE, InstalledService, ServiceRole, ServiceSpec
from node.config.invite_text import INVITE_FILE, is_invite, open_invite
from node.config.loader import read_node_config, read_swarm_config
from node.config.preflight import require_addresses
from node.installation.install_line import UVX_FOLDERS
from node.runtime.atomic_files import write_durably
from node.runtime.errors import RunError, UsageError, about_keys_of
from node.runtime.events import Clock
from node.runtime.formatting import plain_name
from node.runtime.user_paths import as_path, real_path
from node.state.locate import find_place
from node.state.rollout_state import keep_invite, swarm_directory
from node.state.status_file import standing_of
from protocol.core.invite import Invite

CARRIED = ("VOLERY_HOME", "XDG_DATA_HOME", "HF_HOME", "CUDA_VISIBLE_DEVICES")
"""Variables of this shell that a service gets as well, if they are set: they say where files and devices are. Others
may hold secrets, which a unit's file is no place for."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the owner typed. None or "" if an option was not given.

    learner: a swarm.toml or its directory. node: an invite, a file that holds one, or a node's name or state directory.
    """

    learner: Path | None = None
    node: str | None = None
    config: Path | None = None
    state: Path | None = None
    called: str = ""
    memory_gb: float | None = None
    nice: int | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A service to be installed, and the invite to leave in its node's state directory."""

    spec: ServiceSpec
    invite: Invite | None = None


def plan_service(wanted: Wanted, environment: Mapping[str, str] = os.environ) -> Plan:
    """Return what to install, and write nothing. Raises UsageError, RunError."""
    if wanted.learner is not None and wanted.node is not None:
        raise UsageError("A service is a learner or a node. Name --learner or --node, and install the other one then.")
    if wanted.learner is None and wanted.node is None:
        place = find_place(None)
        if place.is_learner:
            return _plan_learner(Path("swarm.toml"), wanted, environment)
        return _plan_node(str(place.state), wanted, environment)
    if wanted.learner is not None:
        return _plan_learner(wanted.learner, wanted, environment)
    return _plan_node(wanted.node or "", wanted, environment)


def _plan_learner(path: Path, wanted: Wanted, environment: Mapping[str, str]) -> Plan:
    for option, value in (("--config", wanted.config), ("--state", wanted.state)):
        if value is not None:
            raise UsageError(f"{option} is for a node's service. A learner's settings are all in its swarm.toml.")
    config, file = read_swarm_config(path), path.absolute()
    command = (*program(), "learn", str(file), "--plain")
    return Plan(
        spec=_spec(wanted, environment, role="learner", swarm=config.swarm.name, state=config.swarm.state, run=command)
    )


def _plan_node(typed: str, wanted: Wanted, environment: Mapping[str, str]) -> Plan:
    named = Path(typed.strip())
    chosen = None if wanted.state is None else as_path(wanted.state).absolute()
    if not is_invite(typed) and not named.is_file():
        found = find_place(named).state
        if chosen is not None and real_path(chosen) != real_path(found):
            raise UsageError(f"--node names the state directory {found}, and --state another one. Leave out --state.")
        chosen = found
        if not (found / INVITE_FILE).is_file():
            raise UsageError(f"{found} holds no invite. Name it: volery service install --node INVITE --state {found}")
        typed = str(found / INVITE_FILE)
    invite = open_invite(typed, now_ms=Clock.now_ms())
    state = (chosen or swarm_directory(invite.authority.swarm) / "node-1").absolute()
    if (state / "learner.key").exists():
        raise UsageError(f"{state} is a learner's state. Use --learner with its swarm.toml, or name another --state.")
    settings = read_node_config(wanted.config)
    with nullcontext() if wanted.config is None else about_keys_of(wanted.config):
        require_addresses(settings.network.listen, settings.network.announce)
    command = (*program(), "join", str(state / INVITE_FILE), "--state", str(state), "--plain")
    if wanted.config is not None:
        command = (*command, "--config", str(wanted.config.absolute()))
    swarm = invite.name or invite.authority.swarm.hex()[:16]
    return Plan(spec=_spec(wanted, environment, role="node", swarm=swarm, state=state, run=command), invite=invite)


def _spec(
    wanted: Wanted,
    environment: Mapping[str, str],
    *,
    role: ServiceRole,
    swarm: str,
    state: str | Path,
    run: tuple[str, ...],
) -> ServiceSpec:
    return ServiceSpec(
        role=role,
        title=plain_name(swarm),
        called=wanted.called or swarm,
        state=Path(state),
        command=run,
        environment={name: environment[name] for name in CARRIED if environment.get(name)},
        memory_gb=wanted.memory_gb,
        nice=NICE[role] if wanted.nice is None else wanted.nice,
    )


def program(interpreter: str = sys.executable) -> tuple[str, ...]:
    """Return the words that start this program from anywhere. Raises UsageError if it may be gone tomorrow."""
    here = Path(interpreter)
    if UVX_FOLDERS & set(here.parts):
        raise UsageError(
            "This program runs from uv's cache, which may be emptied at any time. Install it with `uv tool install "
            "volery`, and type the same with `volery` instead of `uvx volery`."
        )
    script = here.with_name("volery")
    return (str(script),) if script.is_file() else (interpreter, "-P", "-m", "node")


def install(plan: Plan, manager: ServiceManager) -> Advice:
    """Write the service's file, and start the service. Installing the same again only restarts it.

    Raises UsageError or RunError; then nothing of it is left.
    """
    spec = plan.spec
    file, text = manager.file_of(spec.name), manager.text(spec)
    was = _require_free(spec, file, text)
    manager.require(spec)
    if was is None and standing_of(spec.state) is not None:
        raise RunError(
            f"The {spec.role} in {spec.state} runs already, started by hand. Stop it (Ctrl-C, or `volery drain` for a "
            "node), then install the service."
        )
    try:
        spec.state.mkdir(parents=True, exist_ok=True)
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{error.filename} cannot be made: {error.strerror}. Correct that, and try again.") from None
    if plan.invite is not None:
        keep_invite(spec.state, plan.invite)
    write_durably(file, text.encode())
    try:
        manager.start(spec)
    except RunError:
        if was is None and not manager.keeps_files:
            file.unlink(missing_ok=True)
        raise
    return manager.advice(spec)


def _require_free(spec: ServiceSpec, file: Path, text: str) -> InstalledService | None:
    """Return the service that is installed already with the same text; None if there is none. Raises UsageError."""
    if not file.exists():
        return None
    was = service_at(file)
    if was is None:
        raise UsageError(
            f"{file} exists, and `volery service` did not write it. Move it away, or choose another name with --name."
        )
    if was.state != spec.state:
        raise UsageError(
            f"{spec.name} is installed already, for another swarm or node: {was.swarm}, in {was.state}. Choose another "
            f"name for this one: --name {shlex.quote(f'{spec.called}-2')}"
        )
    if file.read_text(encoding="utf-8") != text:
        raise UsageError(
            f"{spec.name} is installed already, with other settings. To change them, first: volery service uninstall "
            f"{spec.name}"
        )
    return was


def installed_text(plan: Plan, manager: ServiceManager, advice: Advice) -> str:
    """Return what was installed, and what to type next."""
    spec = plan.spec
    memory = f"{round(100 * MEMORY_SHARE)} % of the machine's" if spec.memory_gb is None else f"{spec.memory_gb:g} GB"
    rows = (
        ("file", manager.file_of(spec.name)),
        ("runs", shlex.join(spec.command)),
        ("state", spec.state),
        *((("invite", f"volery invite {shlex.quote(spec.command[-2])}"),) if spec.role == "learner" else ()),
        *((("memory", f"at most {memory}"),) if manager.limits_memory else ()),
        *((("variables", ", ".join(sorted(spec.environment))),) if spec.environment else ()),
        ("look", "volery service status"),
        ("log", manager.log_line(spec.name, spec.state)),
        ("stop", advice.stop),
        ("start", advice.start),
        ("remove", f"volery service uninstall {spec.name}"),
    )
    lines = [f"  {label:12}{value}" for label, value in rows]
    return "\n".join([f"{manager.title} runs {spec.name} now.", *lines, *advice.notes])


@dataclass(frozen=True, kw_only=True)
class ServiceStatus:
    """A service, what its manager says, what the program says of itself ("" if it does not run), and the line that
    shows its log."""

    service: InstalledService
    standing: Standing
    doing: str
    log: str

    @property
    def line(self) -> str:
        doing = f", {self.doing}" if self.doing else ""
        return f"{self.service.name}: {self.standing.words}{doing}\n  state  {self.service.state}\n  log    {self.log}"

    def as_values(self) -> dict[str, object]:
        """Return the same for JSON."""
        service = self.service
        return {
            "name": service.name,
            "role": service.role,
            "swarm": service.swarm,
            "state": service.state,
            "file": service.file,
            "runs": self.standing.runs,
            "manager_says": self.standing.words,
            "doing": self.doing or None,
            "log": self.log,
        }


def statuses(manager: ServiceManager) -> list[ServiceStatus]:
    """Return all services of this user and how they are."""
    return [
        ServiceStatus(
            service=service,
            standing=manager.standing(service),
            doing=told.doing if (told := standing_of(service.state)) else "",
            log=manager.log_line(service.name, service.state),
        )
        for service in installed_services(manager)
    ]


NONE = "No service is installed for this user. To install one: volery service install --node INVITE."


def status_text(found: Sequence[ServiceStatus]) -> str:
    """Return three lines for each service."""
    return "\n".join(one.line for one in found) or NONE


def uninstall(name: str, manager: ServiceManager) -> InstalledService:
    """Stop a service as its unit says, and remove it; "" is the only one. Raises UsageError, RunError."""
    found = installed_services(manager)
    if not found:
        raise UsageError(NONE)
    meant = [one for one in found if name in ("", one.name)]
    if len(meant) != 1:
        listed = "\n  ".join(one.name for one in found)
        raise UsageError(f"{name or 'Several services are installed'}: name one of these:\n  {listed}")
    manager.remove(meant[0])
    return meant[0]
