"""Compare the store with a model of it, with a quota and without.

Versions are begun, filled, damaged, adopted, evicted and reopened in any order.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol.versions.chunking import placements
from protocol.versions.manifest import Manifest
from swarm.store import ChunkStore, StoreFull
from tests.support.examples import examples
from tests.support.store_fixture import chunk_data, model_files, small_model, small_swarm, write_model

SWARM = small_swarm()
MODELS = {number: small_model(number) for number in (1, 2, 3)}
SIGNED = {number: SWARM.publish(files, version=number, chunk_bytes=1024) for number, files in MODELS.items()}

SIZES = {number: signed.manifest.total_bytes for number, signed in SIGNED.items()}

numbers = st.sampled_from(sorted(MODELS))
quotas = st.none() | st.integers(min(SIZES.values()) - 1, sum(SIZES.values()) + 1)
fractions = st.floats(0, 1, exclude_max=True)


class StoreMachine(RuleBasedStateMachine):
    """`held` is the model: for every version begun, the chunks it must hold. `complete` names the finished ones."""

    def __init__(self) -> None:
        super().__init__()
        self.scratch = Path(tempfile.mkdtemp())
        self.quota: int | None = None
        self.store = ChunkStore.open(self.scratch / "store", SWARM.authority)
        self.held: dict[int, set[int]] = {}
        self.complete: set[int] = set()
        self.pins: dict[int, int] = {}

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.scratch)

    @initialize(quota=quotas)
    def choose_quota(self, quota: int | None) -> None:
        self.quota = quota
        self.reopen()

    @rule(number=numbers)
    def begin(self, number: int) -> None:
        if not self.makes_room(number):
            with pytest.raises(StoreFull, match=r"Set \[store\] quota_gb"):
                self.store.begin(SIGNED[number])
            return
        manifest = SIGNED[number].manifest
        have = {SIGNED[other].manifest.chunks[index].cid for other, held in self.held.items() for index in held}
        before = self.held.setdefault(number, set())
        gained = {index for index, chunk in enumerate(manifest.chunks) if chunk.cid in have} - before
        expected = sum(manifest.chunks[index].size for index in gained)
        assert self.store.begin(SIGNED[number]) == expected
        before |= gained

    @precondition(lambda self: self.held)
    @rule(data=st.data(), share=fractions)
    def put(self, data: st.DataObject, share: float) -> None:
        number = data.draw(st.sampled_from(sorted(self.held)))
        index = int(share * len(SIGNED[number].manifest.chunks))
        new = self.store.put(SIGNED[number].hash, index, chunk_data(SIGNED[number], MODELS[number], index))
        assert new == (index not in self.held[number])
        self.held[number].add(index)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def fill(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.held)))
        for index in self.store.missing(SIGNED[number].hash):
            self.store.put(SIGNED[number].hash, index, chunk_data(SIGNED[number], MODELS[number], index))
            self.held[number].add(index)
        self.store.finish(SIGNED[number].hash)
        self.complete.add(number)

    @rule(number=numbers)
    def adopt(self, number: int) -> None:
        export = write_model(Path(tempfile.mkdtemp(dir=self.scratch)) / "export", MODELS[number])
        if not self.makes_room(number):
            with pytest.raises(StoreFull):
                self.store.adopt(SIGNED[number], export)
            return
        self.store.adopt(SIGNED[number], export)
        self.held[number] = set(range(len(SIGNED[number].manifest.chunks)))
        self.complete.add(number)

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data(), share=fractions)
    def damage(self, data: st.DataObject, share: float) -> None:
        number = data.draw(st.sampled_from(sorted(number for number, held in self.held.items() if held)))
        index = data.draw(st.sampled_from(sorted(self.held[number])))
        place = placements(SIGNED[number].manifest)[index][0]
        suffix = "" if number in self.complete else ".part"
        directory = self.store.root / "versions" / (SIGNED[number].hash.hex() + suffix)
        offset = place.offset + int(share * SIGNED[number].manifest.chunks[index].size)
        with (directory / SIGNED[number].manifest.files[place.file].name).open("r+b") as file:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 0x10]))
        assert self.store.verify(SIGNED[number].hash) == [index]
        self.held[number].remove(index)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.held)))
        self.store.pin(SIGNED[number].hash)
        self.pins[number] = self.pins.get(number, 0) + 1

    @precondition(lambda self: any(self.pins.values()))
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(number for number, count in self.pins.items() if count)))
        self.store.unpin(SIGNED[number].hash)
        self.pins[number] -= 1

    @rule(keep=st.sets(numbers))
    def evict(self, keep: set[int]) -> None:
        going = {number for number in self.held if number not in keep and not self.pins.get(number)}
        assert set(self.store.evict({SIGNED[number].hash for number in keep})) == {SIGNED[n].hash for n in going}
        for number in going:
            del self.held[number]
        self.complete -= going

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = ChunkStore.open(self.store.root, SWARM.authority, quota_bytes=self.quota)
        self.pins = {}
        # A version that was found damaged is a part again.
        self.complete = {number for number in self.complete if not self._lacks(number)}

    @invariant()
    def the_store_is_as_the_model_says(self) -> None:
        assert {one.hash for one in self.store.versions()} == {SIGNED[number].hash for number in self.held}
        for number, held in self.held.items():
            signed = SIGNED[number]
            assert self.store.missing(signed.hash) == self._lacks(number)
            whole = number in self.complete and not self._lacks(number)
            assert self.store.is_complete(signed.hash) == whole
            if whole:
                assert model_files(self.store.directory(signed.hash)) == MODELS[number]
            for index in held:
                data = self.store.get(signed.manifest.chunks[index].name)
                assert data == chunk_data(signed, MODELS[number], index)

    @invariant()
    def no_more_is_held_than_the_quota_allows(self) -> None:
        assert self.quota is None or sum(SIZES[number] for number in self.held) <= self.quota

    def makes_room(self, number: int) -> bool:
        """Return whether a version may begin, or has begun; forget those that must go for it."""
        if number in self.held or self.quota is None:
            return True
        pinned = {other for other in self.held if self.pins.get(other)}
        if SIZES[number] + sum(SIZES[other] for other in pinned) > self.quota:
            return False
        whole = {other for other in self.complete if not self._lacks(other)}
        for other in sorted(self.held.keys() - pinned, key=lambda other: (other in whole, other)):
            if SIZES[number] + sum(SIZES[held] for held in self.held) > self.quota:
                del self.held[other]
                self.complete.discard(other)
        return True

    def _lacks(self, number: int) -> list[int]:
        manifest: Manifest = SIGNED[number].manifest
        return [index for index in range(len(manifest.chunks)) if index not in self.held[number]]


StoreMachine.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=25, deadline=None)
TestStore: Any = StoreMachine.TestCase
