"""Run a real child process that answers, refuses, stalls, crashes and refuses to end on command."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from learner.trainer_api.exit_reasons import LINE_CHARS
from node.processes.child import open_child
from node.processes.child_process import ChildProcess
from node.processes.event_log import child_events
from node.processes.memory_limit import measure_memory
from node.processes.outcomes import (
    ChildAbandoned,
    ChildCrashed,
    ChildDied,
    ChildEvent,
    ChildGaveUp,
    ChildRefused,
    ChildRestarting,
    ChildSaid,
    ChildStarted,
)
from node.processes.spec import ChildSpec, RestartLimits, child_environment, restart_delay
from node.runtime.events import EventLog, Field
from node.ui.live_view import Role, ViewState
from node.ui.view_updates import follow
from protocol.core.pipe import Arrays, Header
from tests.support.paths import ROOT

CHILD = """
import mmap, os, signal, subprocess, sys, time
from protocol.core.pipe import PREFIX, decode_frame, encode_frame, frame_sizes

def send(header, arrays=None):
    left = memoryview(encode_frame(header, arrays))
    while left:  # without a buffer, since `release` may interrupt it between two frames
        left = left[os.write(1, left):]

def read():
    prefix = sys.stdin.buffer.read(PREFIX.size)
    if not prefix:
        sys.exit(0)
    head, body = frame_sizes(prefix)
    return decode_frame(sys.stdin.buffer.read(head), sys.stdin.buffer.read(body))

def release(*signal):
    for id in reversed(held):  # the newest first
        send({"id": id, "ok": True, "was": id})
    held.clear()

held = []
signal.signal(signal.SIGUSR1, release)
send({"event": "ready"})
while True:
    header, arrays = read()
    match header.pop("op"):
        case "echo":
            send({**header, "ok": True}, arrays)
        case "hold":
            held.append(header["id"])
            send({"event": "held", "held": len(held)})
        case "mutter":
            for word in range(header["words"]):
                time.sleep(header["every_s"])
                send({"event": "word", "word": word})
            send({"id": header["id"], "ok": True})
        case "release":
            release()
            send({"id": header["id"], "ok": True})
        case "refuse":
            send({"id": header["id"], "ok": False, "kind": "bad_request", "error": "no such thing"})
        case "cancel":
            send({"event": "cancelled", "target": header["target"]})
        case "state":
            send({"id": header["id"], "ok": True, "pid": os.getpid(), "session": os.getsid(0), "nice": os.nice(0),
                  "threads": os.environ["OMP_NUM_THREADS"], "offline": os.environ["HF_HUB_OFFLINE"]})
        case "leave":  # a file and a link among its temporary files, as a kill leaves them
            import tempfile
            place = tempfile.mkdtemp()
            os.symlink(header["outside"], os.path.join(place, "link"))
            open(os.path.join(place, "large"), "w").write("x" * 1000)
            send({"id": header["id"], "ok": True, "place": place})
        case "fail":
            raise RuntimeError("the tensor is sad")
        case "babble":
            print("not a frame at all, but long enough to be read as one", flush=True)
        case "hoard":  # pages that are filled, as weights are
            hoarded = b"x" * header["size"]
            send({"id": header["id"], "ok": True})
        case "map":  # a file's pages, as those of weights that are read
            file = open(header["path"], "rb")
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            send({"id": header["id"], "ok": True, "sum": sum(mapped[:: mmap.PAGESIZE])})
        case "breed":  # a process below it that hoards
            filled = f"hoarded = b'x' * {header['size']}; print(flush=True); input()"
            below = subprocess.Popen([sys.executable, "-c", filled], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            below.stdout.readline()
            send({"id": header["id"], "ok": True})
        case "cling":  # neither the end of stdin nor SIGTERM ends it
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            send({"id": header["id"], "ok": True})
            while True:
                time.sleep(1)
"""


class Recorder:
    """Records the events and frames that a child's owner gets."""

    def __init__(self) -> None:
        self.events: list[ChildEvent] = []
        self.frames: list[Header] = []
        self._sent, self._received = trio.open_memory_channel[str](100)

    def on_event(self, event: ChildEvent) -> None:
        self.events.append(event)

    def on_frame(self, header: Header, arrays: Arrays) -> None:
        self.frames.append(header)
        self._sent.send_nowait(header["event"])

    async def wait_frame(self, event: str) -> None:
        assert await self._received.receive() == event

    def lifecycle(self) -> list[type[ChildEvent]]:
        return [type(event) for event in self.events if not isinstance(event, ChildSaid)]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def make_spec(tmp_path: Path) -> Callable[..., ChildSpec]:
    script = tmp_path / "child.py"
    script.write_text(CHILD)

    def make(**changes: object) -> ChildSpec:
        settings = {"restarts": RestartLimits(first_delay_s=0.0), "env": {"PYTHONPATH": str(ROOT)}, **changes}
        return ChildSpec(name="test", argv=(sys.executable, str(script)), **settings)  # type: ignore[arg-type]

    return make


Make = Callable[..., ChildSpec]


async def test_arrays_come_back(make_spec: Make) -> None:
    async with open_child(make_spec()) as child:
        sent: Arrays = {
            "a": np.arange(6, dtype=np.int32).reshape(2, 3),
            "big": np.zeros(300_000),
            "none": np.zeros(0, np.uint64),
        }
        header, arrays = await child.call("echo", {"x": [1, "two"]}, sent)
        assert header == {"x": [1, "two"]}
        assert {name: a.tolist() for name, a in arrays.items()} == {name: a.tolist() for name, a in sent.items()}


async def test_replies_find_their_callers_in_any_order(make_spec: Make, recorder: Recorder) -> None:
    order: list[int] = []
    async with open_child(make_spec(), on_frame=recorder.on_frame) as child, trio.open_nursery() as nursery:

        async def hold() -> None:
            header, _ = await child.call("hold")
            order.append(header["was"])

        for _ in range(3):
            nursery.start_soon(hold)
            await recorder.wait_frame("held")
        await child.call("release")
    assert order == sorted(order, reverse=True)
    assert len(order) == 3


async def test_a_refusal_says_why_and_leaves_the_child_in_service(make_spec: Make) -> None:
    async with open_child(make_spec()) as child:
        with pytest.raises(ChildRefused, match="no such thing") as refused:
            await child.call("refuse")
        assert refused.value.kind == "bad_request"
        assert (await child.call("echo", {"still": "here"}))[0] == {"still": "here"}


async def test_a_child_that_owes_a_reply_and_is_silent_hangs_and_is_started_again(make_spec: Make) -> None:
    async with open_child(make_spec(timeout_s=1.0)) as child:
        with pytest.raises(ChildCrashed, match="sent nothing for 1 s: it hangs"):
            await child.call("hold")
        assert (await child.call("echo", {"still": "here"}))[0] == {"still": "here"}


async def test_a_child_that_says_something_or_owes_nothing_does_not_hang(make_spec: Make) -> None:
    async with open_child(make_spec(timeout_s=2.0)) as busy, open_child(make_spec(timeout_s=0.5)) as idle:
        pids = busy.pid, idle.pid
        await busy.call("mutter", {"words": 12, "every_s": 0.25})
        await idle.call("mutter", {"words": 1, "every_s": 1.0}, timeout_s=60.0)  # it was allowed more
        assert (busy.pid, idle.pid) == pids


async def test_a_cancelled_call_leaves_the_pipe_sound(make_spec: Make, recorder: Recorder) -> None:
    async with open_child(make_spec(cancel_op="cancel"), on_frame=recorder.on_frame) as child:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child.call, "hold")
            await recorder.wait_frame("held")
            nursery.cancel_scope.cancel()
        await recorder.wait_frame("cancelled")
        assert recorder.frames[-1]["target"] == 0
        await child.call("release")  # the late reply comes just before this one's
        assert (await child.call("echo", {"still": "here"}))[0] == {"still": "here"}


async def test_a_call_cancelled_in_mid_write_leaves_the_pipe_sound(make_spec: Make, recorder: Recorder) -> None:
    async with open_child(make_spec()) as child:
        large = {"zeros": np.zeros(1_000_000)}
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(child.call, "echo", None, large)
            await trio.testing.wait_all_tasks_blocked()  # 8 MB do not fit the pipe: one is being written, two wait
            nursery.cancel_scope.cancel()
        assert (await child.call("echo", {"still": "here"}))[0] == {"still": "here"}


async def test_calls_in_flight_are_bounded_and_a_cancelled_one_counts_until_it_is_answered(
    make_spec: Make, recorder: Recorder
) -> None:
    async with open_child(make_spec(max_in_flight=1), on_frame=recorder.on_frame) as child:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child.call, "hold")
            await recorder.wait_frame("held")
            nursery.cancel_scope.cancel()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child.call, "hold")
            await trio.testing.wait_all_tasks_blocked()
            assert child.pid is not None
            os.kill(child.pid, signal.SIGUSR1)  # answers the first, and only then may the second be sent
            await recorder.wait_frame("held")
            os.kill(child.pid, signal.SIGUSR1)
    assert [frame["held"] for frame in recorder.frames] == [1, 1]


async def test_a_crash_fails_calls_in_flight_quotes_stderr_and_is_followed_by_a_restart(
    make_spec: Make, recorder: Recorder
) -> None:
    spec = make_spec()
    async with open_child(spec, on_event=recorder.on_event, on_frame=recorder.on_frame) as child:
        crashes: list[ChildCrashed] = []

        async def crash(op: str) -> None:
            with pytest.raises(ChildCrashed, match="the tensor is sad") as crashed:
                await child.call(op)
            crashes.append(crashed.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(crash, "hold")
            await recorder.wait_frame("held")
            nursery.start_soon(crash, "fail")
        assert [crash.exit.returncode for crash in crashes] == [1, 1]
        assert "exit code 1" in str(crashes[0])
        assert (await child.call("echo", {"born": "again"}))[0] == {"born": "again"}
    assert recorder.lifecycle() == [ChildStarted, ChildDied, ChildRestarting, ChildStarted]
    said = [event.line for event in recorder.events if isinstance(event, ChildSaid)]
    assert said[-1] == "RuntimeError: the tensor is sad"


DOOMED = """
import os, signal, sys
from protocol.core.pipe import encode_frame
sys.stdout.buffer.write(encode_frame({"event": "ready"}))
sys.stdout.buffer.flush()
sys.stdin.buffer.read(1)
for line in eval(sys.argv[1]):
    print(line, file=sys.stderr, flush=True)
code = int(sys.argv[2])
os.kill(os.getpid(), -code) if code < 0 else os._exit(code)
"""


@pytest.mark.parametrize(
    ("lines", "code", "told", "words"),
    [
        (["a", "", "b", "c", "d"], 3, "ended with exit code 3", ["b", "c", "d"]),
        ([], 3, "ended with exit code 3", []),
        (["oh"], -signal.SIGSEGV, "was killed by SIGSEGV", ["oh"]),
        (["oh"], -40, "was killed by signal 40", ["oh"]),
        (["x", "\x1b]0;title\x07\x1b[2Jsad"], 1, "ended with exit code 1", ["x", "\\x1b]0;title\\x07\\x1b[2Jsad"]),
        (["a", "doomed: rank 1 ended", "doomed: x"], 1, "ended with exit code 1: rank 1 ended", ["x"]),
        (["doomed: rank 1 ended", "a"], 1, "ended with exit code 1", ["doomed: rank 1 ended", "a"]),
        (["y" * 3000], 1, "ended with exit code 1", ["y" * (LINE_CHARS - 1) + "…"]),
        (["doomed: " + "z" * 3000] * 9, 1, f"ended with exit code 1: {'z' * (LINE_CHARS - 1)}…",
         ["z" * (LINE_CHARS - 1) + "…"] * 3),
    ],
)  # fmt: skip
async def test_whoever_watches_is_told_how_a_child_ended_and_its_last_words(
    tmp_path: Path, lines: list[str], code: int, told: str, words: list[str]
) -> None:
    script = tmp_path / "doomed.py"
    script.write_text(DOOMED)
    argv = (sys.executable, str(script), repr(lines), str(code))
    spec = ChildSpec(name="doomed", argv=argv, env={"PYTHONPATH": str(ROOT)}, restarts=RestartLimits(max_restarts=0))
    state, events = ViewState(role=Role.LEARNER), EventLog()
    logged: list[tuple[Field, Field]] = []
    events.listen(
        lambda name, fields: logged.append((fields["reason"], fields["said"])) if "reason" in fields else None
    )
    follow(state, events)
    async with open_child(spec, on_event=child_events(events, "doomed")) as child:
        with pytest.raises(ChildCrashed) as crash:
            await child.call("echo")
        with pytest.raises(ChildGaveUp) as gave_up:
            await child.call("echo")
    assert logged == [(told, "\n".join(words))]
    shown = [notice.text[:200] for notice in state.notices]
    assert shown[: 1 + len(words)] == [f"the doomed process {told}"[:200], *(f"doomed: {word}"[:200] for word in words)]
    first = f"the doomed process {told}" + (f"; its last words: {' / '.join(words)}" if words else "")
    assert str(crash.value).splitlines()[0] == str(gave_up.value).splitlines()[0] == first


async def test_a_child_that_prints_on_stdout_is_ended_with_a_hint(make_spec: Make) -> None:
    async with open_child(make_spec()) as child:
        with pytest.raises(ChildCrashed, match="printing on its stdout"):
            await child.call("babble")


WAITING = """
import sys, time
from protocol.core.pipe import encode_frame
def say(**header):
    sys.stdout.buffer.write(encode_frame(header))
    sys.stdout.buffer.flush()
say(event="waiting", text="rank 1 of 2 has not come")
if sys.argv[1] == "comes":
    say(event="ready")
    say(event="waiting", text="after that it is an event like others")
sys.stdin.buffer.read()
"""


@pytest.mark.parametrize("comes", [True, False])
async def test_what_a_child_waits_for_is_told_and_is_why_it_was_not_ready(
    tmp_path: Path, recorder: Recorder, mock_clock: trio.testing.MockClock, comes: bool
) -> None:
    (tmp_path / "waiting.py").write_text(WAITING)
    argv = (sys.executable, str(tmp_path / "waiting.py"), "comes" if comes else "never")
    spec = ChildSpec(name="trainer", argv=argv, env={"PYTHONPATH": str(ROOT)}, ready_timeout_s=60.0)

    async def open_it() -> None:
        async with open_child(spec, on_frame=recorder.on_frame):
            if comes:
                await recorder.wait_frame("waiting")

    async with trio.open_nursery() as nursery:

        async def expect() -> None:
            if comes:
                await open_it()
                return
            with pytest.raises(ChildCrashed) as crash:
                await open_it()
            assert crash.value.exit.predicate == "was ended: not ready within 60 s: rank 1 of 2 has not come"

        nursery.start_soon(expect)
        await recorder.wait_frame("waiting")
        if not comes:
            mock_clock.jump(61)
    assert recorder.frames[0]["text"] == "rank 1 of 2 has not come"


LINGERING = """
import os, sys, time
from protocol.core.pipe import encode_frame
os.write(1, encode_frame({"event": "ready"}))
sys.stdin.buffer.read(1)
print("RuntimeError: the tensor is sad", file=sys.stderr, flush=True)
os.close(1)  # as an interpreter does that an exception ends, and that waits for something then
sys.stdin.buffer.read()
time.sleep(600)
"""


async def test_our_own_signal_is_not_told_as_what_ended_a_child_that_had_gone_away(
    tmp_path: Path, mock_clock: trio.testing.MockClock, recorder: Recorder
) -> None:
    (tmp_path / "lingering.py").write_text(LINGERING)
    argv = (sys.executable, str(tmp_path / "lingering.py"))
    spec = ChildSpec(name="engine", argv=argv, env={"PYTHONPATH": str(ROOT)}, restarts=RestartLimits(max_restarts=0))
    async with open_child(spec, on_event=recorder.on_event) as child:

        async def call() -> None:
            with pytest.raises(ChildCrashed) as crash:
                await child.call("echo")
            assert str(crash.value).splitlines()[0] == (
                "the engine process was ended: it closed its pipe, and had not ended 10 s later; its last words: "
                "RuntimeError: the tensor is sad"
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            while not any(isinstance(event, ChildSaid) for event in recorder.events):
                await trio.sleep(0)
            mock_clock.rate = 20.0


async def test_every_life_is_prepared_before_others_may_call(make_spec: Make) -> None:
    prepared: list[int | None] = []

    async def prepare(caller: ChildProcess) -> None:
        header, _ = await caller.call("state")
        prepared.append(header["pid"])

    async with open_child(make_spec(), prepare=prepare) as child:
        assert prepared == [child.pid]
        with pytest.raises(ChildCrashed):
            await child.call("fail")
        header, _ = await child.call("state")
        assert prepared[1:] == [header["pid"]] == [child.pid]


async def test_it_gives_up_on_a_child_that_keeps_crashing(make_spec: Make, recorder: Recorder) -> None:
    limits = RestartLimits(first_delay_s=0.0, max_restarts=1)
    async with open_child(make_spec(restarts=limits), on_event=recorder.on_event) as child:
        for _ in range(2):
            with pytest.raises(ChildCrashed):
                await child.call("fail")
        for _ in range(2):
            with pytest.raises(ChildGaveUp, match="the tensor is sad") as gave_up:
                await child.call("echo")
        assert "restarted 1 times" in str(gave_up.value)
    assert recorder.lifecycle()[-2:] == [ChildDied, ChildAbandoned]


async def test_a_child_that_never_starts_is_not_tried_again(make_spec: Make, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import a_module_that_is_not_there")
    spec = ChildSpec(name="broken", argv=(sys.executable, str(broken)))
    with pytest.raises(ChildCrashed, match="a_module_that_is_not_there"):
        async with open_child(spec):
            raise AssertionError("it started")


async def test_a_child_that_is_never_ready_is_ended(tmp_path: Path) -> None:
    spec = ChildSpec(name="slow", argv=(sys.executable, "-c", "input()"), ready_timeout_s=0.0)
    with pytest.raises(ChildCrashed, match="not ready within"):
        async with open_child(spec):
            raise AssertionError("it started")


async def test_the_bodys_exception_comes_out_as_it_is(make_spec: Make) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with open_child(make_spec()):
            raise KeyError("mine")


async def test_it_runs_in_a_session_of_its_own_with_the_settings_it_was_given(make_spec: Make) -> None:
    async with open_child(make_spec(threads=3, nice=7)) as child:
        state, _ = await child.call("state")
    assert state["session"] == state["pid"] != os.getsid(0)
    assert (state["threads"], state["offline"]) == ("3", "1")
    assert state["nice"] == max(7, os.nice(0))


def test_the_specs_environment_wins() -> None:
    spec = ChildSpec(name="x", argv=("x",), threads=2, env={"OMP_NUM_THREADS": "5"})
    environment = child_environment(spec, {"HF_HUB_OFFLINE": "0", "HOME": "/root"})
    assert environment["OMP_NUM_THREADS"] == "5"
    assert environment["MKL_NUM_THREADS"] == "2"
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["HOME"] == "/root"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "weights").write_text("somebody's")
    return tmp_path / "outside"


async def test_what_a_killed_child_left_of_its_temporary_files_is_gone_before_the_next_starts(
    make_spec: Make, tmp_path: Path, outside: Path
) -> None:
    place = tmp_path / "state" / "tmp" / "test"
    async with open_child(make_spec(scratch=place)) as child:
        assert list(place.iterdir()) == []
        left, _ = await child.call("leave", {"outside": str(outside)})
        assert Path(left["place"]).parent == place, "in the state directory, and not in the system's"
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(ChildCrashed):
            await child.call("hold")
        await child.call("state")
        assert list(place.iterdir()) == [], "the next one is here"
    assert not place.exists()
    assert (outside / "weights").read_text() == "somebody's"


async def test_what_a_killed_node_left_of_its_childs_temporary_files_is_gone_at_the_next_start(
    make_spec: Make, tmp_path: Path, outside: Path
) -> None:
    place = tmp_path / "state" / "tmp" / "test"
    (place / "of-before" / "deeper").mkdir(parents=True)
    (place / "of-before" / "deeper" / "large").write_text("x" * 1000)
    (place / "link").symlink_to(outside)
    async with open_child(make_spec(scratch=place)) as child:
        assert list(place.iterdir()) == []
        assert child.pid is not None
    assert (outside / "weights").read_text() == "somebody's"


async def test_a_child_whose_temporary_files_have_no_place_says_so(make_spec: Make, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(ChildCrashed, match=r"could not start: .*state"):
        async with open_child(make_spec(scratch=tmp_path / "state" / "tmp")):
            raise AssertionError("it started")


async def test_leaving_the_scope_ends_a_child_that_clings_to_life(make_spec: Make) -> None:
    async with open_child(make_spec(grace_s=0.0)) as child:
        await child.call("cling")
        assert child.pid is not None
        ended = os.pidfd_open(child.pid)
    assert _has_ended(ended)


async def test_a_child_in_the_middle_of_a_call_ends_with_its_scope(make_spec: Make, recorder: Recorder) -> None:
    spec = make_spec()
    # The caller lives outside the child's scope, so it is told instead of cancelled.
    async with trio.open_nursery() as callers:  # noqa: SIM117
        async with open_child(spec, on_event=recorder.on_event, on_frame=recorder.on_frame) as child:

            async def outlive() -> None:
                with pytest.raises(ChildCrashed):
                    await child.call("hold")

            callers.start_soon(outlive)
            await recorder.wait_frame("held")
            assert child.pid is not None
            ended = os.pidfd_open(child.pid)
    assert _has_ended(ended)
    assert recorder.lifecycle() == [ChildStarted], "a wanted end is no crash"


HOARD_BYTES = 400_000_000
"""More than a python with numpy holds by far."""


@pytest.mark.parametrize("how", ["hoard", "breed"])
async def test_who_holds_more_memory_than_it_may_is_ended_and_started_again(
    make_spec: Make, recorder: Recorder, how: str
) -> None:
    spec = make_spec(memory_bytes=HOARD_BYTES // 2)
    async with open_child(spec, on_event=recorder.on_event) as child:
        first = child.pid
        await child.call("echo")
        assert first is not None
        assert measure_memory(first, HOARD_BYTES) < HOARD_BYTES // 2, "or the limit would be none"

        async def hoard_and_wait() -> None:
            await child.call(how, {"size": HOARD_BYTES})
            await child.call("hold")

        with pytest.raises(ChildCrashed) as crash:
            await hoard_and_wait()
        said = str(crash.value).splitlines()[0]
        assert re.fullmatch(
            r"the test process was ended: it held 0\.[2-6]\d GB of memory, more than its limit of 0\.20 GB", said
        )
        header, _ = await child.call("state")
        assert header["pid"] != first
    assert recorder.lifecycle() == [ChildStarted, ChildDied, ChildRestarting, ChildStarted]


async def test_who_holds_no_more_than_it_may_is_left_alone(make_spec: Make, recorder: Recorder) -> None:
    """However often it is looked at: here, as often as the watch would in a while."""
    async with open_child(make_spec(memory_bytes=2 * HOARD_BYTES), on_event=recorder.on_event) as child:
        await child.call("hoard", {"size": HOARD_BYTES})
        assert child.pid is not None
        held = measure_memory(child.pid, 2 * HOARD_BYTES)
        assert HOARD_BYTES < held < 2 * HOARD_BYTES
        await child.call("echo")
    assert recorder.lifecycle() == [ChildStarted]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says whose pages they are")
async def test_pages_of_files_do_not_count(make_spec: Make, tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("mapped")
    if subprocess.check_output(["stat", "-f", "-c", "%T", directory], text=True).strip() in ("tmpfs", "ramfs"):
        pytest.skip("files in memory are memory")
    with (directory / "weights").open("wb") as file:
        file.truncate(HOARD_BYTES)
    async with open_child(make_spec(memory_bytes=HOARD_BYTES // 2)) as child:
        await child.call("map", {"path": str(directory / "weights")})
        assert child.pid is not None
        assert psutil.Process(child.pid).memory_info().rss > HOARD_BYTES
        assert measure_memory(child.pid, HOARD_BYTES) < HOARD_BYTES // 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can be told whom to end first")
@pytest.mark.parametrize(("yields", "expected"), [(True, "500"), (False, "0")])
async def test_who_yields_its_memory_is_what_the_kernel_ends_first(
    make_spec: Make, yields: bool, expected: str
) -> None:
    async with open_child(make_spec(yields_memory=yields)) as child:
        assert Path(f"/proc/{child.pid}/oom_score_adj").read_text().strip() == expected


async def test_a_child_that_rests_is_gone_until_it_is_woken(make_spec: Make, recorder: Recorder) -> None:
    async with open_child(make_spec(), on_event=recorder.on_event, on_frame=recorder.on_frame) as child:
        header, _ = await child.call("state")
        ended = os.pidfd_open(header["pid"])
        told: list[str] = []

        async def hold() -> None:
            with pytest.raises(ChildCrashed):
                await child.call("hold")
            told.append("crashed")

        async def call() -> None:
            await child.call("echo")
            told.append("called")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold)
            await recorder.wait_frame("held")
            await child.rest()
            assert _has_ended(ended)
            assert child.pid is None
            await trio.testing.wait_all_tasks_blocked()
            assert told == ["crashed"]
            nursery.start_soon(call)
            await child.rest()
            async with open_child(make_spec()) as other:  # as long as it takes to start
                await other.call("echo")
            assert child.pid is None
            assert told == ["crashed"], "it waits"
            child.wake()
        assert told == ["crashed", "called"]
    assert recorder.lifecycle() == [ChildStarted, ChildStarted], "a rest is no crash"


async def test_a_child_that_is_told_to_rest_while_it_starts_again_does(
    make_spec: Make, recorder: Recorder, mock_clock: trio.testing.MockClock
) -> None:
    """Between its crash and the restart there is no process, and afterwards there is none either."""
    spec = make_spec(restarts=RestartLimits(first_delay_s=1000.0))
    async with open_child(spec, on_event=recorder.on_event) as child:
        with pytest.raises(ChildCrashed):
            await child.call("fail")
        await child.rest()
        mock_clock.jump(5000)
        await trio.testing.wait_all_tasks_blocked()
        assert child.pid is None
        child.wake()
        await child.call("echo")
    assert recorder.lifecycle() == [ChildStarted, ChildDied, ChildRestarting, ChildStarted]


async def test_a_child_that_is_told_to_rest_while_its_process_begins_does(make_spec: Make, recorder: Recorder) -> None:
    restarting = trio.Event()

    def on_event(event: ChildEvent) -> None:
        recorder.on_event(event)
        if isinstance(event, ChildRestarting):
            restarting.set()

    async with open_child(make_spec(), on_event=on_event) as child:
        with pytest.raises(ChildCrashed):
            await child.call("fail")
        await restarting.wait()
        for _ in range(3):  # by now a thread opens the process
            await trio.lowlevel.checkpoint()
        await child.rest()
        async with open_child(make_spec()) as other:  # as long as it takes to start
            await other.call("echo")
        assert child.pid is None
        assert recorder.lifecycle() == [ChildStarted, ChildDied, ChildRestarting]
        child.wake()
        await child.call("echo")


async def test_who_is_woken_as_soon_as_it_rests_has_not_crashed(
    make_spec: Make, recorder: Recorder, tmp_path: Path
) -> None:
    async with open_child(make_spec(scratch=tmp_path / "scratch"), on_event=recorder.on_event) as child:
        await child.rest()
        child.wake()
        await child.call("echo")
    assert recorder.lifecycle() == [ChildStarted, ChildStarted]


PARENT = """
import sys, trio
from node.processes.spec import ChildSpec
from node.processes.child import open_child

async def main():
    async with open_child(ChildSpec(name="test", argv=(sys.executable, sys.argv[1]))) as child:
        print(child.pid, flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


def test_a_child_does_not_outlive_a_node_that_was_killed(make_spec: Make) -> None:
    script = make_spec().argv[1]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    node = subprocess.Popen([sys.executable, "-c", PARENT, script], env=environment, stdout=subprocess.PIPE, text=True)
    with node:
        assert node.stdout is not None
        ended = os.pidfd_open(int(node.stdout.readline()))
        node.kill()
    assert select.select([ended], [], [], 30.0)[0], "the child is still there"
    os.close(ended)


def _has_ended(pidfd: int) -> bool:
    readable, _, _ = select.select([pidfd], [], [], 0)
    os.close(pidfd)
    return bool(readable)


class TestRestartDelay:
    def test_it_doubles_with_every_restart_in_the_window(self) -> None:
        limits = RestartLimits(first_delay_s=1.0, max_delay_s=5.0, max_restarts=5, window_s=100.0)
        assert [restart_delay(limits, [10.0] * n, now=20.0) for n in range(6)] == [1.0, 2.0, 4.0, 5.0, 5.0, None]

    def test_old_restarts_are_forgiven(self) -> None:
        limits = RestartLimits(first_delay_s=1.0, max_restarts=1, window_s=100.0)
        assert restart_delay(limits, [10.0], now=109.0) is None
        assert restart_delay(limits, [10.0], now=110.0) == 1.0

    @given(
        restarts=st.lists(st.floats(0, 1e6), max_size=50),
        now=st.floats(1e6, 2e6),
        max_restarts=st.integers(0, 60),
    )
    def test_it_is_bounded_and_gives_up_only_after_max_restarts(
        self, restarts: list[float], now: float, max_restarts: int
    ) -> None:
        limits = RestartLimits(max_restarts=max_restarts)
        delay = restart_delay(limits, restarts, now)
        recent = [at for at in restarts if now - at < limits.window_s]
        assert (delay is None) == (len(recent) >= max_restarts)
        assert delay is None or limits.first_delay_s <= delay <= limits.max_delay_s
