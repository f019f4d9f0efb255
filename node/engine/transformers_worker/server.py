"""Serve requests with transformers: take them, form batches, answer.

One thread reads frames. The main thread takes what has queued up since: first installs and other short requests, then
as many completions from any `generate` requests as fit one batch. Weights change only between batches.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import torch
from transformers.utils import logging as transformers_logging

from learner.trainer_api.last_resort_exit import die
from protocol.core.pipe import Arrays, Header

from ..common_worker.errors import Broken, Refused
from ..common_worker.generate_call import Row
from ..common_worker.keepalive import Alive
from ..common_worker.replies import Replies
from .generation import Generator
from .memory import default_kv_cache_bytes, is_out_of_memory, release_memory
from .policy import Policy, Settings, choose_device
from .request_queue import Intake
from .scoring import Scorer

MAX_PREFILL_TOKENS = 32_768
"""Largest product of distinct prompts and longest prompt in one batch. The activations of a prefill grow with it,
unlike those of a decoding step."""


class Server:
    """Takes requests, forms batches, answers. Everything but reading happens in the thread that calls `serve`."""

    def __init__(self, settings: Settings, intake: Intake, output: BinaryIO) -> None:
        self._settings = settings
        self._intake = intake
        self._replies = Replies(output)
        self._policy = Policy(settings)
        self._alive = Alive(self._replies.send)
        self._generator = Generator(self._policy, self._between_steps, self._replies.tell)
        self._scorer = Scorer(self._policy, self._alive.step)
        self._queue: deque[Row] = deque()
        self._kv_limit_bytes = settings.kv_cache_bytes

    def serve(self) -> NoReturn:
        self._replies.send({"event": "ready", **self._policy.describe()})
        while True:
            if not self._queue:
                self._intake.wait()
            for header, arrays in self._intake.take_short():
                try:
                    self._replies.answer(header["id"], *self._do(header, arrays))
                except Refused as refusal:
                    self._replies.refuse(header["id"], refusal)
            for header, arrays in self._intake.take_generates():
                self._queue.extend(self._replies.admit(header, arrays))
            self._drop_cancelled()
            self._interrupt()
            if batch := self._form_batch():
                self._generate(batch)

    def _do(self, header: Header, arrays: Arrays) -> tuple[Header, Arrays]:
        match header["op"]:
            case "install":
                started = time.perf_counter()
                in_place = self._policy.install(Path(header["directory"]), header["version"])
                release_memory(self._policy.device)  # so that what earlier batches left counts as free below
                self._kv_limit_bytes = self._settings.kv_cache_bytes or default_kv_cache_bytes(
                    self._policy.device, self._settings.ram_bytes, self._settings.vram_share
                )
                # Even if the caller has left meanwhile: the node learns from this event which version is active.
                self._replies.send(
                    {"event": "installed", "version": header["version"], "directory": header["directory"]}
                )
                return {"in_place": in_place, "seconds": time.perf_counter() - started}, {}
            case "release":
                release_memory(self._policy.device)
                return {}, {}
            case "score":
                return self._scorer.run(header, arrays)
            case "verify":
                return self._scorer.verify(header, arrays)
            case "describe":
                return self._policy.describe(), {}
            case op:
                raise Refused(
                    "unknown_op",
                    "this worker knows install, generate, interrupt, release, score, verify, describe and cancel, "
                    f"not {op!r}",
                )

    def _between_steps(self) -> bool:
        self._alive.step()
        return self._drop_cancelled() | self._interrupt()

    def _interrupt(self) -> bool:
        """On request, end all calls that have arrived with the tokens that they have: waiting rows at once, rows of the
        running batch with its current step. Return whether this was requested."""
        if not (asked := self._intake.take_interrupts()):
            return False
        for header, arrays in self._intake.take_generates():
            self._queue.extend(self._replies.admit(header, arrays))
        self._replies.interrupt()
        waiting, self._queue = self._queue, deque()
        for row in waiting:
            if not row.call.answered:
                self._replies.finish_row(row)
        for id in asked:
            self._replies.answer(id, {}, {})
        return True

    def _drop_cancelled(self) -> bool:
        """Answer cancelled calls, whose rows are then dropped wherever they are. Return whether there was one."""
        cancelled = [self._replies.calls[id] for id in self._intake.take_cancelled() if id in self._replies.calls]
        for call in cancelled:
            self._replies.refuse_call(call, Refused("cancelled", "the caller has left"))
        return bool(cancelled)

    def _form_batch(self) -> list[Row]:
        """Take queued rows, in order, until one more would exceed a bound; at least one. Rows that cannot be generated
        are refused. If prompts cannot be padded, rows of other lengths than the first wait. If sequences cannot share
        a batch, all other rows wait."""
        batch: list[Row] = []
        waiting: list[Row] = []
        prompts: set[tuple[int, ...]] = set()
        longest = room = 0
        token_bytes: int | None = None  # read once a batch: transformers' configs are slow to read
        while self._queue and len(batch) < self._settings.max_batch:
            row = self._queue.popleft()
            if row.call.answered or not self._accept(row):
                continue
            if batch and not self._policy.habits.shares:
                waiting.append(row)
                break
            if batch and len(row.prompt) != longest and not self._policy.habits.pads:
                waiting.append(row)
                continue
            prompts.add(row.prompt)
            longest, room = max(longest, len(row.prompt)), max(room, row.budget)
            token_bytes = self._policy.kv_token_bytes if token_bytes is None else token_bytes
            kv_bytes = (len(batch) + 1) * (longest + room) * token_bytes
            if batch and (kv_bytes > self._kv_limit_bytes or len(prompts) * longest > MAX_PREFILL_TOKENS):
                waiting.append(row)
                break
            batch.append(row)
        self._queue.extendleft(reversed(waiting))
        return batch

    def _accept(self, row: Row) -> bool:
        try:
            self._policy.require_generable(row.prompt, row.budget)
        except Refused as refusal:
            self._replies.refuse_call(row.call, refusal)
            return False
        return True

    def _generate(self, rows: list[Row]) -> None:
        """Run a batch, in halves if memory runs out; the bound on later batches then shrinks to that size."""
        shortage: str | None = None
        try:
            self._generator.run(rows)
        except Refused as refusal:
            for row in rows:
                self._replies.refuse_call(row.call, refusal)
            return
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            shortage = str(error)
        if (
            shortage is not None
        ):  # only now: inside the except clause the traceback still holds the failed batch's tensors
            self._run_smaller(rows, shortage)
            return
        for row in rows:
            row.spans = [(row.length, self._policy.version or {})] if row.length else []
            self._replies.finish_row(row)

    def _run_smaller(self, rows: list[Row], error: str) -> None:
        release_memory(self._policy.device)
        if len(rows) == 1:
            longest = len(rows[0].prompt) + rows[0].budget
            advice = f"not even one completion of {longest} tokens fits the memory of {self._policy.device}"
            self._replies.refuse_call(
                rows[0].call, Refused("out_of_memory", f"{advice}: shorten it or use a smaller model ({error})")
            )
            return
        half = (len(rows) + 1) // 2
        tokens = half * (max(len(row.prompt) for row in rows) + max(row.budget for row in rows))
        self._kv_limit_bytes = min(self._kv_limit_bytes, tokens * self._policy.kv_token_bytes)
        print(f"out of memory with {len(rows)} completions at once; trying {half}", file=sys.stderr, flush=True)
        for part in (rows[:half], rows[half:]):
            if unanswered := [row for row in part if not row.call.answered]:
                self._generate(unanswered)


def run(settings: dict[str, Any], output: BinaryIO) -> NoReturn:
    """Serve the requests on stdin. `settings` are the fields of `Settings`. Ends with a message if there is no such
    device, or if a swap failed halfway."""
    wanted = Settings(**settings)
    torch.set_num_threads(wanted.threads)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        choose_device(wanted.device)
    except Refused as refusal:
        die(str(refusal))
    intake = Intake(os.fdopen(0, "rb", buffering=0))
    try:
        Server(wanted, intake, output).serve()
    except Broken as error:
        die(str(error))
