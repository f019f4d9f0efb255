"""Two processes under torchrun do what one does: the same losses, files and checkpoints; and they end together."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trio
from hypothesis import given
from hypothesis import strategies as st

from learner.artifacts.chunk_names import ChunkNames
from learner.trainer_api.errors import BadRequest, agreed
from learner.trainer_api.exit_reasons import LAST_WORDS, LINE_CHARS
from learner.trainer_api.requests import AnyRequest, Save
from learner.training.batches.packing import deal
from learner.training.distributed.launcher import arguments
from learner.training.distributed.ranks import Ranks
from learner.training.server import RankFailed, Trainer
from node.config.swarm_config import TrainerSection
from node.learner_role.training.trainer_process import TRAINER, launch_command
from node.processes.child import open_child
from node.processes.outcomes import ChildDied, ChildEvent, ChildStarted
from node.processes.spec import ChildSpec, RestartLimits
from protocol.core.pipe import Arrays, Header
from protocol.versions.chunking import Source, Tables
from tests.support.processes import Child

CONFIG: dict[str, Any] = {
    "vocab_size": 41,  # no number of ranks divides it, nor the layers below
    "hidden_size": 32,
    "intermediate_size": 49,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.1,
    "tie_word_embeddings": True,
}
HYPERPARAMETERS = {
    "learning_rate": 1e-3,
    "max_new_tokens": 12,
    "max_tokens_per_microbatch": 40,
    "updates_per_step": 2,
}
STEPS = 10


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "qwen3"
    ok(Trainer(), "make_model", directory=str(directory), config=CONFIG)
    return directory


@pytest.fixture(scope="module")
def pair() -> Iterator[Child]:
    """Two ranks on two processes."""
    child = Child("-m", "learner.training.distributed.launcher", "2")
    ready, _ = child.receive()
    assert (ready["event"], ready["ranks"]) == ("ready", 2)
    yield child
    assert child.end() == 0


def ok(trainer: Trainer, op: str, arrays: Arrays | None = None, **fields: Any) -> Header:
    reply, _ = trainer.answer({"id": 7, "op": op, **fields}, arrays or {})
    assert reply["ok"], reply
    return reply


def rollouts(seed: int) -> Arrays:
    """Six groups of three, of very different lengths."""
    generator = np.random.default_rng(seed)
    prompts = [prompt for length in (1, 2, 3, 5, 8, 13) for prompt in [generator.integers(0, 41, length)] * 3]
    answers = [generator.integers(0, 41, length) for length in generator.integers(1, 13, 18)]
    pairs = list(zip(prompts, answers, strict=True))
    total = sum(map(len, answers))
    return {
        "tokens": np.concatenate([part for pair in pairs for part in pair]).astype(np.int32),
        "lengths": np.array([len(prompt) + len(answer) for prompt, answer in pairs], np.int32),
        "mask": np.concatenate([[0] * len(prompt) + [1] * len(answer) for prompt, answer in pairs]).astype(np.uint8),
        "behaviour_logprobs": (np.log(1 / 41) + 0.3 * generator.normal(size=total)).astype(np.float32),
        "lags": np.zeros(total, np.int32),
        "rewards": generator.normal(size=18).astype(np.float32),
        "group_sizes": np.full(6, 3, np.int32),
        "origins": np.zeros(18, np.uint8),
    }


def load(model: Path) -> dict[str, Any]:
    return {"directory": str(model), "hyperparameters": HYPERPARAMETERS, "threads": 1}


def told(reply: Header) -> dict[str, Any]:
    return {name: value for name, value in reply.items() if name not in ("id", "ok", "seconds")}


def tables(names: ChunkNames, directory: Path) -> Tables:
    contents = files(directory)
    sources = [
        Source(name=name, size=len(data), read=lambda offset, size, data=data: data[offset : offset + size])  # type: ignore[misc]
        for name, data in contents.items()
    ]
    return names.describe(sources, directory)


def files(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


@pytest.mark.parametrize(
    ("steps", "changes"),
    [
        (STEPS, {}),
        (3, {"objective": "ppo", "value_learning_rate": 1e-2}),
        (3, {"objective": "decoupled", "kl": 0.1}),
        (3, {"max_tokens_per_microbatch": 10_000, "updates_per_step": 1, "gradient_checkpointing": True}),
    ],
)
def test_two_ranks_have_the_loss_curve_of_one(model: Path, pair: Child, steps: int, changes: dict[str, Any]) -> None:
    one = Trainer()
    fields = load(model) | {"hyperparameters": HYPERPARAMETERS | changes}
    assert ok(one, "load", **fields)["fingerprint"] == pair.ask("load", **fields)["fingerprint"]
    for seed in range(steps):
        theirs, ours = told(pair.ask("step", rollouts(seed))), told(ok(one, "step", rollouts(seed)))
        assert theirs.pop("by_lag")["0"] == pytest.approx(ours.pop("by_lag")["0"], rel=1e-4, abs=1e-4)
        assert theirs == pytest.approx(ours, rel=1e-4, abs=1e-4)
    scored = {name: rollouts(0)[name] for name in ("tokens", "lengths", "mask")}
    pair.send("logprobs", scored)
    _, both = pair.receive()
    _, alone = one.answer({"id": 1, "op": "logprobs"}, scored)
    assert both["logprobs"] == pytest.approx(alone["logprobs"], abs=1e-3)
    assert both["entropy"] == pytest.approx(alone["entropy"], abs=1e-3)
    pair.send("logprobs", scored, weights="bfloat16")
    _, both = pair.receive()
    _, alone = one.answer({"id": 1, "op": "logprobs", "weights": "bfloat16"}, scored)
    assert both["logprobs"] == pytest.approx(alone["logprobs"], abs=1e-2)


def test_an_export_has_the_same_bytes_whatever_the_ranks(tmp_path: Path, model: Path, pair: Child) -> None:
    one = Trainer()
    ok(one, "load", **load(model))
    pair.ask("load", **load(model))
    for dtype, shard in (("float32", 9_000), ("bfloat16", 1 << 30)):
        places = [tmp_path / f"{dtype}-{name}" for name in ("one", "two")]
        ok(one, "export", directory=str(places[0]), dtype=dtype, max_shard_bytes=shard)
        pair.send("export", directory=str(places[1]), dtype=dtype, max_shard_bytes=shard)
        names = pair.receive()[1]
        assert files(places[0]) == files(places[1])
        known, hashed = ChunkNames(), ChunkNames()
        known.learn(names)
        assert len(names["files"]) == len(list(places[1].glob("*.safetensors")))
        assert tables(known, places[1]) == tables(hashed, places[1]), "whichever rank wrote it"
    assert len(files(tmp_path / "float32-two")) > 5


def test_a_mixture_of_experts_on_two_ranks_is_that_of_one(tmp_path: Path, pair: Child) -> None:
    config = {
        **{name: value for name, value in CONFIG.items() if name not in ("tie_word_embeddings", "head_dim")},
        **{"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    }
    ok(Trainer(), "make_model", directory=str(tmp_path / "moe"), config=config, architecture="qwen3_moe")
    one = Trainer()
    fields = load(tmp_path / "moe") | {"router_replay": True}
    ok(one, "load", **fields)
    pair.ask("load", **fields)
    batch, dice = rollouts(0), np.random.default_rng(0)
    experts = np.argsort(dice.random((len(batch["lags"]), 2, 5)))[..., :2].astype(np.uint8)
    batch |= {"experts": experts, "routed": dice.integers(0, 2, len(experts)).astype(np.uint8)}
    for name, step in (("untrained", False), ("trained", True)):
        if step:
            theirs, ours = pair.ask("step", batch), ok(one, "step", batch)
            for figure in ("loss", "replayed", "mismatch_kl"):
                assert theirs[figure] == pytest.approx(ours[figure], rel=1e-4, abs=1e-4)
            assert 0 < ours["replayed"] < 1
        ok(one, "export", directory=str(tmp_path / name / "1"), dtype="bfloat16", max_shard_bytes=9_000)
        pair.ask("export", directory=str(tmp_path / name / "2"), dtype="bfloat16", max_shard_bytes=9_000)
    assert files(tmp_path / "untrained" / "1") == files(tmp_path / "untrained" / "2")
    assert files(tmp_path / "trained" / "1").keys() == files(tmp_path / "trained" / "2").keys()


def test_an_adapter_on_two_ranks_is_that_of_one(tmp_path: Path, model: Path, pair: Child) -> None:
    one = Trainer()
    fields = load(model) | {"lora": {"rank": 3, "alpha": 6}, "seed": 5}
    assert ok(one, "load", **fields)["fingerprint"] == pair.ask("load", **fields)["fingerprint"]
    for name in ("first", "next"):
        ok(one, "export", directory=str(tmp_path / name / "1"), dtype="float32")
        pair.ask("export", directory=str(tmp_path / name / "2"), dtype="float32")
        theirs, ours = pair.ask("step", rollouts(0)), ok(one, "step", rollouts(0))
        assert theirs["loss"] == pytest.approx(ours["loss"], rel=1e-4, abs=1e-4)
    assert files(tmp_path / "first" / "1") == files(tmp_path / "first" / "2")
    assert files(tmp_path / "next" / "1").keys() == files(tmp_path / "next" / "2").keys()


def test_what_two_ranks_saved_one_restores_and_the_reverse(tmp_path: Path, model: Path, pair: Child) -> None:
    one = Trainer()
    ok(one, "load", **load(model))
    pair.ask("load", **load(model))
    for seed in range(2):
        pair.ask("step", rollouts(seed))
    pair.ask("save", directory=str(tmp_path / "of-two"))
    assert ok(one, "restore", directory=str(tmp_path / "of-two"))["steps"] == 2
    ok(one, "export", directory=str(tmp_path / "1"), dtype="float32")
    pair.ask("export", directory=str(tmp_path / "2"), dtype="float32")
    assert files(tmp_path / "1") == files(tmp_path / "2")

    ok(one, "save", directory=str(tmp_path / "of-one"))
    straight = [told(pair.ask("step", rollouts(seed))) for seed in (2, 3)]
    pair.ask("restore", directory=str(tmp_path / "of-one"))
    assert [told(pair.ask("step", rollouts(seed))) for seed in (2, 3)] == straight, "not a bit was lost on the way"


def test_a_checkpoint_written_beside_training_holds_the_moment_it_was_asked_for(
    tmp_path: Path, model: Path, pair: Child
) -> None:
    pair.ask("load", **load(model))
    pair.ask("step", rollouts(0))
    pair.ask("save", directory=str(tmp_path / "waited"))
    assert "bytes" not in pair.ask("save", directory=str(tmp_path / "beside"), wait=False)
    pair.send("step", rollouts(1))
    frames = [pair.receive()[0] for _ in range(2)]  # the event comes before or after the step's reply
    [saved] = [frame for frame in frames if "event" in frame]
    assert (saved["event"], saved["directory"]) == ("saved", str(tmp_path / "beside"))
    assert saved["bytes"] == sum(
        (tmp_path / "beside" / name).stat().st_size
        for name in json.loads((tmp_path / "beside" / "trainer.json").read_text())["files"]
    )
    assert files(tmp_path / "beside") == files(tmp_path / "waited")


def ended(child: Child, count: int) -> tuple[dict[str, tuple[Header, Arrays]], list[Header]]:
    """The next `count` frames: events by their names, with arrays, and replies in order."""
    frames = [child.receive() for _ in range(count)]
    events = {str(header["event"]): (header, arrays) for header, arrays in frames if "event" in header}
    replies = [header for header, _ in frames if "event" not in header]
    assert all(reply["ok"] for reply in replies), replies
    return events, replies


LORA = {"lora": {"rank": 3, "alpha": 6}}


@pytest.mark.parametrize(
    ("fields", "dtype"),
    [({}, "float32"), ({}, "bfloat16"), (LORA, "float32"), ({"objective": "decoupled", "kl": 0.1}, "bfloat16")],
)
def test_an_export_and_a_checkpoint_beside_training_hold_the_moment_they_were_asked_for(
    tmp_path: Path, model: Path, pair: Child, fields: dict[str, Any], dtype: str
) -> None:
    objective = {name: value for name, value in fields.items() if name != "lora"}
    adapters = {name: value for name, value in fields.items() if name == "lora"}
    pair.ask("load", **load(model) | {"hyperparameters": HYPERPARAMETERS | objective}, **adapters)
    pair.ask("step", rollouts(0))
    pair.send("export", directory=str(tmp_path / "waited"), dtype=dtype, max_shard_bytes=9_000)
    waited, names = pair.receive()
    pair.ask("save", directory=str(tmp_path / "saved"))
    for number in (1, 2):
        asked = {"directory": str(tmp_path / f"beside-{number}"), "dtype": dtype, "max_shard_bytes": 9_000}
        pair.send("export", **asked, wait=False)
        pair.send("save", directory=str(tmp_path / f"saved-{number}"), wait=False)
        pair.send("step", rollouts(number))
        events, replies = ended(pair, 5)
        assert events["saved"][0]["directory"] == str(tmp_path / f"saved-{number}")
        exported, found = events["exported"]
        assert exported["files"] == sorted(files(tmp_path / f"beside-{number}"))
        assert "files" not in replies[0]
        assert replies[0]["probe"] == exported["probe"]
        if number == 1:
            assert exported["probe"] == waited["probe"]
            assert files(tmp_path / "beside-1") == files(tmp_path / "waited")
            assert files(tmp_path / "saved-1") == files(tmp_path / "saved")
        assert found.keys() == names.keys()
        if names:
            known = ChunkNames()
            known.learn(found)
            assert tables(known, tmp_path / f"beside-{number}") == tables(ChunkNames(), tmp_path / f"beside-{number}")
    assert files(tmp_path / "beside-2") != files(tmp_path / "waited")


def test_a_mixture_of_experts_is_exported_beside_training(tmp_path: Path, pair: Child) -> None:
    config = {
        **{name: value for name, value in CONFIG.items() if name not in ("tie_word_embeddings", "head_dim")},
        **{"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    }
    ok(Trainer(), "make_model", directory=str(tmp_path / "moe"), config=config, architecture="qwen3_moe")
    pair.ask("load", **load(tmp_path / "moe"))
    pair.ask("export", directory=str(tmp_path / "waited"), dtype="float32", max_shard_bytes=9_000)
    pair.send("export", directory=str(tmp_path / "beside"), dtype="float32", max_shard_bytes=9_000, wait=False)
    pair.send("step", rollouts(0))
    events, _ = ended(pair, 3)
    assert events["exported"][0]["directory"] == str(tmp_path / "beside")
    assert files(tmp_path / "beside") == files(tmp_path / "waited")


def test_what_one_rank_cannot_do_is_told_once_and_all_go_on(tmp_path: Path, model: Path, pair: Child) -> None:
    pair.ask("load", **load(model))
    pair.ask("step", rollouts(0))
    pair.ask("save", directory=str(tmp_path / "checkpoint"))
    theirs = tmp_path / "checkpoint" / "rank-00001.safetensors"
    data = theirs.read_bytes()
    theirs.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    pair.send("restore", directory=str(tmp_path / "checkpoint"))
    reply, _ = pair.receive()
    assert reply["kind"] == "bad_checkpoint"
    assert "rank-00001.safetensors is damaged" in reply["error"]
    theirs.unlink()
    for op, fields, kind in (
        ("restore", {"directory": str(tmp_path / "checkpoint")}, "bad_checkpoint"),
        ("save", {"directory": str(tmp_path / "checkpoint")}, "bad_request"),
        ("export", {"directory": str(tmp_path)}, "bad_request"),
        ("step", {}, "bad_request"),
    ):
        pair.send(op, **fields)
        reply, _ = pair.receive()
        assert (reply["ok"], reply["kind"]) == (False, kind), reply
    pair.send("step", rollouts(1) | {"rewards": np.tile(np.array([3e38, -3e38], np.float32), 9)})
    assert pair.receive()[0]["kind"] == "diverged"
    assert pair.ask("step", rollouts(1))["steps"] == 2


@contextmanager
def limited(child: Child, rank: int, what: int, most: int) -> Iterator[None]:
    """One rank of the two may not go beyond: a disk that is full for it alone."""
    before = resource.prlimit(ranks_of(child)[rank], what)
    resource.prlimit(ranks_of(child)[rank], what, (most, before[1]))
    yield
    resource.prlimit(ranks_of(child)[rank], what, before)


@pytest.mark.parametrize("full", [0, 1])
def test_a_disk_that_is_full_for_one_rank_is_told_by_all_and_all_go_on(
    tmp_path: Path, model: Path, pair: Child, full: int
) -> None:
    pair.ask("load", **load(model))
    pair.ask("step", rollouts(0))
    requests: dict[str, dict[str, Any]] = {"save": {}, "export": {"max_shard_bytes": 9_000}}
    for op, fields in requests.items():
        with limited(pair, full, resource.RLIMIT_FSIZE, 4_000):
            pair.send(op, directory=str(tmp_path / op), **fields)
            reply, _ = pair.receive()
        assert (reply["ok"], reply["kind"]) == (False, "disk"), reply
        assert "too large" in reply["error"]
    with limited(pair, full, resource.RLIMIT_FSIZE, 4_000):
        pair.ask("save", directory=str(tmp_path / "save"), wait=False)
        event, _ = pair.receive()
    assert (event["event"], "too large" in event["error"]) == ("save_failed", True)
    with limited(pair, full, resource.RLIMIT_FSIZE, 4_000):
        pair.ask("export", directory=str(tmp_path / "export"), max_shard_bytes=9_000, wait=False)
        event, _ = pair.receive()
    assert (event["event"], event["kind"], "too large" in event["error"]) == ("export_failed", "disk", True)
    assert list(tmp_path.iterdir()) == [], "nothing half-written is left"
    for op, fields in requests.items():
        pair.ask(op, directory=str(tmp_path / op), **fields)


def test_a_base_model_that_one_rank_cannot_open_any_more_stops_no_checkpoint(
    tmp_path: Path, model: Path, pair: Child
) -> None:
    pair.ask("load", **load(model), lora={"rank": 3, "alpha": 6})
    pair.ask("save", directory=str(tmp_path / "before"))
    with unreadable(pair, model):
        pair.ask("save", directory=str(tmp_path / "after"))
    assert files(tmp_path / "before") == files(tmp_path / "after")


@contextmanager
def unreadable(child: Child, model: Path) -> Iterator[None]:
    aside = model.with_name("aside")
    model.rename(aside)
    yield
    aside.rename(model)


def test_what_a_disk_refuses_one_rank_unagreed_ends_them_all() -> None:
    class Refused(Trainer):
        def _do(self, request: AnyRequest, arrays: Arrays) -> tuple[Header, Arrays]:
            error = OSError(errno.EIO, "Input/output error")
            raise agreed(error) if isinstance(request, Save) else error

    save, export = ({"id": 0, "op": op, "directory": "here"} for op in ("save", "export"))
    assert Refused(Ranks(count=2)).answer(save, {})[0]["kind"] == "disk"
    assert Refused().answer(export, {})[0]["kind"] == "disk"
    with pytest.raises(RankFailed, match="Input/output"):
        Refused(Ranks(count=2)).answer(export, {})


def test_layers_compute_in_bfloat16_and_weights_stay_float32(tmp_path: Path, model: Path) -> None:
    """One GPU does the same: FSDP over a group of one, for its mixed precision."""
    wide, narrow = Trainer(), Trainer()
    ok(wide, "load", **load(model))
    assert ok(narrow, "load", **load(model), compute_dtype="bfloat16")["compute_dtype"] == "bfloat16"
    for trainer, name in ((wide, "wide"), (narrow, "narrow")):
        ok(trainer, "export", directory=str(tmp_path / name), dtype="float32")
    assert files(tmp_path / "wide") == files(tmp_path / "narrow")
    replies = [ok(trainer, "step", rollouts(0)) for trainer in (wide, narrow)]
    for name in ("loss", "grad_norm", "entropy", "mean_ratio"):
        assert replies[0][name] == pytest.approx(replies[1][name], rel=0.05, abs=0.05)
        assert replies[0][name] != replies[1][name]
    ok(narrow, "save", directory=str(tmp_path / "checkpoint"))
    ok(narrow, "restore", directory=str(tmp_path / "checkpoint"))
    assert ok(narrow, "step", rollouts(1))["steps"] == 2


def ranks_of(child: Child) -> list[int]:
    pid = child.process.pid
    return [int(rank) for rank in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.rest
def test_when_one_rank_is_killed_all_end_and_say_so(tmp_path: Path, model: Path) -> None:
    child = Child("-m", "learner.training.distributed.launcher", "2")
    child.receive()
    child.ask("load", **load(model))
    ranks = ranks_of(child)
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    assert child.replies.read() == b"", "the pipe ends, so the node starts it anew"
    status, said = child.bury()  # which reads the log to its end: nobody is left to write to it
    assert status == 1
    [cause] = [
        line for line in said.splitlines() if line.startswith("trainer: rank 1 was killed by SIGKILL; if nobody")
    ]
    assert cause.endswith(". All 2 ranks of this machine were ended")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.rest
def test_ranks_never_outlive_what_started_them(number: signal.Signals) -> None:
    child = Child("-m", "learner.training.distributed.launcher", "2")
    child.receive()
    ranks = ranks_of(child)
    for pid in ranks:
        os.kill(pid, signal.SIGINT)  # as Ctrl-C in a terminal would: it is the node's to decide
    child.process.send_signal(number)
    assert child.replies.read() == b"", "no rank holds the pipe any more"
    child.bury()  # returns once no process has its log open any more


LAUNCHER = (
    "import sys; from learner.training.distributed.launcher import main; "
    "sys.exit(main([sys.argv[1]], program=sys.argv[2:]))"
)

RANK = """
import os, signal, sys, time
from pathlib import Path
import torch  # as every rank does: it takes long enough to be known before one ends

rank, how, first = int(os.environ["RANK"]), sys.argv[1], int(sys.argv[2])
line = Path(sys.argv[3])
say = lambda text: print(text, file=sys.stderr, flush=True)
say(f"rank {rank} is here")
if rank == first:
    # The other holds its end of the line as long as this one, and hears of its death at once.
    end = os.open(line, os.O_WRONLY)
    for word in ("one", "", "two", "\\x1b[31mthree", "x" * 5000, "the tensor is sad"):
        say(word)
    if how == "exit":
        os._exit(7)
    os.kill(os.getpid(), getattr(signal, how))
os.read(os.open(line, os.O_RDONLY), 1)
say("the other has gone")
os._exit(1)
"""
"""One of two ranks goes by itself, in which way is told, and the other because of that, before anybody looks."""


@pytest.mark.parametrize(("how", "ended"), [("exit", "ended with exit code 7"), ("SIGSEGV", "was killed by SIGSEGV")])
@pytest.mark.parametrize("first", [0, 1])
def test_the_rank_that_ended_first_is_named_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, how: str, ended: str
) -> None:
    (temporary := tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    (tmp_path / "rank.py").write_text(RANK)
    os.mkfifo(tmp_path / "line")
    child = Child("-c", LAUNCHER, "2", str(tmp_path / "rank.py"), how, str(first), str(tmp_path / "line"))
    assert child.replies.read() == b""
    status, said = child.bury()
    assert status == 1
    lines = said.splitlines()
    told = lines[lines.index(f"trainer: rank {first} {ended}. All 2 ranks of this machine were ended") + 1 :]
    assert told[-1] == f"trainer: rank {first}: the tensor is sad"
    assert len(told) == LAST_WORDS
    assert all(line.startswith(f"trainer: rank {first}: ") and len(line) < LINE_CHARS + 20 for line in told)
    assert f"rank {1 - first}: rank {1 - first} is here" in lines, "each line must name its rank"
    assert not list(temporary.glob("torchelastic*")), "and it leaves no files"


@pytest.mark.parametrize(
    ("gpus", "told"), [(0, 'there are 0; set device = "cpu"'), (1, 'are 1; set [trainer] ranks = 1, or device = "cpu"')]
)
def test_more_ranks_than_gpus_are_refused_with_what_to_set(
    monkeypatch: pytest.MonkeyPatch, gpus: int, told: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(BadRequest) as refused:
        Ranks().place("cuda", "auto")
    assert str(refused.value).endswith(told)


def test_torchrun_is_told_of_one_machine_or_of_many() -> None:
    assert arguments(4)[4:6] == ["--nproc-per-node", "4"]
    many = arguments(8, 2, 1, "[2001:db8::1]:29500")
    assert many[many.index("--master-addr") + 1 : many.index("--master-addr") + 4 : 2] == ["[2001:db8::1]", "29500"]
    assert many[-2:] == ["-m", "learner.training.server"]


@given(widths=st.lists(st.integers(1, 500), max_size=40), ranks=st.integers(1, 5))
def test_rows_are_dealt_once_and_evenly(widths: list[int], ranks: int) -> None:
    dealt = deal(np.array(widths, np.int64), ranks)
    assert sorted(np.concatenate(dealt).tolist()) == list(range(len(widths)))
    totals = [int(np.array(widths, np.int64)[rows].sum()) for rows in dealt]
    assert max(totals) - min(totals) <= max(widths, default=0)


@pytest.mark.rest
async def test_the_node_is_told_why_its_ranks_ended_and_has_new_ones(model: Path) -> None:
    events: list[ChildEvent] = []
    died, back = trio.Event(), trio.Event()

    def note(event: ChildEvent) -> None:
        events.append(event)
        if isinstance(event, ChildDied):
            died.set()
        elif isinstance(event, ChildStarted) and died.is_set():
            back.set()

    argv = launch_command(TRAINER, TrainerSection(ranks=2))
    spec = ChildSpec(name="trainer", argv=argv, restarts=RestartLimits(first_delay_s=0.0))
    async with open_child(spec, on_event=note) as child:
        await child.call("load", load(model))
        pid = child.pid
        ranks = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(ranks[0]), signal.SIGKILL)
        await died.wait()
        [end] = [event.exit for event in events if isinstance(event, ChildDied)]
        assert end.predicate.startswith("ended with exit code 1: rank 0 was killed by SIGKILL; if nobody killed it")
        assert end.predicate.endswith("All 2 ranks of this machine were ended")
        await back.wait()
        reply, _ = await child.call("load", load(model))
        assert reply["ranks"] == 2
    assert child.pid is None
