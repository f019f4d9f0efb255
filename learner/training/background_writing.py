"""Directories that are written from a snapshot on a thread of their own, while training goes on.

Invariants: a directory appears whole or not at all; whatever ends the writing, its snapshot is let go and `done` is
called, on every rank. Each writing speaks with the other ranks in a group that nobody else uses meanwhile.
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
    """One directory being written. `error` says what went wrong, once it is over."""

    def __init__(self, directory: Path, snapshot: Snapshot) -> None:
        self.directory = directory
        self.error: Exception | None = None
        self._snapshot = snapshot
        self._thread = threading.Thread(target=self._run, name=type(self).__name__.lower())
        self._done: Callable[[], None] = lambda: None

    def start(self, done: Callable[[], None] = lambda: None) -> None:
        """Write; `done` is called on the writing thread, on every rank, however it ended."""
        self._done = done
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether nothing is read or told any more."""
        return not self._thread.is_alive()

    def keep(self) -> None:
        """Return once training may change what is being written. See `Snapshot.keep`."""
        self._snapshot.keep()

    def join(self) -> None:
        """Return once it is over, either way."""
        self._thread.join()

    def finish(self) -> None:
        """Return once the directory is durable. Raises what went wrong."""
        self.join()
        if self.error is not None:
            raise self.error

    @abstractmethod
    def _write(self) -> None:
        """Write the directory, on every rank."""

    def _run(self) -> None:
        try:
            self._write()
        except Exception as error:  # raised again by `finish`, or told by `done`
            self.error = error
        finally:
            self._snapshot.close()
            done, self._done = self._done, lambda: None  # which may hold us, and so a policy
            done()


class Exporting(Writing):
    """An export of `policy` as it is now. `exported` is known once it has ended well."""

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
