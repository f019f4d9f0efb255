"""`volery service`: what is planned, refused, written and removed, with the system's programs replaced by scripts."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from node.commands.init.command import write_swarm_config
from node.commands.service.command import (
    NONE,
    Wanted,
    install,
    installed_text,
    plan_service,
    program,
    status_text,
    statuses,
    uninstall,
)
from node.commands.service.launchd_manager import Launchd
from node.commands.service.manager import Advice
from node.commands.service.managers import installed_services, manager_here
from node.commands.service.systemd_manager import Systemd
from node.commands.service.windows_manager import NotFromInside, WindowsTasks
from node.config.invite_text import INVITE_FILE
from node.runtime.errors import RunError, UsageError
from node.state.keys import load_or_create_key
from protocol.core.identity import Keypair
from protocol.core.invite import Invite, write_invite

OPERATOR = Keypair(b"\x01" * 32)
INVITE = Invite(
    operator=OPERATOR.public,
    swarm=b"\x8a" * 32,
    addresses=[f"/ip4/192.0.2.1/tcp/4001/p2p/{OPERATOR.peer_id}"],
    name="kites",
)
TEXT = write_invite(INVITE)

Programs = Callable[..., Path]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own; the machine's programs are still found."""
    monkeypatch.setenv("VOLERY_HOME", str(tmp_path / "volery"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Put scripts of these names before the machine's programs; each writes its arguments into the file returned."""
    calls = tmp_path / "calls"

    def put(**scripts: str) -> Path:
        directory = tmp_path / "programs"
        directory.mkdir(exist_ok=True)
        for name, body in scripts.items():
            path = directory / name.replace("_exe", ".exe")
            path.write_text(f"#!/bin/sh\nprintf '%s\\n' '{path.name} '\"$*\" >> '{calls}'\n{body}\n")
            path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")
        return calls

    return put


def systemd(home: Path) -> Systemd:
    return Systemd(units=home / "units", booted=home)


def node(**options: object) -> Wanted:
    return Wanted(node=TEXT, **options)  # type: ignore[arg-type]


def test_an_invite_makes_a_service_of_the_swarms_first_node(home: Path) -> None:
    plan = plan_service(node(), {"HF_HOME": "/models", "HF_TOKEN": "secret"})
    state = home / "volery" / "8a8a8a8a8a8a8a8a" / "node-1"
    assert plan.spec.name == "volery-node-kites"
    assert plan.spec.state == state
    assert plan.spec.command[-5:] == ("join", f"{state}/invite", "--state", str(state), "--plain")
    assert plan.spec.environment == {"HF_HOME": "/models"}
    assert not state.exists(), "planning writes nothing"


def test_a_swarm_toml_makes_a_service_of_its_learner(home: Path) -> None:
    path = write_swarm_config(home / "flock", name="my swarm", port=4001)
    plan = plan_service(Wanted(learner=path, called="other", memory_gb=20, nice=3))
    assert plan.spec.name == "volery-learner-other"
    assert plan.spec.state == home / "flock" / "state"
    assert plan.spec.command[-3:] == ("learn", str(path), "--plain")
    assert (plan.spec.memory_gb, plan.spec.nice) == (20, 3)
    text = installed_text(plan, systemd(home), Advice(stop="stop", start="start"))
    assert f"volery invite {path}\n" in text
    assert "at most 20 GB" in text


def test_a_node_that_has_joined_is_named_by_its_state(home: Path) -> None:
    state = home / "mine"
    state.mkdir()
    load_or_create_key(state / "node.key")
    with pytest.raises(UsageError, match="holds no invite"):
        plan_service(Wanted(node=str(state)))
    (state / "invite").write_text(TEXT)
    assert plan_service(Wanted(node=str(state))).spec.state == state


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (Wanted(learner=Path("a"), node=TEXT), "Name --learner or --node"),
        (Wanted(learner=Path("a"), state=Path("b")), "--state is for a node's service"),
        (Wanted(learner=Path("nowhere.toml")), "no such file"),
        (Wanted(node="nobody"), "nobody.*no such"),
        (Wanted(), "There is no swarm.toml here and no node"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    wanted: Wanted, said: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    with pytest.raises(UsageError, match=said):
        plan_service(wanted)


def test_a_program_in_a_cache_is_not_installed() -> None:
    with pytest.raises(UsageError, match="uv tool install volery"):
        program("/home/ada/.cache/uv/archive-v0/x1/bin/python")
    assert program("/usr/bin/nowhere/python3") == ("/usr/bin/nowhere/python3", "-P", "-m", "node")


def test_systemd_is_told_to_enable_and_start(home: Path, programs: Programs) -> None:
    calls = programs(systemctl='[ "$1" != --version ] || echo "systemd 255"', loginctl="echo Linger=no")
    plan, manager = plan_service(node()), systemd(home)
    advice = install(plan, manager)
    unit = home / "units" / "volery-node-kites.service"
    assert "RestartSteps=" in unit.read_text()
    kept = plan.spec.state / "invite"
    assert kept.read_text().strip() == TEXT
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    told = [line for line in calls.read_text().splitlines() if "--user" in line]
    assert [line.removeprefix("systemctl --user ") for line in told] == [
        "show-environment",
        "daemon-reload",
        f"enable {unit.name}",
        f"restart {unit.name}",
    ]
    text = installed_text(plan, manager, advice)
    assert "journalctl --user -u volery-node-kites -f" in text
    assert "loginctl enable-linger" in text
    install(plan, manager)  # the same again is no mistake

    assert [one.name for one in installed_services(manager)] == ["volery-node-kites"]
    assert uninstall("", manager).state == plan.spec.state
    assert not unit.exists()
    assert kept.exists()
    assert f"systemctl --user disable --now {unit.name}" in calls.read_text()
    with pytest.raises(UsageError, match="No service is installed"):
        uninstall("", manager)


def test_linger_is_not_advised_where_it_is_on(home: Path, programs: Programs) -> None:
    programs(systemctl="exit 0", loginctl="echo Linger=yes")
    assert install(plan_service(node()), systemd(home)).notes == ()


def test_what_is_installed_already_is_kept(home: Path, programs: Programs) -> None:
    programs(systemctl="exit 0", loginctl="exit 0")
    manager = systemd(home)
    install(plan_service(node()), manager)
    before = manager.file_of("volery-node-kites").read_text()
    with pytest.raises(UsageError, match=r"with other settings.*volery service uninstall volery-node-kites"):
        install(plan_service(node(nice=9)), manager)
    with pytest.raises(UsageError, match=r"for another swarm or node.*--name kites-2"):
        install(plan_service(node(state=home / "second")), manager)
    assert manager.file_of("volery-node-kites").read_text() == before
    install(plan_service(node(state=home / "second", called="kites-2")), manager)
    with pytest.raises(UsageError, match="name one of these:\n  volery-node-kites\n  volery-node-kites-2"):
        uninstall("", manager)

    foreign = manager.file_of("volery-node-mine")
    foreign.write_text("[Service]\nExecStart=/bin/true\n")
    with pytest.raises(UsageError, match="did not write it"):
        install(plan_service(node(state=home / "third", called="mine")), manager)
    assert len(installed_services(manager)) == 2


def test_a_service_that_does_not_start_leaves_no_unit(home: Path, programs: Programs) -> None:
    programs(systemctl='[ "$2" != restart ] || { echo "Job failed." >&2; exit 1; }', loginctl="exit 0")
    manager = systemd(home)
    with pytest.raises(RunError, match=r"Job failed. Its lines: journalctl --user -u volery-node-kites"):
        install(plan_service(node()), manager)
    assert installed_services(manager) == []


def test_without_systemd_the_refusal_says_what_to_use(home: Path) -> None:
    manager = Systemd(units=home / "units", booted=home / "absent")
    told = r"container.*crontab -e.*, with your invite in place of INVITE:\n  @reboot .*volery join INVITE --state"
    with pytest.raises(RunError, match=told):
        install(plan_service(node()), manager)
    assert not (home / "units").exists()
    assert not (home / "volery").exists()


def test_without_systemd_a_node_that_keeps_its_invite_is_started_with_it(home: Path) -> None:
    plan = plan_service(node())
    plan.spec.state.mkdir(parents=True)
    (plan.spec.state / INVITE_FILE).write_text(TEXT)
    told = rf"add this line:\n  @reboot .*volery join {plan.spec.state}/{INVITE_FILE} --state"
    with pytest.raises(RunError, match=told):
        install(plan, Systemd(units=home / "units", booted=home / "absent"))


def test_a_manager_that_does_not_answer_is_explained(home: Path, programs: Programs) -> None:
    programs(systemctl='[ "$1" != --user ] || { echo "Failed to connect to bus" >&2; exit 1; }')
    with pytest.raises(RunError, match=r"Failed to connect to bus.*log in"):
        install(plan_service(node()), systemd(home))


@pytest.mark.parametrize(
    ("told", "runs", "words"),
    [
        ("ActiveState=active\nSubState=running", True, "active"),
        ("ActiveState=activating\nSubState=auto-restart", False, "failed, and will be started again"),
        ("ActiveState=failed\nSubState=failed\nResult=exit-code", False, "failed (exit-code)"),
        ("", False, "unknown"),
    ],
)
def test_the_status_says_what_systemd_says(told: str, runs: bool, words: str, home: Path, programs: Programs) -> None:
    manager = systemd(home)
    assert status_text(statuses(manager)) == NONE
    programs(systemctl=f'[ "$2" != show ] || printf "%s" "{told}"', loginctl="exit 0")
    install(plan_service(node()), manager)
    (one,) = statuses(manager)
    assert (one.standing.runs, one.standing.words) == (runs, words)
    said = status_text([one]).splitlines()
    assert (said[0], said[2]) == (f"volery-node-kites: {words}", "  log    journalctl --user -u volery-node-kites -f")


def test_launchd_gets_an_agent(home: Path, programs: Programs) -> None:
    calls = programs(launchctl='[ "$1" != print ] || echo "    state = running"')
    manager, plan = Launchd(home=home), plan_service(node())
    text = installed_text(plan, manager, install(plan, manager))
    agent = home / "Library" / "LaunchAgents" / "volery-node-kites.plist"
    assert agent.exists()
    assert calls.read_text().splitlines()[-1].endswith(f" {agent}")
    assert "memory  " not in text
    (one,) = statuses(manager)
    assert one.standing.runs
    uninstall("volery-node-kites", manager)
    assert not agent.exists()


def test_windows_gets_a_task_or_its_owner_a_line(home: Path, programs: Programs) -> None:
    calls = programs(schtasks_exe="exit 0", whoami_exe=r"printf '%s' 'pc\ada'", wslpath='echo "Z:$2"')
    manager, plan = WindowsTasks(folder=home / "services", distribution="Ubuntu"), plan_service(node())
    install(plan, manager)
    script = home / "services" / "volery-node-kites.sh"
    task = script.with_suffix(".xml").read_bytes().decode("utf-16")
    assert f'/bin/sh "{script}"' in task
    assert "<UserId>pc\\ada</UserId>" in task
    assert (
        rf"schtasks.exe /Create /F /TN Volery\volery-node-kites /XML Z:{script.with_suffix('.xml')}"
        in calls.read_text()
    )
    uninstall("", manager)
    assert not script.exists()

    programs(schtasks_exe="exit 1")
    with pytest.raises(NotFromInside, match=r'PowerShell as administrator(.|\n)*schtasks /Create /F /TN "Volery'):
        install(plan, manager)
    assert script.exists(), "the line to type names the task's file"
    with pytest.raises(NotFromInside, match='schtasks /Delete /F /TN "Volery'):
        uninstall("", manager)
    assert installed_services(manager) == []


@pytest.mark.parametrize(
    ("platform", "kernel", "kind"),
    [
        ("darwin", "", Launchd),
        ("linux", "6.1.0-18-amd64", Systemd),
        ("linux", "5.15-microsoft-standard-WSL2", WindowsTasks),
    ],
)
def test_each_machine_has_its_manager(platform: str, kernel: str, kind: type, home: Path) -> None:
    release = home / "osrelease"
    release.write_text(kernel)
    assert isinstance(manager_here({"HOME": str(home)}, platform, release), kind)
