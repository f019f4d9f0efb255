"""Try for real what a policy's program must not be able to do.

On a machine where bubblewrap cannot be had, these tests fail: skipping them would say that all is well.
"""

from __future__ import annotations

import os
import platform
import socket
import subprocess
from pathlib import Path

import psutil
import pytest

from node.tasks.api.interface import TaskError
from node.tasks.sandbox import bubblewrap as sandbox
from node.tasks.sandbox.bubblewrap import SYSTEM_PYTHON, Ran, SandboxLimits, open_sandbox, require_sandbox, run
from node.tasks.sandbox.seccomp import CALLS, CLONE, CLONE3, MACHINES, call_filter
from tests.support.hostile_programs import FORK_BOMB

BRIEF = SandboxLimits(time_s=3.0, memory_mb=128)
LONG_LIMITS = SandboxLimits(time_s=60.0, memory_mb=128)
"""For what ends by itself, however busy the machine."""


def attempt(program: str, **how: object) -> Ran:
    return run(program, **{"limits": LONG_LIMITS, **how})  # type: ignore[arg-type]


NAMED = f"volery-{os.getpid()}"
"""What processes call themselves that these tests look for. Other tests run sandboxes, too."""

TAKE_NAME = f"""
import ctypes
ctypes.CDLL(None).prctl(15, b"{NAMED}")  # PR_SET_NAME, which children inherit
"""


def running() -> set[int]:
    """Processes on this machine that took the name, and the walls around sandboxes that this process put up."""
    named = {process.pid for process in psutil.process_iter(["name"]) if process.info["name"] == NAMED}
    ours = psutil.Process().children(recursive=True)
    return named | {process.pid for process in ours if process.name() == "bwrap"}


def test_processes_of_a_sandbox_are_found() -> None:
    before = running()
    program = TAKE_NAME + "import os, time\nos.fork()\nprint('here', flush=True)\ntime.sleep(1000)"
    with open_sandbox(program, limits=LONG_LIMITS) as started:
        while os.pread(started.printed, 64, 0) != b"here\nhere\n":
            assert started.process.poll() is None
        assert len(running() - before) >= 3
    assert running() <= before


def test_a_program_reads_and_prints() -> None:
    assert attempt("print(int(input()) + 1)", stdin=b"41\n") == Ran(output=b"42\n", exit_code=0)
    assert attempt("raise SystemExit(3)") == Ran(output=b"", exit_code=3)
    assert attempt("print('café')", stdin=b"").output == "café\n".encode()


def test_tests_run_after_the_program_among_its_names() -> None:
    assert attempt("def f(x): return x + 1", tests="assert f(1) == 2; print('held')").output == b"held\n"
    assert attempt("def f(x): return x", tests="assert f(1) == 2; print('held')").exit_code == 1


def test_the_network_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0)
        port = listening.getsockname()[1]
        ran = attempt(
            f"""
import socket
for address in (("127.0.0.1", {port}), ("192.0.2.1", 80)):
    try:
        socket.create_connection(address, timeout=0.5)
        print("reached", address)
    except OSError as error:
        print(type(error).__name__)
print([name for _, name in socket.if_nameindex() if name != "lo"])
"""
        )
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert ran.output.splitlines() == [b"ConnectionRefusedError", b"OSError", b"[]"]


def test_a_fork_bomb_is_bounded_and_nothing_of_it_is_left() -> None:
    before = running()
    ran = attempt(
        TAKE_NAME + FORK_BOMB,
        limits=BRIEF,
    )
    assert ran.exit_code is None
    assert int(ran.output.split()[0]) < BRIEF.processes
    assert running() <= before


def test_a_memory_bomb_hits_its_limit() -> None:
    ran = attempt(
        """
held = []
try:
    while True:
        held.append(bytearray(1 << 20))
except MemoryError:
    print(len(held))
"""
    )
    assert 0 < int(ran.output) < BRIEF.memory_mb


def test_an_endless_loop_is_ended() -> None:
    assert attempt("while True: pass", limits=BRIEF) == Ran(output=b"", exit_code=None)
    assert attempt("import time; print('here', flush=True); time.sleep(1000)", limits=BRIEF) == Ran(
        output=b"here\n", exit_code=None
    )


def test_a_program_that_will_not_be_interrupted_is_ended() -> None:
    ran = attempt(
        """
import signal
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
while True:
    pass
""",
        limits=BRIEF,
    )
    assert ran.exit_code is None


def test_the_nodes_key_cannot_be_read(tmp_path: Path) -> None:
    secret, home = "the node's own secret", tmp_path
    home.chmod(0o755)
    (home / "node.key").write_text(secret)
    (home / "node.key").chmod(0o644)
    ran = attempt(
        f"""
import glob, os
for path in ({str(home / "node.key")!r}, "/proc/1/root" + {str(home / "node.key")!r}, "/etc/shadow", "/etc/passwd"):
    try:
        print(open(path).read())
    except OSError as error:
        print(type(error).__name__)
print(sorted(os.listdir("/")))
print(glob.glob("/root/*") + glob.glob("/home/*") + glob.glob("/tmp/*") + glob.glob("/var/*"))
"""
    )
    assert ran.exit_code == 0
    lines = ran.output.decode().splitlines()
    assert lines[:4] == ["FileNotFoundError"] * 4
    assert set(eval(lines[4])) <= {"bin", "dev", "lib", "lib32", "lib64", "proc", "sbin", "tmp", "usr"}
    assert lines[5] == "[]"


def test_no_secret_is_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "a secret")
    ran = attempt("import os; print(sorted(os.environ)); print('a secret' in str(os.environ))")
    known = {"HOME", "LANG", "LC_CTYPE", "PATH", "PWD", "PYTHONHASHSEED"}
    names, told = ran.output.decode().splitlines()
    assert (set(eval(names)) <= known, told) == (True, "False")


def test_what_the_verifier_has_open_is_not_handed_on(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret")
    with secret.open() as file:
        os.set_inheritable(file.fileno(), True)
        ran = attempt(
            """
import os
for number in range(3, 256):
    try:
        print(os.readlink(f"/proc/self/fd/{number}"))
    except OSError:
        pass
"""
        )
    assert ran.exit_code == 0
    assert all("memfd" in line for line in ran.output.decode().splitlines()), "its own source, and nothing else"


def test_nothing_can_be_written_outside(tmp_path: Path) -> None:
    outside = tmp_path
    outside.chmod(0o777)
    ran = attempt(
        f"""
import os
for path in ({str(outside / "x")!r}, "/usr/x", "/x", "/dev/x", "/dev/shm/x", "/bin/x", "/proc/sys/kernel/hostname"):
    try:
        open(path, "w").write("written")
        print("wrote", path)
    except OSError as error:
        pass
open("/tmp/mine", "w").write("written")
print(open("/tmp/mine").read())
"""
    )
    assert ran == Ran(output=b"written\n", exit_code=0)
    assert list(outside.iterdir()) == []
    assert not Path("/tmp/mine").exists()


def test_files_are_bounded_each_and_together() -> None:
    ran = attempt(
        """
written = 0
try:
    while True:
        with open(f"/tmp/{written}", "w") as file:
            file.write("x" * (1 << 19))
        written += 1
except OSError:
    print(written)
try:
    open("/tmp/0", "w").write("x" * (1 << 21))
except OSError:
    print("too large")
"""
    )
    assert ran.output.split(maxsplit=1)[1] == b"too large\n"
    assert 0 < int(ran.output.split()[0]) <= 2 * BRIEF.disk_mb


def test_a_flood_of_output_is_cut_off() -> None:
    ran = attempt("while True: print('x' * 1000)")
    assert ran.exit_code != 0
    assert len(ran.output) == BRIEF.output_mb << 20
    errors = attempt("import sys\nfor _ in range(100_000): print('x' * 100, file=sys.stderr)")
    assert errors.output == b""


def test_what_stays_in_the_background_is_ended_with_the_program() -> None:
    before = running()
    ran = attempt(
        TAKE_NAME
        + """
import os, subprocess, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(0)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
print("done")
"""
    )
    assert ran == Ran(output=b"done\n", exit_code=0)
    assert running() <= before


def test_limits_cannot_be_raised_nor_rights_gained() -> None:
    ran = attempt(
        """
import os, resource
for name in ("RLIMIT_AS", "RLIMIT_NPROC", "RLIMIT_FSIZE", "RLIMIT_CPU"):
    kind = getattr(resource, name)
    try:
        resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print("raised", name)
    except (ValueError, OSError):
        pass
try:
    os.setuid(0)
    print("root")
except OSError:
    pass
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")])
"""
    )
    assert ran.output == b"['0000000000000000']\n"


def test_forbidden_calls_fail_and_what_programs_need_does_not() -> None:
    """Each by its number, for real; among them memory that stays when nobody maps it, and the operator's keyring."""
    column = MACHINES[platform.machine()][1]
    numbers = [both[column] for both in CALLS.values()]
    ran = attempt(
        f"""
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def tried(number, first=0):
    ctypes.set_errno(0)
    return libc.syscall(number, ctypes.c_ulong(first), 0, 0, 0, 0) == -1 and ctypes.get_errno()
print([number for number in {numbers} if tried(number) != errno.EPERM])
print([bit for bit in (17, 25, 26, 27, 28, 29, 30) if tried({CLONE[column]}, 1 << bit | 17) != errno.EPERM])
print(tried({CLONE3[column]}) == errno.ENOSYS)
"""
    )
    assert ran == Ran(output=b"[]\n[]\nTrue\n", exit_code=0)
    ran = attempt(
        """
import subprocess, sys, threading
found = []
thread = threading.Thread(target=found.append, args=(1,))
thread.start()
thread.join()
print(found, subprocess.run([sys.executable, "-c", "print(2)"], capture_output=True, text=True).stdout)
"""
    )
    assert ran == Ran(output=b"[1] 2\n\n", exit_code=0)


def test_on_a_machine_whose_calls_are_not_known_nothing_runs() -> None:
    with pytest.raises(TaskError, match=r"on this machine \(vax\).*\[\[verifiers.machine\]\]"):
        call_filter("vax")
    assert len({call_filter(machine) for machine in MACHINES}) == len(MACHINES)


def test_without_bubblewrap_nothing_runs_and_the_error_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
    require_sandbox.cache_clear()
    with pytest.raises(TaskError, match="Run: sudo apt-get install -y bubblewrap"):
        require_sandbox()
    require_sandbox.cache_clear()


def test_where_namespaces_are_withheld_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bwrap that fails as the real one does there, without running anything."""
    tmp_path.chmod(0o755)
    bwrap = tmp_path / "bwrap"
    bwrap.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    bwrap.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(TaskError, match=r"No permissions to create new namespace.*Nothing runs without"):
        attempt("print('ran')")


def test_an_interpreter_of_ones_own_is_seen_with_what_it_needs(tmp_path: Path) -> None:
    base = tmp_path
    base.chmod(0o755)
    subprocess.run([SYSTEM_PYTHON, "-m", "venv", "--without-pip", str(base / "venv")], check=True)
    python = str(base / "venv" / "bin" / "python")
    assert attempt("import sys; print(sys.prefix)", python=python).output.decode() == f"{base / 'venv'}\n"
    with pytest.raises(TaskError, match="python=/no/such does not run"):
        attempt("print()", python="/no/such")
