"""Write directories from a snapshot, each on a thread of its own, while training goes on.

Each writing communicates with the other ranks in a process group that no other thread uses meanwhile.

Invariants:

- A directory appears whole or not at all.
- However the writing ends, its snapshot is released and `done` is called, on every rank.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from learner.trainer_api.requests import Export
from learner.training.model.export import Exported, take_snapshot, write_export
from learner.training.model.policy import Policy
from learner.training.snapshot import Crossing, Snapshot


class Writing(ABC):
    """One directory being written. `error` is what went wrong, once the writing is over."""

    def __init__(self, directory: Path, snapshot: Snapshot) -> None:
        self.directory = directory
        self.error: Exception | None = None
        self._snapshot = snapshot
        self._thread = threading.Thread(target=self._run, name=type(self).__name__.lower())
        self._done: Callable[[], None] = lambda: None

    def start(self, done: Callable[[], None] = lambda: None) -> None:
        """Begin to write. `done` is called on the writing thread, on every rank, however the writing ends."""
        self._done = done
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether the writing has ended, and `done` was called."""
        return not self._thread.is_alive()

    def keep(self) -> None:
        """Return once training may change the tensors that are being written. See `Snapshot.keep`."""
        self._snapshot.keep()

    def join(self) -> None:
        """Return once the writing is over, whether it succeeded or failed."""
        self._thread.join()

    def finish(self) -> None:
        """Return once the directory is durable. Raises the error of a writing that failed."""
        self.join()
        if self.error is not None:
            raise self.error

    @abstractmethod
    def _write(self) -> None:
        """Write the directory, on every rank."""

    def _run(self) -> None:
        try:
            self._write()
        except Exception as error:  # `finish` raises it again, or `done` reports it
            self.error = error
        finally:
            self._snapshot.close()
            done, self._done = self._done, lambda: None  # `done` may refer to this object, and so to a policy
            done()


class Exporting(Writing):
    """An export of `policy` as it is now. `exported` is set once the export has succeeded."""

    def __init__(self, policy: Policy, request: Export, crossing: Crossing | None) -> None:
        snapshot = take_snapshot(policy, request.dtype, crossing, merge=request.merge)
        super().__init__(Path(request.directory), snapshot)
        self.exported = Exported(files=[], names={})
        self._policy, self._request = policy, request

    def _write(self) -> None:
        self.exported = write_export(
            self._policy,
            self._snapshot,
            self.directory,
            self._request.dtype,
            self._request.max_shard_bytes,
            merge=self._request.merge,
        )
