"""Test the worker's frames, its decoding against the library's own, and its behaviour when memory runs out."""

from __future__ import annotations

import io
import json
import math
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from safetensors.torch import load_file, save_file
from transformers.cache_utils import DynamicLayer

from node.engine.common_worker.errors import Broken, Refused
from node.engine.common_worker.generate_call import Call, Row
from node.engine.common_worker.weight_files import weight_files
from node.engine.transformers_worker import scoring
from node.engine.transformers_worker.generation import Generator
from node.engine.transformers_worker.kv_cache import GrowingLayer
from node.engine.transformers_worker.policy import Policy, Settings, choose_device
from node.engine.transformers_worker.scoring import Scorer
from node.engine.transformers_worker.server import Server
from protocol.core import pipe
from protocol.core.pipe import Arrays, Header, encode_frame, read_frame
from tests.support.node_fixtures import Models
from tests.support.store_fixture import safetensors_file

ARRAYS = st.dictionaries(
    st.text(max_size=5),
    st.sampled_from(sorted(pipe.DTYPES)).flatmap(
        lambda dtype: arrays_of.arrays(dtype, arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0))
    ),
    max_size=4,
)


@given(header=st.dictionaries(st.text(max_size=5).filter(lambda key: key != "arrays"), st.integers()), arrays=ARRAYS)
def test_the_workers_frames_are_the_pipes_frames(header: pipe.Header, arrays: pipe.Arrays) -> None:
    frame = encode_frame(header, arrays)
    assert frame == pipe.encode_frame(header, arrays)
    read = read_frame(io.BytesIO(frame))
    assert read is not None
    assert read[0] == header
    assert {name: array.tobytes() for name, array in read[1].items()} == {n: a.tobytes() for n, a in arrays.items()}
    assert read_frame(io.BytesIO(frame[:-1])) is None


@pytest.fixture
def policy(models: Models) -> Policy:
    policy = Policy(Settings(device="cpu"))
    policy.install(models.first, {"version": 1})
    return policy


def make_rows(prompts: Sequence[tuple[int, ...]], *, budget: int, greedy: bool = False) -> list[Row]:
    call = Call(0)
    return [
        Row(call=call, prompt=prompt, seed=seed, temperature=1.0, greedy=greedy, budget=budget, stop_ids=(0,))
        for seed, prompt in enumerate(prompts)
    ]


def generate(policy: Policy, rows: list[Row]) -> list[list[int]]:
    Generator(policy, lambda: False).run(rows)
    return [row.tokens.tolist() for row in rows]


PROMPTS = [(1, 2, 3), (4,), (1, 2, 3), tuple(range(1, 40)), (9, 8), (1, 2, 3)]


@pytest.mark.parametrize("name", ["first", "untied", "llama"])
def test_a_padded_batch_decodes_what_the_library_decodes_one_by_one(models: Models, name: str) -> None:
    policy = Policy(Settings(device="cpu"))
    policy.install(getattr(models, name), {})
    rows = make_rows(PROMPTS, budget=20, greedy=True)
    for prompt, tokens in zip(PROMPTS, generate(policy, rows), strict=True):
        expected = policy.model.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=20, eos_token_id=0, pad_token_id=0
        )
        assert tokens == expected[0, len(prompt) :].tolist()


def test_a_sampled_completion_does_not_depend_on_its_batch(policy: Policy) -> None:
    together = generate(policy, make_rows(PROMPTS, budget=100))
    assert len({len(tokens) for tokens in together}) > 2, "the rows must end at different steps"
    for row, tokens in zip(make_rows(PROMPTS, budget=100), together, strict=True):
        assert generate(policy, [row]) == [tokens]


def test_the_growing_cache_holds_what_the_librarys_cache_holds() -> None:
    states = torch.arange(2 * 3 * 300 * 4, dtype=torch.float32).reshape(2, 3, 300, 4)
    ours, theirs = GrowingLayer(room=300), DynamicLayer()
    for start, end in [(0, 5), *((i, i + 1) for i in range(5, 200))]:
        for layer in (ours, theirs):
            layer.update(states[:, :, start:end], -states[:, :, start:end])
    assert torch.equal(ours.keys, theirs.keys)
    assert torch.equal(ours.values, theirs.values)
    for layer in (ours, theirs):
        layer.reorder_cache(torch.tensor([1, 0, 1]))
        layer.update(states[[0, 1, 0], :, 200:], states[[0, 1, 0], :, 200:])
    assert torch.equal(ours.keys, theirs.keys)
    assert torch.equal(ours.values, theirs.values)


def test_scores_are_the_librarys_logprobs_whatever_the_batch(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [((1,), (2, 3)), (tuple(range(30)), (4,)), ((5, 6), tuple(range(20))), ((7,), ())]
    expected: list[float] = []
    for prompt, completion in pairs:
        logits = policy.model(torch.tensor([prompt + completion])).logits[0].detach() / 0.7
        logprobs = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        expected += [float(row[token]) for row, token in zip(logprobs, completion, strict=True)]
    request = {
        "tokens": np.array([token for pair in pairs for part in pair for token in part], np.int32),
        "prompt_lengths": np.array([len(prompt) for prompt, _ in pairs], np.int32),
        "completion_lengths": np.array([len(completion) for _, completion in pairs], np.int32),
        "temperatures": np.full(len(pairs), 0.7),
    }
    for limit in (scoring.SCORE_LOGIT_BYTES, 1):  # all at once, then one by one
        monkeypatch.setattr(scoring, "SCORE_LOGIT_BYTES", limit)
        _, reply = Scorer(policy, lambda: None).run({}, request)
        assert reply["logprobs"] == pytest.approx(expected, abs=1e-5)


class TestInstall:
    def test_equal_configs_swap_in_place_and_others_do_not(self, policy: Policy, models: Models) -> None:
        assert policy.install(models.second, {}) is True
        assert policy.install(models.sharded, {}) is True
        assert policy.install(models.untied, {}) is False
        assert policy.install(models.llama, {}) is False

    @pytest.mark.parametrize("name", ["first", "untied"])
    def test_a_swap_leaves_nothing_of_the_old_weights(self, models: Models, tmp_path: Path, name: str) -> None:
        directory = getattr(models, name)
        policy = Policy(Settings(device="cpu"))
        policy.install(directory, {})
        _save_changed(
            directory, tmp_path / "zeros", lambda tensors: {k: torch.zeros_like(t) for k, t in tensors.items()}
        )
        assert policy.install(tmp_path / "zeros", {}) is True
        assert not any(tensor.any() for tensor in policy.model.state_dict().values())

    def test_tied_tensors_may_both_be_there_if_they_agree(self, policy: Policy, models: Models, tmp_path: Path) -> None:
        tied = {"lm_head.weight": "model.embed_tokens.weight"}
        _save_changed(models.second, tmp_path / "same", lambda t: t | {a: t[b].clone() for a, b in tied.items()})
        _save_changed(models.second, tmp_path / "differ", lambda t: t | {a: t[b] + 1 for a, b in tied.items()})
        before = generate(policy, make_rows(PROMPTS, budget=8))
        with pytest.raises(Refused, match="tied"):
            policy.install(tmp_path / "differ", {})
        assert generate(policy, make_rows(PROMPTS, budget=8)) == before
        assert policy.install(tmp_path / "same", {}) is True
        assert generate(policy, make_rows(PROMPTS, budget=8)) != before

    @pytest.mark.parametrize("kind", ["F4", "F6_E2M3"])
    def test_weights_that_cannot_be_read_leave_those_in_service_whole(
        self, policy: Policy, models: Models, tmp_path: Path, kind: str
    ) -> None:
        """Otherwise completions of half of the new weights would carry the name of the version before."""
        shutil.copytree(models.second, tmp_path / "packed")
        tensors = {
            name: ("F32", tuple(tensor.shape), tensor.numpy().tobytes())
            for name, tensor in load_file(models.second / "model.safetensors").items()
        }
        bits = int(kind[1])
        tensors["model.norm.weight"] = (kind, (96,), bytes(96 * bits // 8))
        (tmp_path / "packed" / "model.safetensors").write_bytes(safetensors_file(tensors))
        before = generate(policy, make_rows(PROMPTS, budget=8))
        with pytest.raises(Refused) as refused:
            policy.install(tmp_path / "packed", {"version": 2})
        assert refused.value.kind == "bad_model"
        assert policy.version == {"version": 1}
        assert generate(policy, make_rows(PROMPTS, budget=8)) == before

    def test_an_adapter_that_cannot_be_read_leaves_those_in_service_whole(
        self, policy: Policy, models: Models, tmp_path: Path
    ) -> None:
        """Otherwise the model would have been installed without the adapter."""
        module = "base_model.model.model.layers.1.mlp.down_proj"
        shutil.copytree(models.second, tmp_path / "adapted")
        (tmp_path / "adapted" / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "lora_alpha": 8}')
        pair = {"A": (4, 256), "B": (96, 4)}
        tensors = {
            f"{module}.lora_{k}.weight": ("F4", shape, bytes(math.prod(shape) // 2)) for k, shape in pair.items()
        }
        (tmp_path / "adapted" / "adapter_model.safetensors").write_bytes(safetensors_file(tensors))
        before = generate(policy, make_rows(PROMPTS, budget=8))
        for described in (policy._config, {}):  # loaded in place, and not in place
            policy._config = described
            with pytest.raises(Refused, match="a format that is not read here"):
                policy.install(tmp_path / "adapted", {"version": 2})
            assert policy.version == {"version": 1}
            assert generate(policy, make_rows(PROMPTS, budget=8)) == before

    def test_a_swap_that_fails_halfway_is_no_refusal(self, policy: Policy, models: Models) -> None:
        """Otherwise the version before would go on to be signed with half of the new weights."""
        # loading cannot copy into this tensor
        policy.model.model.norm.weight = torch.nn.Parameter(torch.ones(1).expand(96))
        with pytest.raises(Broken, match="passed every check, but loading it"):
            policy.install(models.second, {"version": 2})

    @pytest.mark.parametrize(
        "change", [{"hidden_size": "a"}, {"num_attention_heads": 0}, {"dtype": "float99"}, {"layer_types": ["a"]}, None]
    )
    def test_a_config_that_the_library_does_not_understand_is_refused(
        self, policy: Policy, models: Models, tmp_path: Path, change: dict[str, Any] | None
    ) -> None:
        """A version may be of another library's format; if each ended the worker, five of them would end the node."""
        shutil.copytree(models.second, tmp_path / "odd")
        config = json.loads((models.second / "config.json").read_text())
        (tmp_path / "odd" / "config.json").write_text(json.dumps(None if change is None else config | change))
        before = generate(policy, make_rows(PROMPTS, budget=8))
        with pytest.raises(Refused) as refused:
            policy.install(tmp_path / "odd", {"version": 2})
        assert refused.value.kind == "bad_model"
        assert generate(policy, make_rows(PROMPTS, budget=8)) == before

    def test_an_index_may_not_leave_its_directory(self, models: Models, tmp_path: Path) -> None:
        directory = tmp_path / "sly"
        shutil.copytree(models.sharded, directory)
        index = directory / "model.safetensors.index.json"
        index.write_text(index.read_text().replace("model-00001", "../first/model-00001"))
        with pytest.raises(Refused, match="not a safetensors file of this directory"):
            weight_files(directory)

    def test_computing_in_another_dtype_than_stored(self, models: Models) -> None:
        policy = Policy(Settings(device="cpu", compute_dtype="bfloat16"))
        for directory in (models.first, models.second):
            policy.install(directory, {})
            assert policy.describe()["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("gpus", "mps", "wanted", "found"),
    [
        (0, False, "auto", "cpu"), (0, True, "auto", "mps"), (2, True, "auto", "cuda"), (2, False, "cuda:1", "cuda:1"),
        (2, False, "cpu", "cpu"), (0, True, "mps", "mps"),
        (0, False, "cuda", 'device = "cuda" is not available: GPUs that torch finds: none'),
        (2, False, "cuda:2", "GPUs that torch finds: 2 of CUDA, numbered from 0. Use another"),
        (1, False, "mps", "GPUs that torch finds: 1 of CUDA"), (0, True, "cuda:0", "one of Apple's, mps"),
    ],
)  # fmt: skip
def test_the_device_is_the_one_named_if_it_is_there(
    monkeypatch: pytest.MonkeyPatch, gpus: int, mps: bool, wanted: str, found: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    if " " not in found:
        assert choose_device(wanted) == torch.device(found)
        return
    with pytest.raises(Refused, match=re.escape(found)):
        choose_device(wanted)


class Memory:
    """A model on a machine where only so many rows fit."""

    def __init__(self, model: Any, max_rows: int) -> None:
        self._model = model
        self._max_rows = max_rows
        self.batches: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, *, input_ids: torch.Tensor, **settings: Any) -> Any:
        if settings["past_key_values"].get_seq_length() == 0:
            self.batches.append(len(input_ids))
        if len(input_ids) > self._max_rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate a lot")
        return self._model(input_ids=input_ids, **settings)


class TestServer:
    """The server is driven frame by frame, without the thread that reads frames."""

    def test_a_batch_that_does_not_fit_is_halved_and_later_ones_are_smaller(self, models: Models) -> None:
        server, sent = _server(models)
        memory = server._policy._model = Memory(server._policy.model, max_rows=4)
        prompts = [(i, i + 1) for i in range(12)]
        _ask(server, 1, prompts)
        assert memory.batches == [12, 6, 3, 3, 6, 3, 3]
        _ask(server, 2, prompts)
        assert memory.batches[7:] == [3, 3, 3, 3]
        [first, second] = sent()
        assert first[0]["ok"] is second[0]["ok"] is True
        assert first[1]["tokens"].tolist() == second[1]["tokens"].tolist()
        assert len(first[1]["lengths"]) == 12

    def test_keys_and_values_of_a_batch_stay_within_their_bound(self, models: Models) -> None:
        row_bytes = (2 + 3) * _server(models)[0]._policy.kv_token_bytes  # two tokens of prompt, three of completion
        for rows, expected in ((5, [5, 5, 2]), (1, [1] * 12), (0.5, [1] * 12)):
            server, sent = _server(models, kv_cache_bytes=round(rows * row_bytes))
            memory = server._policy._model = Memory(server._policy.model, max_rows=100)
            _ask(server, 1, [(i, i + 1) for i in range(12)])
            assert memory.batches == expected, "a single completion must be generated even beyond the limit"
            [(header, _)] = sent()
            assert header["ok"]

    def test_what_is_given_back_is_a_gpus(self, models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
        emptied: list[str] = []
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append("cuda"))
        server, _ = _server(models)
        for device, expected in (("cpu", []), ("cuda:1", ["cuda"])):
            server._policy.device = torch.device(device)
            assert server._do({"op": "release"}, {}) == ({}, {})
            assert emptied == expected

    def test_a_completion_that_never_fits_is_refused(self, models: Models) -> None:
        server, sent = _server(models)
        server._policy._model = Memory(server._policy.model, max_rows=0)
        _ask(server, 1, [(1,), (2,)])
        [(header, _)] = sent()
        assert (header["id"], header["ok"], header["kind"]) == (1, False, "out_of_memory")

    def test_broken_weights_are_said_to_be_broken(self, models: Models) -> None:
        server, sent = _server(models)
        with torch.no_grad():
            next(iter(server._policy.model.parameters())).fill_(torch.nan)
        _ask(server, 1, [(1,), (2,)])
        [(header, _)] = sent()
        assert (header["ok"], header["kind"]) == (False, "not_finite")

    def test_rows_of_several_calls_share_a_batch_and_a_large_call_takes_several(self, models: Models) -> None:
        server, sent = _server(models, max_batch=8)
        memory = server._policy._model = Memory(server._policy.model, max_rows=100)
        for id, size in ((1, 3), (2, 10), (3, 1)):
            _queue(server, id, [(id, i) for i in range(size)])
        _work(server)
        assert memory.batches == [8, 6]
        assert [header["id"] for header, _ in sent()] == [1, 2, 3]

    def test_a_cancelled_call_is_dropped_in_mid_batch_and_the_others_are_not(self, models: Models) -> None:
        server, sent = _server(models)
        _queue(server, 1, [(1, 2)], budget=300)
        _queue(server, 2, [(3, 4)], budget=5)
        _admit(server)
        server._intake.cancelled = {1, 99}
        _work(server)
        [(cancelled, _), (served, _)] = sent()
        assert (cancelled["id"], cancelled["kind"]) == (1, "cancelled")
        assert (served["id"], served["ok"]) == (2, True)

    def test_an_interrupted_call_ends_with_the_step_that_it_is_at_and_what_waits_has_nothing(
        self, models: Models
    ) -> None:
        server, sent = _server(models, max_batch=2)
        _queue(server, 1, [(1, 2), (3, 4), (5, 6)], budget=40)
        _work(server)
        [(_, whole)] = sent()
        steps = iter(range(40))
        alive = server._alive.step

        def step() -> None:
            alive()
            if next(steps) == 4:
                server._intake.interrupts = [3]

        server._alive.step = step
        _queue(server, 2, [(1, 2), (3, 4), (5, 6)], budget=40)
        _work(server)
        (answer, _), (header, made) = sent()[1:]
        assert (header["id"], header["ok"], answer["id"], answer["ok"]) == (2, True, 3, True)
        assert made["lengths"].tolist() == [5, 5, 0]
        assert made["tokens"].tolist() == [*whole["tokens"][:5], *whole["tokens"][40:45]]
        assert made["spans"].tolist() == [[0, 5, 0], [1, 5, 0]]
        assert made["seconds"].min() >= 0

    def test_what_was_begun_goes_on_at_its_position(self, models: Models) -> None:
        server, sent = _server(models)
        _queue(server, 1, [(1, 2)], budget=12)
        _work(server)
        [(_, whole)] = sent()
        begun = tuple(whole["tokens"][:5].tolist())
        _queue(server, 2, [(1, 2, *begun)], budget=7, start=5)
        _queue(server, 3, [(1, 2, *begun)], budget=7)
        _work(server)
        _, (_, rest), (_, other) = sent()
        assert rest["tokens"].tolist() == whole["tokens"][5:].tolist()
        assert rest["tokens"].tolist() != other["tokens"].tolist()

    def test_prompts_of_one_batch_are_bounded_too(self, models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("node.engine.transformers_worker.server.MAX_PREFILL_TOKENS", 10)
        server, _ = _server(models)
        memory = server._policy._model = Memory(server._policy.model, max_rows=100)
        _ask(server, 1, [(1, 2, 3)] * 4 + [(i, 1, 2) for i in range(2, 6)])
        assert memory.batches == [3, 2], "three distinct prompts of three tokens fit ten"


class Hand:
    """An intake that the test fills."""

    def __init__(self) -> None:
        self.generates: list[tuple[Header, Arrays]] = []
        self.cancelled: set[int] = set()
        self.interrupts: list[int] = []

    def take_interrupts(self) -> list[int]:
        taken, self.interrupts = self.interrupts, []
        return taken

    def take_generates(self) -> list[tuple[Header, Arrays]]:
        taken, self.generates = self.generates, []
        return taken

    def take_cancelled(self) -> set[int]:
        taken, self.cancelled = self.cancelled, set()
        return taken


Sent = Callable[[], list[tuple[Header, Arrays]]]


def _server(models: Models, max_batch: int = 256, kv_cache_bytes: int = 1 << 30) -> tuple[Any, Sent]:
    output = io.BytesIO()
    settings = Settings(device="cpu", max_batch=max_batch, kv_cache_bytes=kv_cache_bytes)
    server = Server(settings, Hand(), output)  # type: ignore[arg-type]
    server._policy.install(models.first, {"version": 1})

    def sent() -> list[tuple[Header, Arrays]]:
        output.seek(0)
        frames = iter(lambda: read_frame(output), None)
        # a slow machine sends such an event now and then
        return [frame for frame in frames if frame[0].get("event") != "alive"]

    return server, sent


def _queue(server: Any, id: int, prompts: Sequence[tuple[int, ...]], budget: int = 3, start: int = 0) -> None:
    arrays = {
        "prompts": np.array([token for prompt in prompts for token in prompt], np.int32),
        "prompt_lengths": np.array([len(prompt) for prompt in prompts], np.int32),
        "prompt": np.arange(len(prompts), dtype=np.int32),
        "seeds": np.arange(len(prompts), dtype=np.uint64),
        "temperatures": np.ones(len(prompts)),
        "greedy": np.zeros(len(prompts), np.uint8),
        "budgets": np.full(len(prompts), budget, np.int32),
        "stop_set": np.zeros(len(prompts), np.int32),
        "starts": np.full(len(prompts), start, np.int32),
    }
    server._intake.generates.append(({"id": id, "op": "generate", "stop_sets": [[]]}, arrays))


def _admit(server: Any) -> None:
    for call in server._intake.take_generates():
        server._queue.extend(server._replies.admit(*call))


def _work(server: Any) -> None:
    _admit(server)
    while batch := server._form_batch():
        server._generate(batch)


def _ask(server: Any, id: int, prompts: Sequence[tuple[int, ...]]) -> None:
    _queue(server, id, prompts)
    _work(server)


def _save_changed(
    source: Path, directory: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
) -> None:
    shutil.copytree(source, directory)
    changed = change(load_file(source / "model.safetensors"))
    save_file(changed, directory / "model.safetensors", metadata={"format": "pt"})
