"""The trainer: a child process that holds the policy and its optimizer, and does one request at a time, in order.

    python -m learner.trainer       frames of protocol/pipe.py: requests on stdin, replies on stdout, logs on stderr

What always holds: a request that fails leaves weights and optimizer as they were; the same requests on the same
machine with the same number of threads give the same weights, bit for bit, also across `save` and `restore`; what
`export` and `save` write appears whole or not at all. The process ends when stdin does. It reads no clock but to
report seconds, and never touches the network.

    event    {"event": "ready", "torch": str, "threads": n}
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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import torch
from torch import Tensor

from learner.checkpoint import BadCheckpoint, CheckpointHead, read_checkpoint, write_checkpoint
from learner.minibatches import mini_batches
from learner.objective import OBJECTIVES, Bounds, MismatchSums, Objective, Terms, Totals
from learner.optimizer import MOMENTS, all_or_nothing, learning_rate_at, make_adamw, set_learning_rate
from learner.packing import (
    BadBatch,
    Microbatch,
    Ragged,
    Rollouts,
    completion_batch,
    microbatches,
    rollout_batch,
    supervised_batch,
)
from learner.policy import BadModel, Policy, load_policy, make_model, quiet_transformers, tensor_source
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
from protocol.pipe import Arrays, BadFrame, Header, encode_frame


class BadRequest(ValueError):
    """The node asked for something that makes no sense; the message names the field."""


class Diverged(ArithmeticError):
    """A loss or a gradient is not finite. The weights were not changed."""


class Session:
    """A loaded policy with its optimizers: everything that training changes, and everything that a checkpoint holds.

    `steps` counts training steps. The warm start has an optimizer of its own, dropped at the first training step.
    """

    def __init__(self, policy: Policy, hyperparameters: Hyperparameters) -> None:
        self.policy = policy
        self.steps = 0
        self.supervised_steps = 0
        self._warm_start: torch.optim.AdamW | None = None
        self.configure(hyperparameters)

    def configure(self, hyperparameters: Hyperparameters) -> None:
        """Put `hyperparameters` in force, with fresh moments."""
        self.hyperparameters = hyperparameters
        self._objective: Objective = OBJECTIVES[hyperparameters.objective]
        self._optimizer = make_adamw(self.policy, hyperparameters, hyperparameters.learning_rate)

    def supervised(self, batch: Ragged, learning_rate: float) -> dict[str, float]:
        """Take one step of cross entropy, mean over the target tokens, with the warm start's own AdamW."""
        if self._warm_start is None:
            self._warm_start = make_adamw(self.policy, self.hyperparameters, learning_rate)
        set_learning_rate(self._warm_start, learning_rate)
        total = int(batch.targets.sum())
        loss_sum = 0.0
        for part in self._parts(batch, np.ones(len(batch), np.bool_)):
            loss = -self.policy.score(part, 1.0).logprobs.sum() / total
            loss.backward()  # type: ignore[no-untyped-call]
            loss_sum += loss.item()
        grad_norm = self._apply(self._warm_start, loss_sum)
        self.supervised_steps += 1
        return {"loss": loss_sum, "grad_norm": grad_norm, "tokens": total}

    def step(self, batch: Rollouts) -> dict[str, float]:
        """Take one training step on `batch`: an update on each of its mini-batches, all of them or none.

        Sequences of zero advantage only count in the divisor; a mini-batch with no others leaves the weights.
        """
        self._require_within_budget(batch)
        parts = mini_batches(batch, self.hyperparameters.updates_per_step)
        learning_rate = learning_rate_at(self.steps, self.hyperparameters)
        set_learning_rate(self._optimizer, learning_rate)
        sums, loss, norms = MismatchSums(), 0.0, []
        with all_or_nothing(self._optimizer, sum(bool(part.advantages.any()) for part in parts)):
            for part in parts:
                if part.advantages.any():
                    part_loss, norm = self._update(part, sums)
                    loss += part_loss * (len(part.sequences) / len(batch.sequences))
                    norms.append(norm)
        self._warm_start = None
        self.steps += 1
        counts = {"tokens": int(batch.sequences.targets.sum()), "trained_tokens": sums.tokens, "updates": len(norms)}
        told = {"loss": loss, "grad_norm": max(norms, default=0.0), "learning_rate": learning_rate}
        return {**told, **sums.metrics(), **counts}

    def _update(self, batch: Rollouts, sums: MismatchSums) -> tuple[float, float]:
        """One optimizer update on a batch of its own divisor; return its loss and the gradient's norm."""
        totals = self._totals(batch)
        advantages = torch.from_numpy(np.repeat(batch.advantages, batch.sequences.target_counts))
        behaviour = torch.from_numpy(batch.behaviour.copy())
        loss = 0.0
        for part in self._parts(batch.sequences, batch.advantages != 0):
            loss += self._backward(part, behaviour[part.numbers], advantages[part.numbers], totals, sums)
        return loss, self._apply(self._optimizer, loss)

    @torch.no_grad()
    def logprobs(self, batch: Ragged, temperature: float | None) -> Arrays:
        """Return `logprobs` and `entropy`, float32 [C], of the batch's targets under the current weights."""
        total = int(batch.targets.sum())
        found = {"logprobs": np.empty(total, np.float32), "entropy": np.empty(total, np.float32)}
        for part in self._parts(batch, np.ones(len(batch), np.bool_)):
            scores = self.policy.score(part, temperature or self.hyperparameters.temperature)
            found["logprobs"][part.numbers] = scores.logprobs.numpy()
            found["entropy"][part.numbers] = scores.entropy.numpy()
        return found

    def _parts(self, batch: Ragged, keep: Any) -> Iterator[Microbatch]:
        budget = self.hyperparameters.max_tokens_per_microbatch
        return microbatches(batch, keep, budget, share_prompts=self.policy.shares_prompts)

    def _require_within_budget(self, batch: Rollouts) -> None:
        longest, budget = int(batch.sequences.target_counts.max()), self.hyperparameters.max_new_tokens
        if longest > budget:
            raise BadBatch(
                f"a completion of {longest} tokens is over max_new_tokens = {budget}, "
                "the budget that it was leased under"
            )

    def _totals(self, batch: Rollouts) -> Totals:
        return Totals(
            sequences=len(batch.sequences),
            tokens=int(batch.sequences.targets.sum()),
            max_new_tokens=self.hyperparameters.max_new_tokens,
        )

    def _backward(
        self, part: Microbatch, behaviour: Tensor, advantages: Tensor, totals: Totals, sums: MismatchSums
    ) -> float:
        h = self.hyperparameters
        scores = self.policy.score(part, h.temperature)
        terms = Terms(
            logprobs=scores.logprobs,
            behaviour=behaviour,
            advantages=advantages,
            segments=part.segments,
            num_sequences=part.num_sequences,
        )
        bounds = Bounds(clip_low=h.clip_low, clip_high=h.clip_high, weight_cap=h.weight_cap)
        corrected = self._objective(terms, bounds, totals)
        corrected.loss.backward()  # type: ignore[no-untyped-call]
        sums.add(terms, corrected.muted, scores.entropy)
        return corrected.loss.item()

    def _apply(self, optimizer: torch.optim.AdamW, loss: float) -> float:
        """Clip, check, update, forget the gradients; return the norm before clipping."""
        parameters = [parameter for _, parameter in self.policy.parameters]
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.hyperparameters.grad_clip, foreach=True).item()
        if not np.isfinite(norm) or not np.isfinite(loss):
            raise Diverged(
                f"the loss ({loss}) or its gradient ({norm}) is not finite; the weights were left as they were: "
                "lower learning_rate, or look for broken behaviour logprobs"
            )
        optimizer.step()
        self.forget_gradients()
        return norm

    def forget_gradients(self) -> None:
        """Free all gradients; also after a failure, so that the next step does not start from half a sum."""
        self.policy.model.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """Return everything a checkpoint holds, by name, as views of the tensors in use."""
        state = {f"weights/{name}": parameter.detach() for name, parameter in self.policy.parameters}
        for kind, optimizer in (("adamw", self._optimizer), ("warm_start", self._warm_start)):
            state |= self._moments(kind, optimizer)
        return state | {"rng/torch": torch.get_rng_state()}

    @property
    def required(self) -> set[str]:
        """Names of the tensors that every checkpoint of this policy holds."""
        return {"rng/torch", *(f"weights/{name}" for name, _ in self.policy.parameters)}

    def _moments(self, kind: str, optimizer: torch.optim.AdamW | None) -> dict[str, Tensor]:
        if optimizer is None:
            return {}
        return {
            f"{kind}/{moment}/{name}": optimizer.state[parameter][moment]
            for name, parameter in self.policy.parameters
            if parameter in optimizer.state
            for moment in MOMENTS
        }

    def expected(self, name: str) -> tuple[str, tuple[int, ...]] | None:
        """Return the dtype and shape that a checkpoint's tensor `name` must have, None for a name that does not
        belong.
        """
        if name == "rng/torch":
            return "U8", tuple(torch.get_rng_state().shape)
        kind, _, rest = name.partition("/")
        moment, _, parameter_name = ("", "", rest) if kind == "weights" else rest.partition("/")
        parameter = dict(self.policy.parameters).get(parameter_name)
        if parameter is None or (kind, moment) not in _KNOWN:
            return None
        return "F32", () if moment == "step" else tuple(parameter.shape)

    @torch.no_grad()
    def adopt(self, head: CheckpointHead, tensors: Iterator[tuple[str, Any]]) -> None:
        """Take over a checkpoint's state (numpy arrays, already checked by name, dtype and shape), right after
        `configure`.
        """
        self._warm_start = None
        parameters = dict(self.policy.parameters)
        for name, array in tensors:
            tensor = torch.from_numpy(array)
            kind, _, rest = name.partition("/")
            match kind:
                case "rng":
                    torch.set_rng_state(tensor)
                case "weights":
                    parameters[rest].copy_(tensor)
                case _:
                    moment, _, parameter_name = rest.partition("/")
                    self._optimizer_named(kind).state[parameters[parameter_name]][moment] = tensor
        self.steps, self.supervised_steps = head.steps, head.supervised_steps

    def _optimizer_named(self, kind: str) -> torch.optim.AdamW:
        if kind == "adamw":
            return self._optimizer
        if self._warm_start is None:
            self._warm_start = make_adamw(self.policy, self.hyperparameters, self.hyperparameters.learning_rate)
        return self._warm_start


_KNOWN = {("weights", ""), *((kind, moment) for kind in ("adamw", "warm_start") for moment in MOMENTS)}


class Trainer:
    """Turns requests into replies. Holds at most one `Session`; needs no process, so tests talk to it directly."""

    def __init__(self) -> None:
        self._session: Session | None = None

    def answer(self, header: Mapping[str, Any], arrays: Arrays) -> tuple[Header, Arrays]:
        """Do one request and return the reply. Failures become replies; only KeyboardInterrupt and the like travel."""
        number = header.get("id")
        try:
            fields = {key: value for key, value in header.items() if key != "id"}
            request = msgspec.convert(fields, AnyRequest)
            reply, found = self._do(request, arrays)
        except Exception as error:
            if self._session is not None:
                self._session.forget_gradients()
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
                session = self._require_session()
                reply = session.supervised(supervised_batch(arrays, session.policy.vocab_size), request.learning_rate)
            case Step():
                session = self._require_session()
                reply = session.step(rollout_batch(arrays, session.policy.vocab_size))
                reply["steps"] = session.steps
            case Logprobs():
                session = self._require_session()
                found = session.logprobs(completion_batch(arrays, session.policy.vocab_size), request.temperature)
                reply = {}
            case Export():
                reply = {"files": self._export(Path(request.directory), request.dtype, request.max_shard_bytes)}
            case Save():
                reply = self._save(Path(request.directory))
            case Restore():
                reply = self._restore(Path(request.directory), keep_hyperparameters=request.keep_hyperparameters)
        return {**reply, "seconds": time.perf_counter() - started}, found

    def _load(self, request: Load) -> Header:
        require_objective(request.hyperparameters.objective)
        torch.set_num_threads(request.threads)
        torch.manual_seed(request.seed)
        self._session = None  # two models at once might not fit
        policy = load_policy(
            Path(request.directory), gradient_checkpointing=request.hyperparameters.gradient_checkpointing
        )
        self._session = Session(policy, request.hyperparameters)
        return {
            "parameters": policy.num_parameters,
            "vocab_size": policy.vocab_size,
            "fingerprint": policy.fingerprint,
        }

    def _export(self, directory: Path, dtype: ExportDtype, max_shard_bytes: int) -> list[str]:
        return self._require_session().policy.export(directory, dtype, max_shard_bytes)

    def _save(self, directory: Path) -> Header:
        session = self._require_session()
        head = CheckpointHead(
            fingerprint=session.policy.fingerprint,
            steps=session.steps,
            supervised_steps=session.supervised_steps,
            threads=torch.get_num_threads(),
            torch=str(torch.__version__),
            hyperparameters=msgspec.to_builtins(session.hyperparameters),
        )
        sources = [tensor_source(name, tensor, tensor.dtype) for name, tensor in session.tensors().items()]
        size_bytes = write_checkpoint(directory, head, sources)
        return {"steps": session.steps, "bytes": size_bytes}

    def _restore(self, directory: Path, *, keep_hyperparameters: bool) -> Header:
        session = self._require_session()
        checkpoint = read_checkpoint(directory, session.policy.fingerprint, session.expected, session.required)
        head = checkpoint.head
        hyperparameters = session.hyperparameters if keep_hyperparameters else _hyperparameters_of(directory, head)
        self._session = None  # a disk that fails from here on leaves neither the old state nor the new
        session.configure(hyperparameters)
        session.adopt(head, checkpoint.tensors())
        self._session = session
        return {
            "steps": head.steps,
            "supervised_steps": head.supervised_steps,
            "threads": head.threads,
            "hyperparameters": msgspec.to_builtins(session.hyperparameters),
        }

    def _require_session(self) -> Session:
        if self._session is None:
            raise BadRequest('no model is loaded; send "load" first')
        return self._session


def require_objective(name: str) -> None:
    """Raise BadRequest unless `name` is an objective we have."""
    if name not in OBJECTIVES:
        raise BadRequest(f"hyperparameters.objective: {name!r} is none of {', '.join(OBJECTIVES)}")


def _hyperparameters_of(directory: Path, head: CheckpointHead) -> Hyperparameters:
    try:
        hyperparameters = msgspec.convert(head.hyperparameters, Hyperparameters)
        require_objective(hyperparameters.objective)
    except (msgspec.ValidationError, BadRequest) as error:
        raise BadCheckpoint(f"{directory} holds hyperparameters that this version does not know: {error}") from error
    return hyperparameters


def explain(error: Exception) -> tuple[str, str]:
    """Return (kind, one paragraph) for a failed request."""
    match error:
        case BadModel():
            kind = "bad_model"
        case BadCheckpoint():
            kind = "bad_checkpoint"
        case BadRequest() | BadBatch() | msgspec.ValidationError() | FileExistsError():
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
