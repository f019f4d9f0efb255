"""Run a program that a policy wrote where it can do no harm: in bubblewrap, with limits of the kernel.

There is no running without the sandbox. If it cannot be started, `require_sandbox` says what to type, and `run` raises.
A verifier that runs as root first changes to a user id that owns nothing. Root's processes are not counted, so no limit
would stop a fork bomb. The only thing left to trust is the kernel.

Invariants:

- A program sees /usr, an interpreter, and an empty directory of its own in memory. It sees no other file.
- It has no network, not even a useful loopback, no environment, no capability, no terminal, and no view of other
  processes.
- Processor time, memory, processes, open files and written bytes are limited before its first line.
- System calls are forbidden by which it could hold memory that no limit counts, or reach keys and namespaces
  (`node.tasks.sandbox.seccomp`).
- When its time is up, or its first process ends, all its processes are killed with their namespace, forks included.
"""

from __future__ import annotations

import json
import math
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from node.tasks.api.interface import TaskError
from node.tasks.sandbox.seccomp import call_filter

SYSTEM_PYTHON = "/usr/bin/python3"
"""The interpreter of programs, unless the task names another. Every user can read it, and it needs only /usr."""

NOBODY_FROM, NOBODY_COUNT = 61_184, 4_000
"""User ids that systemd reserves for temporary services. A verifier that is root becomes one of them, by its pid."""

MB = 1 << 20

STACK_MB = 16
"""Twice the usual stack, for recursion. Each thread takes as much address space."""

START_S = 10.0
"""Seconds that the start may take in addition, for namespaces on a busy machine. After that the sandbox has failed."""

BURIAL_S = 1.0
"""Seconds for the kernel to end a namespace, which usually takes milliseconds."""

LAUNCHER = """
import os, resource, sys
status, program, tests, *limits = map(int, sys.argv[1:])
names = ("AS", "CPU", "NPROC", "NOFILE", "FSIZE", "CORE", "STACK")
for name, limit in zip(names, limits, strict=True):
    resource.setrlimit(getattr(resource, "RLIMIT_" + name), (limit, limit))
try:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
except OSError:
    pass
os.write(status, b"+")
os.close(status)
def read(number):
    with open(number, "rb") as file:
        return file.read()
source, sys.argv = read(program), ["program.py"]
space = {"__name__": "__main__", "__builtins__": __builtins__}
exec(compile(source, "program.py", "exec"), space)
if tests >= 0:
    sys.stdout.flush()
    exec(compile(read(tests), "tests.py", "exec"), space)
"""
"""Runs first inside. It sets the limits, reports that it runs, then executes the program, and the tests after it."""


@dataclass(frozen=True, kw_only=True)
class SandboxLimits:
    """`time_s`: seconds of wall time, and of processor time for each process. `memory_mb`: address space of each one.
    `processes`: maximum number. `output_mb`: of output, and of any one file. `disk_mb`: of all files together."""

    time_s: float = 5.0
    memory_mb: int = 512
    processes: int = 8
    open_files: int = 32
    output_mb: int = 1
    disk_mb: int = 16


@dataclass(frozen=True, kw_only=True)
class Ran:
    """The result of a program: its output (bytes, up to the limit), and how its first process ended.

    `exit_code`: like in a shell, signals are 128 and more; None if it was killed because its time was up.
    """

    output: bytes
    exit_code: int | None


def require_bubblewrap(what: str = "programs are") -> None:
    """Raise TaskError, with the command to type, unless bubblewrap is installed. `what`: what runs in it, with "is" or
    "are"."""
    if shutil.which("bwrap") is None:
        raise TaskError(
            f"{what} run in bubblewrap, which is not installed here. Run: sudo apt-get install -y bubblewrap (dnf and "
            "pacman have it under the same name; it exists only for Linux), or compute rewards on a machine that has "
            "it: [[verifiers.machine]]."
        )


@lru_cache(maxsize=8)
def require_sandbox(python: str = "", limits: SandboxLimits | None = None) -> None:
    """Raise TaskError, with the command to type, unless programs can run here on the interpreter `python`, within
    `limits` (except for time)."""
    require_bubblewrap()
    if not Path(python or SYSTEM_PYTHON).exists():
        raise TaskError(
            f"{python or SYSTEM_PYTHON}, on which programs run, is not there. Run: sudo apt-get install -y python3, or "
            "name another interpreter in the task's python=."
        )
    ran = run("print('here')", limits=replace(limits or SandboxLimits(), time_s=START_S), python=python)
    if ran.output != b"here\n":
        raise TaskError(
            f"the sandbox runs, but {python or SYSTEM_PYTHON} in it does not: {ran}. Name another in python=, or raise "
            "memory_mb= and processes=."
        )


def run(
    program: str,
    *,
    stdin: bytes = b"",
    tests: str | None = None,
    limits: SandboxLimits | None = None,
    python: str = "",
) -> Ran:
    """Run a Python program, and `tests` after it among its names. Wait until all that it started is gone.

    Waits for `time_s` and START_S at most. Raises TaskError if no sandbox can be started.
    """
    with open_sandbox(program, stdin=stdin, tests=tests, limits=limits, python=python) as running:
        return running.wait()


@dataclass(frozen=True, kw_only=True)
class Running:
    """A program in its sandbox; `open_sandbox` makes one. The numbers are descriptors."""

    process: subprocess.Popen[bytes]
    bounds: SandboxLimits
    hear: int
    named: int
    printed: int
    complained: int

    def wait(self) -> Ran:
        """Wait until it has ended, or its time is up, and all its processes are gone. Raises TaskError if it never
        began."""
        began, exit_code = _wait(self.process, self.hear, self.named, self.bounds.time_s)
        if not began:
            said = os.pread(self.complained, 4096, 0).decode(errors="replace").strip()
            raise TaskError(explain_failure(said or f"bwrap ended with exit code {exit_code}"))
        return Ran(output=os.pread(self.printed, self.bounds.output_mb * MB, 0), exit_code=exit_code)

    def end(self) -> None:
        """End it, with all that it started, if it still runs."""
        if self.process.returncode is None:
            _wait(self.process, self.hear, self.named, 0.0)


@contextmanager
def open_sandbox(
    program: str,
    *,
    stdin: bytes = b"",
    tests: str | None = None,
    limits: SandboxLimits | None = None,
    python: str = "",
    line: int = -1,
) -> Iterator[Running]:
    """Start what `run` runs, and end it with the scope. The descriptor `line`, if not -1, is open inside as well."""
    bounds = limits or SandboxLimits()
    with (
        open_nameless_file(program.encode(errors="replace")) as source,
        open_nameless_file((tests or "").encode(errors="replace")) as asserted,
        open_nameless_file(stdin) as fed,
        open_nameless_file(b"") as printed,
        open_nameless_file(b"") as complained,
        open_nameless_file(b"") as named,
        open_nameless_file(call_filter()) as forbidden,
        _pipe() as (hear, tell),
    ):
        wanted = -1 if tests is None else asserted
        inside = _launched(python, bounds, (tell, source, wanted))
        told = ("--info-fd", str(named), "--seccomp", str(forbidden))
        command = [*_walls(bounds, python), *_doors(), *told, *inside]
        handed = [tell, source, asserted, named, forbidden, *([] if line < 0 else [line])]
        process = start(command, (fed, printed, complained), handed)
        os.close(tell)
        running = Running(
            process=process, bounds=bounds, hear=hear, named=named, printed=printed, complained=complained
        )
        try:
            yield running
        finally:
            running.end()


def stays_open(bounds: SandboxLimits, python: str, named: int, forbidden: int) -> list[str]:
    """Return bwrap with options for a program whose life is tied to a socket, not to the thread that starts it.

    bwrap writes about it to the descriptor `named`, and reads the filter of system calls from `forbidden`."""
    told = ("--info-fd", str(named), "--seccomp", str(forbidden))
    return [*_walls(bounds, python, "--as-pid-1"), *_doors(), *told]


def _walls(bounds: SandboxLimits, python: str, ends: str = "--die-with-parent") -> list[str]:
    """Return bwrap's options, except those for /proc."""
    return [
        *shut({"HOME": "/tmp"}),
        ends,
        *("--dev", "/dev", "--size", str(bounds.disk_mb * MB), "--tmpfs", "/tmp", "--chdir", "/tmp"),
        # After those, because a prefix may lie below them.
        *(word for prefix in _prefixes(python) for word in ("--ro-bind", prefix, prefix)),
        # Read-only, because no limit counts files there, and they would fill the memory.
        *("--remount-ro", "/dev"),
    ]


def shut(environment: Mapping[str, str]) -> list[str]:
    """Return bwrap with the options of every sandbox: namespaces of its own for everything, no capability, /usr, and
    only this environment in addition to the usual variables."""
    kinds = ("user", "pid", "ipc", "net", "uts")
    usual = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
    return [
        "bwrap",
        *(f"--unshare-{kind}" for kind in kinds),
        # As its first process. bwrap's own first process would be left for the machine's init to bury.
        *("--as-pid-1", "--unshare-cgroup-try", "--new-session", "--cap-drop", "ALL", "--clearenv"),
        *(word for name, value in {**usual, **environment}.items() for word in ("--setenv", name, value)),
        *("--ro-bind", "/usr", "/usr"),
        *_shortcuts(),
    ]


@lru_cache(maxsize=1)
def _doors() -> tuple[str, ...]:
    """Return the other options: the first combination that works here.

    Namespaces inside the sandbox, the largest part of the kernel that a program could attack, are forbidden if bwrap
    can do that (from 0.8.0 on). In a container that hides parts of its /proc, no other one can be made; then there is
    none.
    """
    proc, no_more = ("--proc", "/proc"), ("--disable-userns",)
    for found in ((*no_more, *proc), proc, no_more, ()):
        options = (*found, "--remount-ro", "/")
        process = start([*_walls(SandboxLimits(), ""), *options, "true"], (subprocess.DEVNULL,) * 3, ())
        if process.wait() == 0:
            return options
    return options


def _shortcuts() -> Iterator[str]:
    """Yield options for /bin, /lib and the like: links into /usr on most systems, directories on others."""
    for path in map(Path, ("/bin", "/sbin", "/lib", "/lib32", "/lib64")):
        if path.is_symlink():
            yield from ("--symlink", os.readlink(path), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))


@lru_cache(maxsize=8)
def _prefixes(python: str) -> tuple[str, ...]:
    """Return the directories outside /usr that the named interpreter needs. Raises TaskError if it does not run."""
    if not python:
        return ()
    ask = "import sys; print(sys.prefix); print(sys.base_prefix)"
    try:
        done = subprocess.run([python, "-I", "-c", ask], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise TaskError(f"python={python} does not run: {error}. Name an interpreter, or leave it out.") from error
    return tuple(prefix for prefix in dict.fromkeys(done.stdout.split("\n")) if prefix and prefix != "/usr")


def _launched(python: str, bounds: SandboxLimits, descriptors: Sequence[int]) -> list[str]:
    """Return the interpreter with the launcher. The launcher defines the order of descriptors and limits."""
    limits = (
        bounds.memory_mb * MB,
        math.ceil(bounds.time_s) + 1,
        bounds.processes,
        bounds.open_files,
        bounds.output_mb * MB,
        0,
        STACK_MB * MB,
    )
    flags = ("-s", "-B", "-X", "utf8", "-c", LAUNCHER)
    return [python or SYSTEM_PYTHON, *flags, *map(str, (*descriptors, *limits))]


def start(
    command: Sequence[str], streams: Sequence[int], passed: Sequence[int], *, stays: bool = False
) -> subprocess.Popen[bytes]:
    """Start bwrap. With `stays` it keeps the user, and gets a session of its own, because Ctrl-C in the terminal is for
    the process that started it. Raises TaskError.
    """
    nobody = NOBODY_FROM + os.getpid() % NOBODY_COUNT if os.geteuid() == 0 and not stays else None
    stdin, stdout, stderr = streams
    try:
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=passed,
            cwd="/",
            env={"PATH": os.environ.get("PATH", os.defpath)},
            user=nobody,
            group=nobody,
            extra_groups=None if nobody is None else [],
            start_new_session=stays,
        )
    except OSError as error:
        raise TaskError(explain_failure(str(error))) from error


def _wait(process: subprocess.Popen[bytes], hear: int, named: int, time_s: float) -> tuple[bool, int | None]:
    """Return whether the program began, and its exit code, or None if its time was up. All of it has been killed."""
    pidfd = os.pidfd_open(process.pid)
    try:
        began = _is_readable(hear, START_S) and os.read(hear, 1) == b"+"
        ended = _is_readable(pidfd, time_s if began else 1.0)
    finally:
        if process.poll() is None:
            end_first(os.pread(named, 4096, 0), pidfd)
        os.close(pidfd)
        process.kill()  # also kills all that may be left, because bwrap dies with its parent
        exit_code = process.wait()
    return began, exit_code if ended else None


def end_first(info: bytes, pidfd: int) -> None:
    """Kill the first process of the namespace, and so all of it. bwrap, which is `pidfd`, then buries it and ends.
    Killing bwrap itself would also end it, but would leave the burial to the machine's init, which many containers do
    not have. `info`: what bwrap wrote to its --info-fd."""
    try:
        os.kill(json.loads(info)["child-pid"], signal.SIGKILL)
    except (ValueError, KeyError, ProcessLookupError):
        return  # it has not started yet, or is ending
    _is_readable(pidfd, BURIAL_S)


def _is_readable(descriptor: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(math.ceil(timeout_s * 1000)))


@contextmanager
def open_nameless_file(content: bytes) -> Iterator[int]:
    """Open a file without a name that contains `content`, at its beginning."""
    descriptor = os.memfd_create("given", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    """Open a pipe, (read end, write end); the caller closes the latter."""
    hear, tell = os.pipe()
    try:
        yield hear, tell
    finally:
        os.close(hear)


def explain_failure(said: str) -> str:
    """Return why nothing can run, from bwrap's output, and what to do."""
    return (
        f"the sandbox cannot be started: {said}. bubblewrap needs user namespaces. If the kernel forbids them, run as "
        "root: sysctl -w kernel.unprivileged_userns_clone=1 (Debian), sysctl -w "
        "kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu). A container needs them allowed by its seccomp "
        "profile. Or compute rewards on another machine: [[verifiers.machine]]. Nothing runs without the sandbox."
    )
