"""Run the trainer: a child process that holds the policy and its optimizer, and does one request at a time, in order.

    python -m learner.training.server

Frames of `protocol.core.pipe`: requests on stdin, replies on stdout. Logs go to stderr.

The process ends when stdin ends, whatever it is doing: its node is gone, the next node may need the memory, and nobody
would know of a checkpoint that it finishes. When torchrun starts it several times
(`learner.training.distributed.launcher`), rank 0 has the pipe and every rank does every request.

Invariants:

- A request that fails leaves weights and optimizer as they were.
- The same requests on the same machine with the same number of threads and ranks give the same weights, bit for bit,
  also across `save` and `restore`.
- Directories that `export` and `save` write appear whole or not at all.
- It reads a clock only to report seconds, and uses the network only to communicate with its other ranks.

    event    {"event": "waiting", "text": str}      before it is ready: what it waits for
             {"event": "ready", "torch": str, "threads": n, "ranks": n}
             {"event": "saved", "directory": str, "bytes": n} | {"event": "save_failed", "directory": str, "error": str}
             {"event": "exported", "directory": str, "files": [...], "probe": {...}}, with arrays
             {"event": "export_failed", "directory": str, "kind": str, "error": str}
    request  {"id": n, "op": ..., fields of the struct in learner/trainer_api/requests.py}
    reply    {"id": n, "ok": true, "seconds": s, ...}
             {"id": n, "ok": false, "kind": "bad_model" | "bad_request" | "bad_checkpoint" | "foreign_checkpoint" |
             "disk" | "diverged" | "internal", "error": str}
"""

from __future__ import annotations

import sys

from learner.trainer_api.last_resort_exit import die, tell_deaths
from learner.trainer_api.pipes import claim_pipes, decoded, frames_of

if __name__ == "__main__":
    # Before the imports that take seconds, some of which may print, or fail.
    PIPES = claim_pipes()
    tell_deaths()

import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import torch

from learner.trainer_api.errors import BadRequest, explain, is_agreed
from learner.trainer_api.presets import NothingToLearn, UnknownName, recipe_of
from learner.trainer_api.requests import (
    AnyRequest,
    Export,
    Hyperparameters,
    Load,
    Logprobs,
    MakeModel,
    Restore,
    Save,
    Step,
    Supervised,
)
from learner.training.background_writing import Exporting, Writing
from learner.training.batches.sequences import rollout_batch, supervised_batch
from learner.training.checkpoint import BadCheckpoint, CheckpointHead, Saving, read_checkpoint
from learner.training.distributed.ranks import HEARTBEAT_S, Ranks, is_first, open_ranks
from learner.training.distributed.rendezvous import NotHere
from learner.training.model.loading import make_model, quiet_transformers
from learner.training.model.policy import load_policy
from learner.training.probe import coarsest, describe, probe_batch
from learner.training.snapshot import Crossing, SideStream
from learner.training.train_state import Training
from protocol.core.pipe import Arrays, BadFrame, Header, encode_frame

ENDING_S = 1.0
"""Seconds to finish what is nearly done after the last request."""


class RankFailed(Exception):
    """Something went wrong on this rank alone while the others wait for it, so all of them must end."""


class Trainer:
    """Turns requests into replies. Holds at most one `Training`; needs no process, so tests call it directly.

    `tell` gets events and their arrays, on any thread.
    """

    def __init__(
        self, ranks: Ranks | None = None, tell: Callable[[Header, Arrays], None] = lambda event, arrays: None
    ) -> None:
        self._ranks = ranks or Ranks()
        self._tell = tell
        self._training: Training | None = None
        self._saving: Saving | None = None
        self._exporting: Exporting | None = None
        self._crossings: dict[type[Writing], Crossing] = {}
        self._replied = threading.Event()
        self._blocked_s = 0.0

    def answer(self, header: Mapping[str, Any], arrays: Arrays) -> tuple[Header, Arrays]:
        """Do one request and return the reply. Failures become replies; only KeyboardInterrupt and the like propagate.

        Raises RankFailed if other ranks may be waiting in the middle of the request.
        """
        self.note_reply()
        number = header.get("id")
        try:
            fields = {key: value for key, value in header.items() if key != "id"}
            request = msgspec.convert(fields, AnyRequest)
            reply, found = self._do(request, arrays)
        except Exception as error:  # any error at all: a request must get its reply
            kind, text = explain(error)
            if kind == "internal":
                traceback.print_exc()
            if self._ranks.count > 1 and (kind == "internal" or not is_agreed(error)):
                raise RankFailed(text) from error
            if self._training is not None:
                self._training.forget_gradients()
            return {"id": number, "ok": False, "kind": kind, "error": text}, {}
        return {"id": number, "ok": True, **reply}, found

    def note_reply(self) -> None:
        """Note that the last reply is on its way, so that events after it may be sent."""
        self._replied.set()

    def wait_until_written(self) -> None:
        """Return once the last checkpoint and the last export are written or have failed, and the event was sent."""
        self.note_reply()
        for writing in self._writings():
            writing.join()

    def _writings(self) -> list[Writing]:
        return [writing for writing in (self._saving, self._exporting) if writing is not None]

    def _do(self, request: AnyRequest, arrays: Arrays) -> tuple[Header, Arrays]:
        started, self._blocked_s = time.perf_counter(), 0.0
        found: Arrays = {}
        reply: Header
        match request:
            case MakeModel():
                reply = {"parameters": self._make_model(request)}
            case Load():
                reply = self._load(request)
            case Supervised():
                training = self._require_training()
                bounds = training.policy.vocab_size, training.policy.positions
                reply = training.step_supervised(supervised_batch(arrays, *bounds), request.learning_rate)
            case Step():
                training = self._require_training()
                bounds = training.policy.vocab_size, training.policy.positions
                if request.learning_rate is not None:
                    training.set_peak(request.learning_rate)
                reply, found = training.step(rollout_batch(arrays, *bounds, training.policy.routing))
                reply |= {"steps": training.steps, "blocked_s": self._blocked_s}
            case Logprobs():
                training = self._require_training()
                bounds = training.policy.vocab_size, training.policy.positions
                batch = supervised_batch(arrays, *bounds, training.policy.routing)
                found = training.logprobs(batch, request.temperature, request.weights)
                reply = {}
            case Export():
                reply, found = self._export(request)
            case Save():
                reply = self._save(Path(request.directory), wait=request.wait)
            case Restore():
                reply = self._restore(Path(request.directory), keep_hyperparameters=request.keep_hyperparameters)
        return {**reply, "seconds": time.perf_counter() - started}, found

    def _probe(self, dtype: str) -> Header:
        """Return the probe of weights exported in `dtype`, for engines to check; {} when the weights are broken."""
        training = self._require_training()
        vocab_size = training.policy.vocab_size
        found = training.logprobs(supervised_batch(probe_batch(vocab_size), vocab_size), 1.0)["logprobs"]
        if not np.isfinite(found).all():
            return {}
        computed = str(self._ranks.compute_dtype).removeprefix("torch.")
        return {"probe": describe(vocab_size, found.tolist(), coarsest([dtype, computed]))}

    def _make_model(self, request: MakeModel) -> int:
        count = 0
        with self._ranks.agreeing():
            if self._ranks.is_first:
                count = make_model(Path(request.directory), request.config, request.seed, request.architecture)
        return count

    def _load(self, request: Load) -> Header:
        recipe_of(request.hyperparameters)  # before loading, which takes seconds
        self.wait_until_written()
        torch.set_num_threads(request.threads)
        torch.manual_seed(request.seed)
        self._training = self._saving = self._exporting = None  # two models at once might not fit
        self._ranks.place(request.device, request.compute_dtype)
        policy = load_policy(
            Path(request.directory),
            gradient_checkpointing=request.hyperparameters.gradient_checkpointing,
            ranks=self._ranks,
            lora=request.lora,
            compile=request.compile,
            seed=request.seed,
            chat_template=request.chat_template,
            stop_ids=request.stop_ids,
            router_replay=request.router_replay,
        )
        self._training = Training(policy, request.hyperparameters)
        self._training.before_update = self._keep
        return {
            "parameters": policy.num_parameters,
            "vocab_size": policy.vocab_size,
            "positions": policy.positions,
            "fingerprint": policy.fingerprint,
            "ranks": self._ranks.count,
            "device": self._ranks.device.type,
            "compute_dtype": str(self._ranks.compute_dtype).removeprefix("torch."),
        }

    def _keep(self) -> None:
        """Copy what is being written before the weights change."""
        for writing in self._writings():
            if not writing.is_over:
                began = time.perf_counter()
                writing.keep()
                self._blocked_s += time.perf_counter() - began

    def _crossing(self, kind: type[Writing]) -> Crossing | None:
        """Return how tensors are copied to the host; None if they are there already."""
        if self._ranks.device.type == "cpu":
            return None
        if kind not in self._crossings:
            self._crossings[kind] = Crossing(SideStream(self._ranks.device))
        return self._crossings[kind]

    def _export(self, request: Export) -> tuple[Header, Arrays]:
        training = self._require_training()
        self._join(self._exporting)
        probe = self._probe(request.dtype)
        exporting = Exporting(training.policy, request, self._crossing(Exporting))
        self._exporting, self._replied = exporting, threading.Event()
        if request.wait:
            exporting.start()
            exporting.finish()
            return {"files": exporting.exported.files, **probe}, exporting.exported.names
        replied = self._replied
        exporting.start(done=lambda: self._report_exporting(exporting, probe, replied))
        return probe, {}

    def _report_exporting(self, exporting: Exporting, probe: Header, replied: threading.Event) -> None:
        directory, error = str(exporting.directory), exporting.error
        if error is None:
            replied.wait()
            header = {"event": "exported", "directory": directory, "files": exporting.exported.files, **probe}
            self._tell(header, exporting.exported.names)
            return
        kind, text = self._explained(error)
        if self._ranks.count > 1 and (kind == "internal" or not is_agreed(error)):
            die(f"it cannot go on, so no rank can: {text}")  # the others wait for this rank
        replied.wait()
        self._tell({"event": "export_failed", "directory": directory, "kind": kind, "error": text}, {})

    def _explained(self, error: Exception) -> tuple[str, str]:
        kind, text = explain(error)
        if kind == "internal":
            traceback.print_exception(error)
        return kind, text

    def _join(self, writing: Writing | None) -> None:
        """Return once `writing` is over and reported. It is of an earlier request, whose reply is on its way."""
        if writing is not None:
            writing.join()

    def _save(self, directory: Path, *, wait: bool) -> Header:
        training = self._require_training()
        self._join(self._saving)
        head = CheckpointHead(
            fingerprint=training.policy.fingerprint,
            steps=training.steps,
            supervised_steps=training.supervised_steps,
            threads=torch.get_num_threads(),
            ranks=self._ranks.count,
            torch=str(torch.__version__),
            hyperparameters=msgspec.to_builtins(training.hyperparameters),
        )
        saving = Saving(directory, head, training.tensors(), self._ranks, self._crossing(Saving))
        self._saving, self._replied = saving, threading.Event()
        if wait:
            saving.start()
            saving.finish()
            return {"steps": training.steps, "bytes": saving.size_bytes}
        replied = self._replied
        saving.start(done=lambda: self._report_saving(saving, replied))
        return {"steps": training.steps}

    def _report_saving(self, saving: Saving, replied: threading.Event) -> None:
        replied.wait()
        directory = str(saving.directory)
        if saving.error is None:
            self._tell({"event": "saved", "directory": directory, "bytes": saving.size_bytes}, {})
        else:
            _, text = self._explained(saving.error)
            self._tell({"event": "save_failed", "directory": directory, "error": text}, {})

    def _restore(self, directory: Path, *, keep_hyperparameters: bool) -> Header:
        training = self._require_training()
        self.wait_until_written()
        with self._ranks.agreeing():
            policy = training.policy
            checkpoint = read_checkpoint(
                directory, policy.fingerprint, training.expected_tensor, training.required, self._ranks
            )
            head = checkpoint.head
            hyperparameters = training.hyperparameters if keep_hyperparameters else _hyperparameters_of(directory, head)
        self._training = None  # a disk that fails from here on leaves neither the old state nor the new one
        training.configure(hyperparameters)
        training.adopt(checkpoint)
        self._training = training
        return {
            "steps": head.steps,
            "supervised_steps": head.supervised_steps,
            "threads": head.threads,
            "hyperparameters": msgspec.to_builtins(training.hyperparameters),
        }

    def _require_training(self) -> Training:
        if self._training is None:
            raise BadRequest('no model is loaded; send "load" first')
        return self._training


def _hyperparameters_of(directory: Path, head: CheckpointHead) -> Hyperparameters:
    try:
        hyperparameters = msgspec.convert(head.hyperparameters, Hyperparameters)
        recipe_of(hyperparameters)
    except (msgspec.ValidationError, UnknownName, NothingToLearn) as error:
        raise BadCheckpoint(f"{directory} holds hyperparameters that this version does not know: {error}") from error
    return hyperparameters


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Reply to requests until they end. Raises BadFrame if they cannot be read, BrokenPipeError if nobody listens."""
    sending = threading.Lock()

    def send(header: Header, arrays: Arrays | None = None) -> None:
        if is_first():
            with sending:
                replies.write(encode_frame(header, arrays))
                replies.flush()

    ranks = open_ranks(lambda text: send({"event": "waiting", "text": text}))
    if not ranks.is_first:
        requests.close()  # the node's pipe must neither wake another rank nor be kept open by it
        replies.close()
    trainer = Trainer(ranks, send)
    send({"event": "ready", "torch": str(torch.__version__), "threads": torch.get_num_threads(), "ranks": ranks.count})
    over = threading.Event()
    frames = _read_ahead(requests, over) if ranks.is_first else iter(())
    for frame in frames if ranks.count == 1 else _shared(frames, ranks):
        if frame:
            send(*trainer.answer(*decoded(frame)))
            trainer.note_reply()
    trainer.wait_until_written()
    over.set()


Unread = BadFrame | OSError | MemoryError
Waiting = queue.Queue[bytes | Unread | None]
"""A frame, the error that made the next one unreadable, or None at the end."""


def _shared(frames: Iterator[bytes], ranks: Ranks) -> Iterator[bytes]:
    """Yield the frames that rank 0 reads, on every rank."""
    while True:
        frame: bytes | None = None
        failed: Unread | None = None
        try:
            frame = next(frames, None)
        except (BadFrame, OSError, MemoryError) as error:  # the other ranks must learn of the end before it is raised
            failed = error
        shared = ranks.share(frame)
        if failed is not None:
            raise failed
        if shared is None:
            return
        yield shared


def _read_ahead(requests: BinaryIO, over: threading.Event) -> Iterator[bytes]:
    """Yield the frames of `requests`, and b"" every HEARTBEAT_S while there is none, so that other ranks know that this
    one is alive. One frame is read ahead, so that the end of the pipe is seen while a request is being done. The
    process then has ENDING_S to set `over`.
    """
    waiting: Waiting = queue.Queue(1)
    threading.Thread(target=_read, args=(requests, waiting, over), name="requests", daemon=True).start()
    while True:
        try:
            frame = waiting.get(timeout=HEARTBEAT_S)
        except queue.Empty:
            frame = b""
        if frame is None:
            return
        if isinstance(frame, Unread):
            raise frame
        yield frame


def _read(requests: BinaryIO, waiting: Waiting, over: threading.Event) -> None:
    try:
        for frame in frames_of(requests):
            waiting.put(frame)
    except (BadFrame, OSError, MemoryError) as error:
        waiting.put(error)
        return
    with suppress(queue.Full):
        waiting.put(None, timeout=ENDING_S)
    if not over.wait(ENDING_S):
        os._exit(1)  # not 0, or torchrun would wait for the other ranks


def main(requests: BinaryIO, replies: BinaryIO) -> int:
    """Run the child process over claimed pipes, and return its exit status."""
    # Ctrl-C reaches the whole terminal: the node decides what to save before it closes this process's stdin.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    quiet_transformers()
    try:
        serve(requests, replies)
    except (BadFrame, NotHere) as error:
        die(str(error))
    except BrokenPipeError:
        os._exit(1)  # the thread that reads requests would keep the process alive; and with 0 torchrun would wait
    except RankFailed as error:
        die(f"it cannot go on, so no rank can: {error}")
    return 0


if __name__ == "__main__":
    status = main(*PIPES)
    sys.stderr.flush()
    os._exit(status)  # at once: freeing all that torch holds takes a second, and nobody needs it
