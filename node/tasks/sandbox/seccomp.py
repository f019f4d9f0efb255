"""Calls of the kernel that a policy's program may not make, as a filter that bubblewrap installs before it begins.

What always holds: what is forbidden is memory that no limit counts (System V's shared memory, semaphores and queues
stay when nobody maps them), keys of whoever started the verifier, other processes' memory, new namespaces, and doors
into the kernel that a program for a test never needs; everything else is allowed. A program of another architecture
than the interpreter's own would name calls by other numbers, and is killed. The filter is classic BPF
(Documentation/userspace-api/seccomp_filter.rst of Linux).
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterator

from node.tasks.api.interface import TaskError

X32 = 0x40000000
"""On x86-64 a second table of calls begins there."""

NEW_NAMESPACE = 0x7E020000
"""Flags of clone: CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID and NET."""

# name: (x86-64, the table that newer architectures share)
CALLS = {
    "shmget": (29, 194),
    "shmctl": (31, 195),
    "shmat": (30, 196),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "perf_event_open": (298, 241),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}
CLONE, CLONE3 = (56, 220), (435, 435)
REACHING = {
    "prlimit64": (302, 261),
    "setpriority": (141, 140),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
}
"""Calls that change what another process of the same user may use."""

FORKS = {"x86_64": (57, 58)}
"""fork and vfork, where there are such besides clone."""

# machine: (what the kernel calls it in `seccomp_data.arch`, column of the tables above)
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1), "riscv64": (0xC00000F3, 1)}

_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Where `struct seccomp_data` has them; of the argument the lower half, little-endian."""
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000


def call_filter(machine: str = "") -> bytes:
    """The filter for `machine`, by default this one, as an array of `struct sock_filter`. Raises TaskError."""
    return _packed(_program(*MACHINES[_known(machine)]))


def fork_filter(machine: str = "") -> bytes:
    """A filter beside that one, of a process that may start no other, nor a thread, and change no other. Raises
    TaskError."""
    known = _known(machine)
    return _packed(_forks(MACHINES[known], FORKS.get(known, ())))


def _known(machine: str) -> str:
    """Raises TaskError where the numbers of calls are not known."""
    machine = machine or platform.machine()
    if machine not in MACHINES:
        raise TaskError(
            f"programs cannot be kept to harmless system calls on this machine ({machine}); that is known for "
            f"{', '.join(MACHINES)}. Have rewards computed on one of those: [[verifiers.machine]]."
        )
    return machine


def _packed(program: Iterator[tuple[int, int, int, int]]) -> bytes:
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


def _forks(machine: tuple[int, int], others: tuple[int, ...]) -> Iterator[tuple[int, int, int, int]]:
    architecture, column = machine
    yield from _begun(architecture)
    for number in (CLONE[column], CLONE3[column], *others, *(numbers[column] for numbers in REACHING.values())):
        yield from _refused(_EQUAL, number, errno.EPERM)
    yield _RETURN, 0, 0, _ALLOW


def _begun(architecture: int) -> Iterator[tuple[int, int, int, int]]:
    """Kill what names calls by other numbers; then the call's number is loaded."""
    yield _LOAD, 0, 0, _ARCHITECTURE
    yield _EQUAL, 1, 0, architecture
    yield _RETURN, 0, 0, _KILL
    yield _LOAD, 0, 0, _NUMBER
    if architecture == MACHINES["x86_64"][0]:
        yield from _refused(_AT_LEAST, X32, errno.ENOSYS)


def _program(architecture: int, column: int) -> Iterator[tuple[int, int, int, int]]:
    """(code, to skip if so, to skip if not, operand): each test stands before what is returned if it is met."""
    yield from _begun(architecture)
    for numbers in CALLS.values():
        yield from _refused(_EQUAL, numbers[column], errno.EPERM)
    # Its flags lie in memory, where no filter sees them: without it libraries use clone.
    yield from _refused(_EQUAL, CLONE3[column], errno.ENOSYS)
    yield _EQUAL, 0, 3, CLONE[column]
    yield _LOAD, 0, 0, _FIRST_ARGUMENT
    yield from _refused(_ANY_BIT, NEW_NAMESPACE, errno.EPERM)
    yield _RETURN, 0, 0, _ALLOW


def _refused(test: int, operand: int, with_error: int) -> Iterator[tuple[int, int, int, int]]:
    yield test, 0, 1, operand
    yield _RETURN, 0, 0, _FAIL | with_error
