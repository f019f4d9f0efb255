"""A snapshot holds its tensors' old values, whether its readers or training are faster."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from learner.training import snapshot as module
from learner.training.snapshot import HUGE_BYTES, SMALL_BYTES, Crossing, Kept, Snapshot, copy_of

LENGTH = SMALL_BYTES


def tensors(count: int = 5) -> list[Tensor]:
    return [torch.full((LENGTH,), float(number)) for number in range(count)]


def train(live: list[Tensor]) -> None:
    for tensor in live:
        tensor.add_(100)


def read(kept: Kept, piece: int = 300) -> list[float]:
    found = []
    for first in range(0, kept.numel, piece):
        with kept.reading(first, min(first + piece, kept.numel)) as values:
            found += values.tolist()
    return found


@pytest.mark.parametrize("read_before", range(6))
def test_what_is_read_is_what_was_there(read_before: int) -> None:
    live = tensors()
    taken = Snapshot(live)
    found = [read(kept) for kept in taken.kept[:read_before]]
    for _ in range(3):
        taken.keep()
        train(live)
    found += [read(kept) for kept in taken.kept[read_before:]]
    assert found == [[float(number)] * LENGTH for number in range(5)]


def test_a_tensor_that_is_half_read_is_kept_for_the_other_half() -> None:
    live = tensors(1)
    [kept] = (taken := Snapshot(live)).kept
    with kept.reading(0, 10) as values:
        before = values.tolist()
    taken.keep()
    train(live)
    with kept.reading(10) as values:
        assert {*before, *values.tolist()} == {0.0}


def test_tensors_are_read_from_where_they_lie_and_let_go_when_they_were() -> None:
    live = tensors(2)
    taken = Snapshot(live)
    with taken.kept[0].reading() as values:
        assert values.data_ptr() == live[0].data_ptr()
    taken.kept[1].release()
    taken.keep()
    for kept in taken.kept:
        with pytest.raises(RuntimeError, match="read already"), kept.reading():
            pass


def test_what_is_small_or_scattered_is_copied_at_once() -> None:
    step, scattered = torch.tensor(3.0), torch.arange(2.0 * LENGTH).reshape(2, LENGTH).T
    taken = Snapshot([step, scattered])
    expected = scattered.reshape(-1).tolist()
    train([step, scattered])
    assert [read(kept) for kept in taken.kept] == [[3.0], expected]


def test_training_waits_for_the_piece_that_is_being_read_and_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    live = tensors(3)
    taken = Snapshot(live)
    inside, copied, order = threading.Event(), threading.Event(), list[str]()
    plain = Kept._copy

    def copy(kept: Kept) -> None:
        plain(kept)
        if kept is taken.kept[0]:  # the last of those that nobody reads
            copied.set()

    monkeypatch.setattr(Kept, "_copy", copy)

    def reader() -> None:
        with taken.kept[1].reading(0, 10) as values:
            inside.set()
            copied.wait()
            assert values.tolist() == [1.0] * 10
            order.append("read")

    thread = threading.Thread(target=reader)
    thread.start()
    inside.wait()
    taken.keep()
    order.append("kept")
    train(live)
    thread.join()
    assert order == ["read", "kept"]
    with taken.kept[1].reading(10) as values:
        assert values.tolist() == [1.0] * (LENGTH - 10)


def test_without_memory_for_a_copy_training_waits_until_all_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    live = tensors(1)
    taken = Snapshot(live)
    asked, found = threading.Event(), list[float]()

    def refuse(tensor: Tensor) -> Tensor:
        asked.set()
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(torch, "empty_like", refuse)

    def reader() -> None:
        asked.wait()
        found.extend(read(taken.kept[0]))

    thread = threading.Thread(target=reader)
    thread.start()
    taken.keep()
    train(live)
    thread.join()
    assert found == [0.0] * LENGTH


def test_a_snapshot_that_nobody_reads_holds_nothing_back() -> None:
    live = tensors()
    taken = Snapshot(live)
    taken.close()
    taken.keep()
    assert all(kept._values is None for kept in taken.kept)


@pytest.mark.parametrize("count", [1, HUGE_BYTES // 4 - 1, HUGE_BYTES // 4, HUGE_BYTES // 2 + 3])
def test_a_copy_is_one_whatever_its_size(count: int) -> None:
    values = torch.randn(count)
    made = copy_of(values)
    assert torch.equal(made, values)
    assert made.data_ptr() != values.data_ptr()


class Host:
    """The side of a device that is none: what was copied arrives when an event of it is waited for."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.locked: list[int] = []

    def page_locked(self, size_bytes: int) -> Tensor:
        self.locked.append(size_bytes)
        return torch.zeros(size_bytes, dtype=torch.uint8)

    @contextmanager
    def behind(self) -> Iterator[None]:
        self.said.append("behind")
        yield
        self.said.append("ahead")

    def mark(self) -> Mark:
        self.said.append("mark")
        return Mark(self, self.said.count("mark"))

    def hold_back(self, event: Mark) -> None:
        self.said.append(f"hold back for {event.number}")


class Mark:
    def __init__(self, host: Host, number: int) -> None:
        self.host, self.number = host, number

    def synchronize(self) -> None:
        self.host.said.append(f"wait for {self.number}")


def test_tensors_cross_in_pieces_as_the_dtype_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CROSSING_BYTES", 64)
    host = Host()
    crossing = Crossing(host)
    sources = [torch.randn(7, 11), torch.arange(5), torch.randn(3)]
    wanted = [torch.bfloat16, torch.int64, torch.float32]
    kept = crossing.take(list(zip(sources, wanted, strict=True)))
    assert host.said == ["behind", "mark", "mark", "mark", "ahead"]
    for number, (one, source, dtype) in enumerate(zip(kept, sources, wanted, strict=True), 1):
        with one.reading() as values:
            assert values.dtype == one.dtype == dtype
            assert torch.equal(values, source.reshape(-1).to(dtype))
        assert host.said.pop() == f"wait for {number}"


def test_a_device_waits_for_the_last_copy_and_page_locked_memory_is_used_again() -> None:
    host = Host()
    crossing = Crossing(host)
    crossing.hold_back()
    assert not host.said
    for size in (100, 60, 200):
        kept = crossing.take([(torch.ones(size), torch.float32)])
        crossing.hold_back()
        assert host.said[-1] == f"hold back for {host.said.count('mark')}"
        assert read(kept[0]) == [1.0] * size
    assert host.locked == [448, 832]
