"""The volunteer's file, node.toml, as values."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from node.config.common import (
    GB,
    AddressList,
    EnergySection,
    EngineDevice,
    Gigabytes,
    Mbit,
    PositiveFloat,
    PositiveShare,
    PriceSection,
    Section,
    Text,
)
from node.config.daily_hours import MAX_CHARS
from node.config.swarm_config import PATIENCE_S
from protocol.versions.formats import FP8, INT4, INT8

OnNewVersion = Literal["finish", "continue", "abort"]
"""What becomes of completions in flight when a version is installed: they end on the one they began with, and what came
meanwhile waits; or go on with the new one, and say so in spans; or are begun again with it."""


GPU_MEMORY_UTILIZATION = 0.85
"""vLLM takes its memory once, and for good: this leaves a desktop, or a small game, some of a GPU."""


MAX_PROGRAMS = 64
"""Programs for which a machine is kept free: each look compares every process with all of them."""


ProgramName = Annotated[str, Meta(min_length=1, max_length=255, pattern="^[^/]+$")]
"""Of a process, as `ps -e` shows it: a file's name has no more, and a path would never be equal to one."""


class NodeEnergySection(EnergySection, frozen=True, kw_only=True):
    """What this machine takes of the mains. See [energy](#energy)."""

    report: bool = True
    """Whether the learner is told the joules that the machine took; else only your own report is."""
    per_kwh: Annotated[float, Meta(ge=0, le=1e6, examples=[0.3])] | None = None
    """What a kWh costs you, in the currency of `[price]`; for your own report, and told to nobody."""


class EngineSection(Section, frozen=True, kw_only=True):
    """What generates: the engine, where it runs, how much at a time, and in which hours."""

    kind: Literal["auto", "transformers", "vllm", "fake"] = "auto"
    """The engine: "transformers", "vllm"; "auto": vLLM where it is installed and there is a GPU. "fake": for tests."""
    python: str = ""
    """Interpreter of another environment that has the engine's libraries; empty: this one."""
    device: EngineDevice = "auto"
    """Where it runs: "cpu", "cuda", "cuda:1", "mps"; "auto": CUDA, then MPS, then the CPU."""
    kv_cache_gb: Gigabytes | None = None
    """Maximum GB (10^9 bytes) for a batch's keys and values; unset: half of a GPU's free memory."""
    compute_dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Layers compute in "float32", "bfloat16", "float16"; "auto": as the weights, float32 on a CPU."""
    threads: Annotated[int, Meta(ge=0, le=1024)] = 0
    """Threads of the engine; 0: half the cores."""
    batch_rollouts: Annotated[int, Meta(ge=1, le=65_536)] = 64
    """Completions leased at a time; at most two such batches are in hand."""
    nice: Annotated[int, Meta(ge=0, le=19)] = 5
    """How much it yields to other programs; 19: to everything."""
    hours: Annotated[str, Meta(max_length=MAX_CHARS)] = ""
    """Hours to work in, by the machine's clock: "19:00-07:30, 12:00-13:00"; empty: always."""
    patience_s: PositiveFloat = PATIENCE_S
    """Seconds in which nothing has worked, after which the node ends."""
    on_new_version: OnNewVersion = "finish"
    """Of "vllm", for completions in flight: "finish", "continue" with the new version, or "abort"."""
    tensor_parallel_size: Annotated[int, Meta(ge=1, le=64)] = 1
    """Of "vllm": GPUs that share the model; `device` then names no single one."""
    gpu_memory_utilization: Annotated[float, Meta(gt=0, le=1)] = GPU_MEMORY_UTILIZATION
    """Of "vllm": share of each GPU's memory for weights and KV cache, taken at the start."""
    max_model_len: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    """Of "vllm": most tokens of prompt and completion; 0: as many as model and memory allow."""
    quantization: Literal["", "auto", "int8", "int4", "fp8"] = ""
    """Weights in fewer bits: "int8", "int4"; of "vllm" "fp8"; "auto": the best that fits here."""

    @property
    def compute_dtype_in_force(self) -> str:
        """The number format that layers are computed in, "auto" for that of the weights."""
        return "float32" if (self.compute_dtype, self.device) == ("auto", "cpu") else self.compute_dtype

    @property
    def scheme_in_force(self) -> str:
        """How weights are quantised, once `kind` was chosen and "auto" is no more; "" when they are not."""
        known = {"vllm": (FP8,), "transformers": (INT8, INT4)}.get(self.kind, ())
        return self.quantization if self.quantization in known else ""


class NodeNetworkSection(Section, frozen=True, kw_only=True):
    """Where other peers may dial this node, and how much it sends and receives."""

    listen: AddressList = msgspec.field(default_factory=lambda: ["/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0"])
    """Where other members may dial you; port 0 takes any that is free. `[]`, or `--no-listen`: only dial out."""
    announce: AddressList = []
    """Addresses to tell others instead of those that are bound, behind a forwarded port."""
    map_port: bool = True
    """Whether your router is asked to pass the port on (PCP, NAT-PMP, UPnP); given back at the end."""
    upload_mbit: Mbit | None = None
    """Maximum million bits per second that the node sends; unset: no cap."""
    download_mbit: Mbit | None = None
    """The same for what it receives; `--download-mbit` overrides it."""


class NodeStoreSection(Section, frozen=True, kw_only=True):
    """How much of the disk versions of the model may take. See [line and disk](#line-and-disk)."""

    quota_gb: Gigabytes = 64.0
    """Maximum GB (10^9 bytes) of versions: three of an 8B model in bfloat16, and patches. `--quota-gb` overrides it."""


class LimitsSection(Section, frozen=True, kw_only=True):
    """What the engine may take of the machine's memory, and for which programs it makes room."""

    ram_gb: Gigabytes | None = None
    """Maximum GB (10^9 bytes) that the engine's processes hold together; unset: no limit. See [memory](#memory)."""
    ram_share: Annotated[PositiveShare, Meta(examples=[0.5])] | None = None
    """The same as a share of the machine's memory; the smaller of both counts."""
    vram_share: Annotated[PositiveShare, Meta(examples=[0.5])] | None = None
    """Maximum share of its GPU's memory that the engine gets."""
    pause_for: Annotated[list[ProgramName], Meta(max_length=MAX_PROGRAMS)] = []
    """Programs while which nothing is generated: ["blender", "steam"]."""

    def ram_bytes(self, machine_bytes: int) -> int | None:
        """What the engine's processes may hold on a machine with so much memory; None: no bound."""
        by_size = [] if self.ram_gb is None else [round(self.ram_gb * GB)]
        by_share = [] if self.ram_share is None else [round(self.ram_share * machine_bytes)]
        return min(by_size + by_share, default=None)


class TeacherSection(Section, frozen=True, kw_only=True):
    """A larger model to score with, instead of generating. See [distillation.md](distillation.md)."""

    directory: Annotated[str, Meta(examples=["teacher"])] = ""
    """The teacher's Hugging Face directory, as the operator has it; `--teacher` overrides it."""


class DrillSection(Section, frozen=True, kw_only=True):
    """For [drills](operator.md#drills) and tests against a swarm of your own; never join another's with these."""

    cheat: Literal["", "greedy", "cold", "claims", "parrot"] = ""
    """How the node cheats: "greedy", "cold", "claims", "parrot". Its key is banned."""
    fake_token_s: Annotated[float, Meta(ge=0, le=3600)] = 0.0
    """Of the "fake" engine: seconds for each token of a batch's longest completion."""


class NodeConfig(Section, frozen=True, kw_only=True):
    """`node.toml`: what a volunteer may decide. Everything has a default."""

    name: Text = ""
    """What you are called in reports, at most 128 characters; `--name` overrides it."""
    network: NodeNetworkSection = NodeNetworkSection()
    store: NodeStoreSection = NodeStoreSection()
    engine: EngineSection = EngineSection()
    limits: LimitsSection = LimitsSection()
    price: PriceSection = PriceSection()
    energy: NodeEnergySection = NodeEnergySection()
    teacher: TeacherSection = TeacherSection()
    testing: DrillSection = DrillSection()
