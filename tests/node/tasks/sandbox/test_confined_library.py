"""Try for real what a text must not be able to do in a library that executes it, or leave to the next text.

The library here is `eval` itself. On a machine where bubblewrap cannot be had, these tests fail: skipping them would
say that all is well.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.tasks.api.interface import TaskError
from node.tasks.sandbox import bubblewrap as sandbox
from node.tasks.sandbox import confined_library as confined
from node.tasks.sandbox.confined_library import Confined
from node.tasks.sandbox.seccomp import FORKS, MACHINES, fork_filter

EVAL = """
def load():
    pass

def prepare(topic):
    if topic == "broken":
        raise KeyError("no such data set")
    def judge(said):
        space = {"topic": topic}
        exec(said, space)
        return space.get("answer")

    return judge
"""

ATTEMPT = """
def tried(do):
    try:
        do()
    except BaseException as error:
        return type(error).__name__
    return "done"
"""


@pytest.fixture(scope="module")
def inside() -> Iterator[Confined]:
    process = Confined(EVAL, "eval", limit_s=3)
    yield process
    process.close()


def test_a_text_is_judged(inside: Confined) -> None:
    assert inside.ask("about", "answer = topic") == "about"
    assert inside.ask(None, "answer = 0.5") == 0.5
    assert inside.ask(None, "answer = 'é\\ud800'") == "é\ud800"


@pytest.mark.parametrize(
    "said",
    [
        "1/0",
        "raise SystemExit",
        "import os; os._exit(0)",
        "answer = object()",
        "answer = 'x' * 100",
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        "answer = [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]",
        "import os\nfor number in range(3, 64):\n  try: os.write(number, b'{')\n  except OSError: pass\nos._exit(0)",
        "while True: pass",
        "10 ** 10 ** 10",
        "held = []\nwhile True: held.append(bytearray(1 << 24))",
    ],
)
def test_what_fails_has_no_answer_and_the_next_text_has_one(inside: Confined, said: str) -> None:
    inside.require()
    pid = inside.pid
    assert inside.ask(None, said) is None
    assert inside.ask(None, "answer = 1") == 1
    assert inside.pid == pid, "in the same sandbox"


def test_it_cannot_write(inside: Confined, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    said = f"""{ATTEMPT}
import os
places = ({str(tmp_path)!r}, "/", "/tmp", "/usr", "/dev", "/dev/shm", "/etc", {os.getcwd()!r},
    os.path.dirname(os.__file__))
answer = sorted({{tried(lambda: open(place + "/x", "w").write("x")) for place in places}}
    | {{tried(lambda: os.mkdir(place + "/y")) for place in places}})
"""
    assert set(inside.ask(None, said)) <= {"OSError", "FileNotFoundError", "PermissionError"}  # type: ignore[call-overload]
    assert list(tmp_path.iterdir()) == []
    held = "import os; place = os.memfd_create('x'); answer = tried(lambda: os.write(place, b'x'))"
    assert inside.ask(None, ATTEMPT + held) == "OSError", "nor fill memory that no limit counts"


def test_it_cannot_read_what_is_not_a_library(inside: Confined, tmp_path: Path) -> None:
    secret = tmp_path / "node.key"
    secret.write_text("a secret")
    for place in (secret, Path("/etc/passwd"), Path("/proc/1/environ"), Path(confined.__file__)):
        said = f"{ATTEMPT}answer = tried(lambda: open({str(place)!r}).read())"
        assert inside.ask(None, said) == "FileNotFoundError", place


def test_it_has_no_environment(inside: Confined, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "a secret")
    inside.close()
    assert inside.ask(None, "import os; answer = 'a secret' in str(dict(os.environ))") is False
    names = {"HOME", "LANG", "LC_CTYPE", "PATH", "PWD", "PYTHONHASHSEED", "SHLVL", "_"}
    known = names | set(confined.ALONE) | set(confined.QUICK)
    assert inside.ask(None, f"import os; answer = set(os.environ) <= {known}") is True


def test_it_has_no_network(inside: Confined) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0)
        port = listening.getsockname()[1]
        connect = f"import socket; socket.create_connection(('127.0.0.1', {port}), timeout=0.5)"
        assert inside.ask(None, f"{ATTEMPT}answer = tried(lambda: exec({connect!r}))") == "ConnectionRefusedError"
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert inside.ask(None, "import socket; answer = [name for _, name in socket.if_nameindex()]") in (["lo"], [])


def test_it_starts_nothing(inside: Confined) -> None:
    for what in (
        "os.fork()",
        "os.posix_spawn(sys.executable, [sys.executable], {})",
        "subprocess.run(['/usr/bin/true'])",
        "threading.Thread(target=print).start()",
    ):
        said = f"{ATTEMPT}import os, subprocess, sys, threading\nanswer = tried(lambda: {what})"
        assert inside.ask(None, said) in ("PermissionError", "RuntimeError"), what


def test_it_has_no_rights(inside: Confined) -> None:
    said = f"""{ATTEMPT}
import os, resource
answer = [tried(lambda: os.setgroups([])), tried(lambda: os.chroot("/")), tried(lambda: os.nice(-1))]
"""
    assert set(inside.ask(None, said)) == {"PermissionError"}  # type: ignore[call-overload]
    said = "import resource as r; r.setrlimit(r.RLIMIT_CPU, (100, 100))"
    assert inside.ask(None, f"{ATTEMPT}answer = tried(lambda: exec({said!r}))") == "ValueError"


REACH = f"""{ATTEMPT}
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
for number in set(signal.Signals):
    tried(lambda: os.kill(1, number))
tried(lambda: os.kill(-1, signal.SIGKILL))
memory = ctypes.create_string_buffer(8)
class Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
ours, theirs = Part(ctypes.addressof(memory), 8), Part(id(None), 8)
wrote = libc.process_vm_writev(1, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
traced = libc.ptrace(16, 1, None, None)
opened = os.pidfd_open(1)
taken = [libc.syscall(438, opened, number, 0) for number in range(16)]
answer = [wrote, traced, max(taken), tried(lambda: open("/proc/1/mem", "r+b"))]
"""

STARVE = f"""{ATTEMPT}
import os, resource
made = [
    tried(lambda: resource.prlimit(1, resource.RLIMIT_CPU, (1, 1))),
    tried(lambda: resource.prlimit(1, resource.RLIMIT_AS, (1 << 20, 1 << 20))),
    tried(lambda: os.setpriority(os.PRIO_PROCESS, 1, 19)),
    tried(lambda: os.sched_setaffinity(1, [])),
    tried(lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))),
]
answer = [one for one in made if one != "PermissionError"]
"""


def test_it_cannot_starve_the_process_that_judges_the_next(inside: Confined) -> None:
    inside.require()
    pid = inside.pid
    assert inside.ask(None, STARVE) == []
    assert [inside.ask(None, f"answer = sum(range({n}))") for n in (3, 4, 5)] == [3, 6, 10]
    assert inside.pid == pid


def test_it_cannot_reach_the_process_that_judges_the_next(inside: Confined) -> None:
    inside.require()
    pid = inside.pid
    assert inside.ask(None, REACH) == [-1, -1, -1, "FileNotFoundError"]
    assert inside.ask(None, "answer = 1") == 1
    assert inside.pid == pid


def test_what_it_changes_is_gone_with_it(inside: Confined) -> None:
    said = "import builtins, json, os, sys; builtins.exec = json.dumps = None; os.chdir('/usr'); sys.path.clear()"
    inside.ask(None, said)
    assert inside.ask(None, "import json, os, sys; answer = [len(sys.path) > 2, os.getcwd()]") == [True, "/"]


def test_it_holds_nothing_of_this_package_nor_where_it_was_started(inside: Confined) -> None:
    said = f"{ATTEMPT}answer = tried(lambda: __import__('node'))"
    assert inside.ask(None, said) == "ModuleNotFoundError"
    places = ["/proc", "/sys", "/var", "/run", "/etc/passwd", str(Path(confined.__file__).parent)]
    assert inside.ask(None, f"import os; answer = [one for one in {places} if os.path.exists(one)]") == []


def test_a_topic_that_it_cannot_prepare_for_is_told(inside: Confined) -> None:
    with pytest.raises(TaskError, match="eval fails at what the task asks of it: KeyError: 'no such data set'"):
        inside.ask("broken", "answer = 1")
    assert inside.ask(None, "answer = 1") == 1


def test_it_outlives_the_thread_that_started_it(inside: Confined) -> None:
    inside.close()
    thread = threading.Thread(target=inside.require)
    thread.start()
    thread.join()
    pid = inside.pid
    assert inside.ask(None, "answer = 1") == 1
    assert inside.pid == pid


def test_a_sandbox_that_was_ended_is_started_again(inside: Confined) -> None:
    inside.require()
    assert inside.pid is not None
    os.kill(inside.pid, signal.SIGKILL)
    assert inside.ask(None, "answer = 1") in (1, None), "the question under way may be lost"
    assert inside.ask(None, "answer = 1") == 1


ASKS = f"""
import sys
from node.tasks.sandbox.confined_library import Confined
asks = Confined({EVAL!r}, "eval", limit_s=3)
asks.require()
print(asks.pid, flush=True)
sys.stdin.read()
"""


def test_it_ends_with_the_process_that_asks_however_that_ends() -> None:
    asks = subprocess.Popen([sys.executable, "-c", ASKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert asks.stdout is not None
    pidfd = os.pidfd_open(int(asks.stdout.readline()))
    try:
        asks.kill()
        asks.communicate()
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        assert poll.poll(60_000), "it has ended"
    finally:
        os.close(pidfd)


def test_a_library_that_cannot_be_imported_is_told() -> None:
    with pytest.raises(TaskError, match=r"eval cannot be started; its output: (?s:.*)no antlr here"):
        Confined("raise ImportError('no antlr here')", "eval").require()


def test_one_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined, "WALL_S", 0.5)
    with pytest.raises(TaskError, match="its output: nothing"):
        Confined("import time; time.sleep(600)", "eval").ask(None, "")


def test_without_bubblewrap_nothing_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
    asked = Confined(EVAL, "eval")
    wanted = r"eval may execute what it reads, so it is only run in bubblewrap, .* Run: sudo apt-get install"
    with pytest.raises(TaskError, match=wanted):
        asked.require()
    with pytest.raises(TaskError, match=wanted):
        asked.ask(None, "answer = 1")


def test_a_sandbox_that_a_kernel_withholds_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined, "_seen", lambda: iter(["/nowhere"]))
    with pytest.raises(TaskError, match=r"the sandbox cannot be started: bwrap: .*/nowhere.*Nothing runs without"):
        Confined(EVAL, "eval").require()


def test_each_machine_has_a_filter_of_its_own() -> None:
    assert len({fork_filter(machine) for machine in MACHINES}) == len(MACHINES)
    assert set(FORKS) <= set(MACHINES)
    with pytest.raises(TaskError, match=r"on this machine \(vax\)"):
        fork_filter("vax")
