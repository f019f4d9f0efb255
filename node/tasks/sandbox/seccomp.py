"""Make the filter that forbids a policy's program certain system calls.

bubblewrap installs it before the program begins. It forbids calls for:

- memory that no limit counts: System V's shared memory, semaphores and queues stay even when no process maps them;
- keys of the user who started the verifier;
- other processes' memory, and new namespaces;
- parts of the kernel that a program under test never needs.

All other calls are allowed. The filter is classic BPF (Documentation/userspace-api/seccomp_filter.rst of Linux).

Invariants:

- A forbidden call fails with an error.
- A program of another architecture than the interpreter's is killed, because its calls have other numbers.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterator

from node.tasks.api.interface import TaskError

X32 = 0x40000000
"""On x86-64, a second table of calls begins at this number."""

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
"""Calls that change the resources of another process of the same user."""

FORKS = {"x86_64": (57, 58)}
"""fork and vfork, on machines that have them in addition to clone."""

# machine: (its value in `seccomp_data.arch`, column of the tables above)
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1), "riscv64": (0xC00000F3, 1)}

_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Offsets in `struct seccomp_data`; of the argument it is the lower half, little-endian."""
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000


def call_filter(machine: str = "") -> bytes:
    """Return the filter for `machine`, by default this one, as an array of `struct sock_filter`. Raises TaskError."""
    return _packed(_program(*MACHINES[_known(machine)]))


def fork_filter(machine: str = "") -> bytes:
    """Return a second filter, for a process that may start no process or thread, and may change no other process.
    Raises TaskError."""
    known = _known(machine)
    return _packed(_forks(MACHINES[known], FORKS.get(known, ())))


def _known(machine: str) -> str:
    """Return the name of the machine. Raises TaskError if the numbers of its calls are not known."""
    machine = machine or platform.machine()
    if machine not in MACHINES:
        raise TaskError(
            f"the numbers of system calls on this machine ({machine}) are not known, so programs cannot be run safely; "
            f"they are known for {', '.join(MACHINES)}. Compute rewards on one of those: [[verifiers.machine]]."
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
    """Yield instructions that kill a program of another architecture, and then load the number of the call."""
    yield _LOAD, 0, 0, _ARCHITECTURE
    yield _EQUAL, 1, 0, architecture
    yield _RETURN, 0, 0, _KILL
    yield _LOAD, 0, 0, _NUMBER
    if architecture == MACHINES["x86_64"][0]:
        yield from _refused(_AT_LEAST, X32, errno.ENOSYS)


def _program(architecture: int, column: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (code, skip if true, skip if false, operand). Each test is followed by what is returned if it is true."""
    yield from _begun(architecture)
    for numbers in CALLS.values():
        yield from _refused(_EQUAL, numbers[column], errno.EPERM)
    # Its flags are in memory, which a filter cannot read. Without clone3, libraries use clone.
    yield from _refused(_EQUAL, CLONE3[column], errno.ENOSYS)
    yield _EQUAL, 0, 3, CLONE[column]
    yield _LOAD, 0, 0, _FIRST_ARGUMENT
    yield from _refused(_ANY_BIT, NEW_NAMESPACE, errno.EPERM)
    yield _RETURN, 0, 0, _ALLOW


def _refused(test: int, operand: int, with_error: int) -> Iterator[tuple[int, int, int, int]]:
    yield test, 0, 1, operand
    yield _RETURN, 0, 0, _FAIL | with_error
