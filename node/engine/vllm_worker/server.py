"""Serve requests with vLLM: start completions on request, and install versions as each request says (`on_new_version`).

Everything happens in one asyncio loop, except reading, which has a thread. Each completion is a task; vLLM batches them
as slots are free. One task handles installs and other short requests, in their order:

    finish      running completions end with the version they began with; later ones wait for the new version
    continue    running completions are paused, go on with the new weights, and say which version made which token
    abort       running completions are stopped, and restarted with the new version

Invariants:

- A request is answered once.
- The process ends with its standard input, with vLLM's core, and when the core answers nothing for HANG_S.
- A loop that hangs sends no sign of life (`alive`), so the node notices it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import traceback
from collections import deque
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
import psutil
from vllm.v1.engine.exceptions import EngineDeadError

from learner.trainer_api.exit_reasons import FATAL
from learner.trainer_api.last_resort_exit import describe_error
from protocol.core.pipe import Arrays, Header

from ..common_worker.errors import Broken, Refused
from ..common_worker.generate_call import Call, Row
from ..common_worker.keepalive import Alive
from ..common_worker.reader import start_reading
from ..common_worker.replies import Replies
from .engine import HANG_S, Engine, Settings, require_device
from .model_contents import read_contents
from .sampler import NOT_FINITE

WATCH_S = 1.0
"""Seconds between checks of vLLM's core; a caller that waits learns of its death with this delay."""


class Server:
    """Takes requests and answers them. Everything happens in the loop that runs `serve`."""

    def __init__(self, settings: Settings, output: BinaryIO) -> None:
        self._replies = Replies(output)
        self._engine = Engine(settings)
        self._waiting: deque[Row] = deque()
        self._running: dict[asyncio.Task[None], Row] = {}
        self._names: dict[Row, str] = {}  # vLLM's names of the rows that it generates
        self._interrupting: set[asyncio.Task[None]] = set()
        self._gate_open = True
        self._short: asyncio.Queue[tuple[Header, Arrays]] = asyncio.Queue()
        self._clock = Clock()
        self._alive = Alive(self._replies.send)
        self._ids = count()

    async def serve(self, stream: BinaryIO) -> NoReturn:
        loop = asyncio.get_running_loop()
        self._replies.send({"event": "ready", **self._engine.describe()})
        start_reading(stream, lambda *frame: loop.call_soon_threadsafe(self._take, *frame), lambda: leave(0))
        watching = loop.create_task(self._watch())
        while True:
            header, arrays = await self._short.get()
            try:
                reply, results = await self._do(header, arrays)
            except Refused as refusal:
                self._replies.refuse(header["id"], refusal)
            except (Broken, EngineDeadError) as error:
                leave(1, str(error))
            else:
                self._replies.answer(header["id"], reply, results)
            del header, arrays
            assert not watching.done()

    def _take(self, header: Header, arrays: Arrays) -> None:
        match header["op"]:
            case "generate":
                self._waiting.extend(self._replies.admit(header, arrays))
                self._start_waiting()
            case "cancel":
                if (call := self._replies.calls.get(header["target"])) is not None:
                    self._refuse_call(call, Refused("cancelled", "the caller has left"))
            case "interrupt":
                task = asyncio.get_running_loop().create_task(self._interrupt(header["id"]))
                self._interrupting.add(task)
                task.add_done_callback(self._interrupting.discard)
            case _:
                self._short.put_nowait((header, arrays))

    async def _interrupt(self, id: int) -> None:
        """End all calls that have arrived with the tokens that they have: waiting rows at once, running rows as soon as
        vLLM has released them."""
        self._replies.interrupt()
        waiting, self._waiting = self._waiting, deque()
        for row in waiting:
            if not row.call.answered:
                self._replies.finish_row(row)
        try:
            await self._engine.abort(list(self._names.values()))
        except EngineDeadError as error:
            leave(1, str(error))
        self._replies.answer(id, {}, {})

    async def _do(self, header: Header, arrays: Arrays) -> tuple[Header, Arrays]:
        match header["op"]:
            case "install":
                how = header.get("on_new_version", "finish")
                return await self._install(Path(header["directory"]), header["version"], how), {}
            case "release":
                return {}, {}  # vLLM reserves its memory once, and needs all of it for the active version
            case "score":
                return {}, {"logprobs": await self._score(arrays)}
            case "describe":
                return self._engine.describe(), {}
            case op:
                raise Refused(
                    "unknown_op",
                    f"this worker knows install, generate, interrupt, release, score, describe and cancel, not {op!r}",
                )

    # Installing.

    async def _install(self, directory: Path, version: Header, how: str) -> Header:
        started = time.perf_counter()
        contents = read_contents(directory)
        if not (how == "continue" and self._engine.swaps(contents)):
            await self._clear(again=how == "abort")
        try:
            in_place = await self._engine.install(contents, version)
            # Even if the caller has left meanwhile: the node learns from this event which version is active.
            self._replies.send({"event": "installed", "version": version, "directory": str(directory)})
        finally:
            self._gate_open = True
            self._start_waiting()
        return {"in_place": in_place, "seconds": time.perf_counter() - started}

    async def _clear(self, *, again: bool) -> None:
        """Start nothing until `_gate_open`, and return when nothing runs. Running rows restart if `again`, or end."""
        self._gate_open = False
        if again:
            for task, row in list(self._running.items()):
                if task.cancel():
                    self._waiting.append(row)
        if self._running:
            await asyncio.wait(list(self._running))

    # Generating.

    def _start_waiting(self) -> None:
        while self._gate_open and self._waiting:
            row = self._waiting.popleft()
            if row.call.answered:
                continue
            if row.call.interrupted:  # it was to be restarted with a new version
                self._replies.finish_row(row)
                continue
            try:
                self._engine.require_generable(row)
            except Refused as refusal:
                self._refuse_call(row.call, refusal)
                continue
            task = asyncio.get_running_loop().create_task(self._complete(row))
            self._running[task] = row
            task.add_done_callback(self._running.pop)

    async def _complete(self, row: Row) -> None:
        if row.call.interrupted:  # before its turn came
            self._replies.finish_row(row)
            return
        began = self._clock.enter()
        self._names[row] = name = str(next(self._ids))
        try:
            await self._engine.complete(name, row, tell=self._replies.tell)
        except EngineDeadError as error:
            leave(1, str(error))
        except Refused as refusal:
            self._refuse_call(row.call, refusal)
            return
        except Exception as error:  # from vLLM, about this request; without an answer its caller would wait for ever
            self._refuse_call(row.call, Refused("bad_request", f"vLLM cannot generate this: {error}"))
            return
        finally:
            del self._names[row]
            row.seconds += self._clock.leave(began)
        if float(row.logprobs.max(initial=0.0)) >= NOT_FINITE:
            why = "the model's logits are not finite: the installed weights are broken, install another version"
            self._refuse_call(row.call, Refused("not_finite", why))
            return
        self._replies.finish_row(row)

    async def _score(self, arrays: Arrays) -> np.ndarray[Any, Any]:
        """Score tokens one by one, as in generating. Request and reply are those of the transformers worker."""
        self._engine.llm  # noqa: B018  # refuses if nothing is installed
        prompts, completions = arrays["prompt_lengths"].tolist(), arrays["completion_lengths"].tolist()
        flat = np.split(arrays["tokens"], np.cumsum(arrays["prompt_lengths"] + arrays["completion_lengths"])[:-1])
        rows = []
        for tokens, prompt, completion, temperature in zip(
            flat, prompts, completions, arrays["temperatures"].tolist(), strict=True
        ):
            if prompt < 1:
                raise Refused("bad_request", "the prompt is empty: the first token would have no distribution")
            ids = tokens.tolist()
            row = Row(
                call=Call(-1),
                prompt=tuple(ids[:prompt]),
                seed=0,
                temperature=temperature,
                greedy=False,
                budget=completion,
                stop_ids=(),
            )
            if completion:
                self._engine.require_generable(row)
                if not 0 <= min(ids) <= max(ids) < self._engine.vocab_size:
                    raise Refused("bad_request", f"a token id is outside the vocabulary of {self._engine.vocab_size}")
            rows.append((row, ids[prompt:]))
        await asyncio.gather(
            *(self._engine.complete(f"score-{next(self._ids)}", row, forced) for row, forced in rows if forced)
        )
        return np.concatenate([np.zeros(0, np.float32), *(row.logprobs for row, _ in rows)])

    # Answering.

    def _refuse_call(self, call: Call, refusal: Refused) -> None:
        if self._replies.refuse_call(call, refusal):
            for task, row in self._running.items():
                if row.call is call and task is not asyncio.current_task():
                    task.cancel()

    async def _watch(self) -> None:
        """End the process when vLLM's core has ended or hangs, unless the core is on trial or was replaced."""
        while True:
            await asyncio.sleep(WATCH_S)
            if self._engine.is_starting:
                continue
            asked = self._engine.core
            if self._engine.is_dead:
                leave(1, "vLLM's core has ended; its last output is above")
            try:
                await asyncio.wait_for(self._engine.answer(), HANG_S)
            except TimeoutError:
                why = f"vLLM's core has answered nothing for {HANG_S:.0f} s"
            except Exception as error:  # from vLLM: a core that answers no questions is of no use
                why = f"vLLM's core no longer answers questions: {error}"
            else:
                self._alive.step()
                continue
            if asked is self._engine.core:
                leave(1, why)


class Clock:
    """Divides the time in which any completion runs among the running ones, in equal parts at every moment, so that
    their shares add up to it."""

    def __init__(self) -> None:
        self._running = 0
        self._share = 0.0  # the share of a completion that has been running since the start
        self._at = time.perf_counter()

    def enter(self) -> float:
        self._advance()
        self._running += 1
        return self._share

    def leave(self, entered: float) -> float:
        """Return the share of the time since `enter` returned `entered`."""
        self._advance()
        self._running -= 1
        return self._share - entered

    def _advance(self) -> None:
        now = time.perf_counter()
        if self._running:
            self._share += (now - self._at) / self._running
        self._at = now


def leave(code: int, why: str = "") -> NoReturn:
    """End this process and all processes that it spawned, at once."""
    if why:
        print(f"{FATAL}{' '.join(why.split())}", file=sys.stderr, flush=True)
    for child in psutil.Process().children(recursive=True):
        child.kill()
    os._exit(code)


def take_stdin() -> BinaryIO:
    """Return the pipe from the node, and leave an empty stdin to spawned processes."""
    stream = os.fdopen(os.dup(0), "rb", buffering=0)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return stream


def run(settings: dict[str, Any], output: BinaryIO) -> NoReturn:
    """Serve the requests on stdin. `settings` are the fields of `Settings`. Ends with a message if there is no such
    device."""
    stream = take_stdin()
    wanted = Settings(**settings)
    try:
        require_device(wanted.device)
        asyncio.run(Server(wanted, output).serve(stream))
    except Refused as refusal:
        leave(1, str(refusal))
    except BaseException as error:  # also SystemExit: the node must learn why this process ends
        traceback.print_exception(error)
        leave(1, describe_error(error))
    leave(0)
