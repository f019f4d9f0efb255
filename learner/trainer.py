"""The trainer: a child process that holds the policy and its optimizer, and does one request at a time, in order.

    python -m learner.trainer       frames of protocol/pipe.py: requests on stdin, replies on stdout, logs on stderr

What always holds: a request that fails leaves weights and optimizer as they were; the same requests on the same
machine with the same number of threads give the same weights, bit for bit, also across `save` and `restore`; what
`export` and `save` write appears whole or not at all. The process ends when stdin does. It reads no clock but to
report seconds, and never touches the network.

    event    {"event": "ready", "torch": str, "threads": n}
             {"event": "saved", "directory": str, "bytes": n} after a "save" that was not waited for, or
             {"event": "save_failed", "directory": str, "error": str}
    request  {"id": n, "op": ..., fields of the struct in learner/requests.py}
    reply    {"id": n, "ok": true, "seconds": s, ...}
             {"id": n, "ok": false, "kind": "bad_model" | "bad_request" | "bad_checkpoint" | "disk" | "internal",
             "error": str}
"""

from __future__ import annotations

import sys

from learner.pipes import claim_pipes, requests_of

if __name__ == "__main__":
    # Before the imports that take seconds, some of which may print.
    PIPES = claim_pipes()

import signal
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import torch

from learner.checkpoint import BadCheckpoint, CheckpointHead, read_checkpoint, write_checkpoint
from learner.packing import BadBatch, rollout_batch, supervised_batch
from learner.policy import BadModel, load_policy, make_model, quiet_transformers, tensor_source
from learner.presets import UnknownName, recipe_of
from learner.requests import (
    AnyRequest,
    Export,
    ExportDtype,
    Hyperparameters,
    Load,
    Logprobs,
    MakeModel,
    Restore,
    Save,
    Step,
    Supervised,
)
from learner.training import Diverged, Training
from protocol.pipe import Arrays, BadFrame, Header, encode_frame


class BadRequest(ValueError):
    """The node asked for something that makes no sense; the message names the field."""


class Trainer:
    """Turns requests into replies. Holds at most one `Training`; needs no process, so tests talk to it directly."""

    def __init__(self) -> None:
        self._training: Training | None = None
        self.events: list[Header] = []
        """What the node is to be told beside replies, oldest first; whoever sends them takes them out."""

    def answer(self, header: Mapping[str, Any], arrays: Arrays) -> tuple[Header, Arrays]:
        """Do one request and return the reply. Failures become replies; only KeyboardInterrupt and the like travel."""
        number = header.get("id")
        try:
            fields = {key: value for key, value in header.items() if key != "id"}
            request = msgspec.convert(fields, AnyRequest)
            reply, found = self._do(request, arrays)
        except Exception as error:
            if self._training is not None:
                self._training.forget_gradients()
            kind, text = explain(error)
            if kind == "internal":
                traceback.print_exc()
            return {"id": number, "ok": False, "kind": kind, "error": text}, {}
        return {"id": number, "ok": True, **reply}, found

    def _do(self, request: AnyRequest, arrays: Arrays) -> tuple[Header, Arrays]:
        started = time.perf_counter()
        found: Arrays = {}
        reply: Header
        match request:
            case MakeModel():
                reply = {"parameters": make_model(Path(request.directory), request.config, request.seed)}
            case Load():
                reply = self._load(request)
            case Supervised():
                training = self._require_training()
                reply = training.supervised(supervised_batch(arrays, training.policy.vocab_size), request.learning_rate)
            case Step():
                training = self._require_training()
                reply = training.step(rollout_batch(arrays, training.policy.vocab_size))
                reply["steps"] = training.steps
            case Logprobs():
                training = self._require_training()
                found = training.logprobs(supervised_batch(arrays, training.policy.vocab_size), request.temperature)
                reply = {}
            case Export():
                reply = {"files": self._export(Path(request.directory), request.dtype, request.max_shard_bytes)}
            case Save():
                reply = self._save(Path(request.directory)) if request.wait else self._save_unwaited(request.directory)
            case Restore():
                reply = self._restore(Path(request.directory), keep_hyperparameters=request.keep_hyperparameters)
        return {**reply, "seconds": time.perf_counter() - started}, found

    def _load(self, request: Load) -> Header:
        recipe_of(request.hyperparameters)  # before the seconds that loading takes
        torch.set_num_threads(request.threads)
        torch.manual_seed(request.seed)
        self._training = None  # two models at once might not fit
        policy = load_policy(
            Path(request.directory), gradient_checkpointing=request.hyperparameters.gradient_checkpointing
        )
        self._training = Training(policy, request.hyperparameters)
        return {
            "parameters": policy.num_parameters,
            "vocab_size": policy.vocab_size,
            "fingerprint": policy.fingerprint,
        }

    def _export(self, directory: Path, dtype: ExportDtype, max_shard_bytes: int) -> list[str]:
        return self._require_training().policy.export(directory, dtype, max_shard_bytes)

    def _save(self, directory: Path) -> Header:
        training = self._require_training()
        head = CheckpointHead(
            fingerprint=training.policy.fingerprint,
            steps=training.steps,
            supervised_steps=training.supervised_steps,
            threads=torch.get_num_threads(),
            torch=str(torch.__version__),
            hyperparameters=msgspec.to_builtins(training.hyperparameters),
        )
        sources = [tensor_source(name, tensor, tensor.dtype) for name, tensor in training.tensors().items()]
        size_bytes = write_checkpoint(directory, head, sources)
        return {"steps": training.steps, "bytes": size_bytes}

    def _save_unwaited(self, directory: str) -> Header:
        training = self._require_training()
        try:
            size_bytes = self._save(Path(directory))["bytes"]
        except OSError as error:
            self.events.append({"event": "save_failed", "directory": directory, "error": explain(error)[1]})
        else:
            self.events.append({"event": "saved", "directory": directory, "bytes": size_bytes})
        return {"steps": training.steps}

    def _restore(self, directory: Path, *, keep_hyperparameters: bool) -> Header:
        training = self._require_training()
        checkpoint = read_checkpoint(directory, training.policy.fingerprint, training.expected, training.required)
        head = checkpoint.head
        hyperparameters = training.hyperparameters if keep_hyperparameters else _hyperparameters_of(directory, head)
        self._training = None  # a disk that fails from here on leaves neither the old state nor the new
        training.configure(hyperparameters)
        training.adopt(head, checkpoint.tensors())
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
    except (msgspec.ValidationError, UnknownName) as error:
        raise BadCheckpoint(f"{directory} holds hyperparameters that this version does not know: {error}") from error
    return hyperparameters


def explain(error: Exception) -> tuple[str, str]:
    """Return (kind, one paragraph) for a failed request."""
    match error:
        case BadModel():
            kind = "bad_model"
        case BadCheckpoint():
            kind = "bad_checkpoint"
        case BadRequest() | UnknownName() | BadBatch() | msgspec.ValidationError() | FileExistsError():
            kind = "bad_request"
        case Diverged():
            kind = "diverged"
        case OSError():
            place = f"{error.filename}: " if error.filename else ""
            return (
                "disk",
                f"{place}{error.strerror or error}; nothing was left half-written: "
                "free some space or choose another place",
            )
        case _:
            kind = "internal"
    return kind, " ".join(str(error).split()) or type(error).__name__


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until they end. Raises BadFrame when they cannot be read, BrokenPipeError when nobody listens."""
    trainer = Trainer()

    def send(header: Header, arrays: Arrays | None = None) -> None:
        replies.write(encode_frame(header, arrays))
        replies.flush()

    send({"event": "ready", "torch": str(torch.__version__), "threads": torch.get_num_threads()})
    for header, arrays in requests_of(requests):
        send(*trainer.answer(header, arrays))
        while trainer.events:
            send(trainer.events.pop(0))


def main(requests: BinaryIO, replies: BinaryIO) -> int:
    """Run the child process over claimed pipes; returns its exit status."""
    # Ctrl-C reaches the whole terminal: the node decides what is saved before it closes our stdin.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    quiet_transformers()
    try:
        serve(requests, replies)
    except BadFrame as error:
        print(f"trainer: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(*PIPES))
