"""Declare the volunteer's file, node.toml, as values."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from node.config.common import (
    GB,
    AddressList,
    EnergySection,
    EngineDevice,
    Gigabytes,
    Mbit,
    NotifySection,
    PositiveFloat,
    PositiveShare,
    PriceSection,
    Section,
    Text,
    WebSection,
)
from node.config.daily_hours import MAX_CHARS
from node.config.swarm_config import GIVE_UP_S
from protocol.versions.formats import FP8, INT4, INT8

OnNewVersion = Literal["finish", "continue", "abort"]
"""Treatment of completions in flight when a version is installed. "finish": they end with the version that they
began with, and new requests wait. "continue": they go on with the new version, and their spans say so. "abort": they
begin again with the new version."""


GPU_MEMORY_UTILIZATION = 0.85
"""Fraction of a GPU's memory. vLLM takes it at the start and keeps it. The rest is for a desktop, or a small game."""


MAX_PROGRAMS = 64
"""Most programs for which a machine is kept free: each check compares every process with all of them."""


ProgramName = Annotated[str, Meta(min_length=1, max_length=255, pattern="^[^/]+$")]
"""Name of a process, as `ps -e` shows it. No file name is longer, and a path would never equal such a name."""


class NodeEnergySection(EnergySection, frozen=True, kw_only=True):
    """Energy that this machine draws from the mains. See [energy](../lend/limits-and-hours.md#energy)."""

    report: bool = True
    """Whether to tell the learner the joules that the machine used; else only your report has them."""
    per_kwh: Annotated[float, Meta(ge=0, le=1e6, examples=[0.3])] | None = None
    """Price of a kWh in the currency of `[price]`, for your own report; never sent to anybody."""


class EngineSection(Section, frozen=True, kw_only=True):
    """The engine that generates: where it runs, how much it does at a time, and in which hours."""

    kind: Literal["auto", "transformers", "vllm", "fake"] = "auto"
    """Engine: "transformers", "vllm", or "auto" (vLLM if it is installed and there is a GPU). "fake": for tests."""
    python: str = ""
    """Interpreter of another environment that has the engine's libraries; empty: this one."""
    device: EngineDevice = "auto"
    """Device of the engine: "cpu", "cuda", "cuda:1", "mps"; "auto": CUDA, then MPS, then the CPU."""
    kv_cache_gb: Gigabytes | None = None
    """Maximum GB (10^9 bytes) for a batch's keys and values; unset: half of a GPU's free memory."""
    compute_dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of the layers; "auto": the format of the weights, but float32 on a CPU."""
    threads: Annotated[int, Meta(ge=0, le=1024)] = 0
    """Threads of the engine (up to 1024); 0: half the cores, as the system counts them."""
    batch_rollouts: Annotated[int, Meta(ge=1, le=65_536)] = 64
    """Completions leased at a time (1 to 65,536); the node holds at most two such batches."""
    nice: Annotated[int, Meta(ge=0, le=19)] = 5
    """Niceness of the engine: 0 as other programs, 19 yields to all of them."""
    hours: Annotated[str, Meta(max_length=MAX_CHARS)] = ""
    """Hours to work in, by the machine's clock: "19:00-07:30, 12:00-13:00"; empty: always. `--hours`
    overrides it."""
    patience_s: PositiveFloat = GIVE_UP_S
    """Seconds without any success after which the node ends."""
    on_new_version: OnNewVersion = "finish"
    """Completions in flight at a new version ("vllm"): "finish", "continue" with it, or "abort"."""
    tensor_parallel_size: Annotated[int, Meta(ge=1, le=64)] = 1
    """GPUs that share the model ("vllm", 1 to 64); `device` then names no single one."""
    gpu_memory_utilization: Annotated[float, Meta(gt=0, le=1)] = GPU_MEMORY_UTILIZATION
    """Fraction of each GPU's memory for weights and KV cache, taken at the start ("vllm")."""
    max_model_len: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    """Maximum tokens of prompt and completion ("vllm"); 0: as many as model and memory allow."""
    quantization: Literal["", "auto", "int8", "int4", "fp8"] = ""
    """Weights in fewer bits: "int8", "int4", with "vllm" "fp8"; "auto": the best that fits here."""

    @property
    def compute_dtype_in_force(self) -> str:
        """Return the number format of the layers; "auto" for the format of the weights."""
        return "float32" if (self.compute_dtype, self.device) == ("auto", "cpu") else self.compute_dtype

    @property
    def scheme_in_force(self) -> str:
        """Return how weights are quantised; "" if they are not. It is known once `kind` is chosen and "auto" is
        replaced by what it comes to."""
        known = {"vllm": (FP8,), "transformers": (INT8, INT4)}.get(self.kind, ())
        return self.quantization if self.quantization in known else ""


class NodeNetworkSection(Section, frozen=True, kw_only=True):
    """Addresses at which other peers may connect to this node, and limits of its bandwidth."""

    listen: AddressList = msgspec.field(default_factory=lambda: ["/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0"])
    """Addresses to listen on for other members; port 0: any free port. `[]`, or `--no-listen`: only dial out."""
    announce: AddressList = []
    """Addresses to announce instead of the bound ones, behind a forwarded port."""
    map_port: bool = True
    """Whether to ask your router to forward the port (PCP, NAT-PMP, UPnP) until the node ends."""
    upload_mbit: Mbit | None = None
    """Maximum upload in million bits per second, at least 0.1; `--upload-mbit` overrides it."""
    download_mbit: Mbit | None = None
    """Maximum download in million bits per second, at least 0.1; `--download-mbit` overrides it."""


class NodeStoreSection(Section, frozen=True, kw_only=True):
    """Disk space for versions of the model. See [line and disk](../lend/limits-and-hours.md#bandwidth-and-disk)."""

    quota_gb: Gigabytes = 64.0
    """Maximum GB (10^9 bytes) of versions: three of an 8B model in bfloat16, and patches. `--quota-gb` overrides it."""


class LimitsSection(Section, frozen=True, kw_only=True):
    """Limits of the memory that the engine uses, and programs for which it pauses."""

    ram_gb: Gigabytes | None = None
    """Maximum GB (10^9 bytes) that the engine's processes hold together; unset: no limit. See
    [memory](../lend/limits-and-hours.md#memory)."""
    ram_share: Annotated[PositiveShare, Meta(examples=[0.5])] | None = None
    """The same limit as a fraction of the machine's memory (up to 1); the smaller one counts."""
    vram_share: Annotated[PositiveShare, Meta(examples=[0.5])] | None = None
    """Maximum fraction of the GPU's memory for the engine (up to 1); unset: no limit."""
    pause_for: Annotated[list[ProgramName], Meta(max_length=MAX_PROGRAMS)] = []
    """Programs (at most 64) during which nothing is generated: ["blender", "steam"]."""

    def ram_bytes(self, machine_bytes: int) -> int | None:
        """Return the most bytes that the engine's processes may hold, given the machine's memory; None: no limit."""
        by_size = [] if self.ram_gb is None else [round(self.ram_gb * GB)]
        by_share = [] if self.ram_share is None else [round(self.ram_share * machine_bytes)]
        return min(by_size + by_share, default=None)


class TeacherSection(Section, frozen=True, kw_only=True):
    """A larger model with which the node scores, instead of generating. See
    [distillation.md](../operate/distillation.md)."""

    directory: Annotated[str, Meta(examples=["teacher"])] = ""
    """Hugging Face directory of the teacher, the same as the operator's; `--teacher` overrides it."""


NodeNotice = Literal["trouble", "end"]
"""Kinds of notices of a node; `node.notices.node_notices` names the events of each."""


class NodeNotifySection(NotifySection, frozen=True, kw_only=True):
    """Where to post notices, so that you hear when the node stops working. See
    [notices](../lend/limits-and-hours.md#notices)."""

    events: Annotated[list[NodeNotice], Meta(max_length=64)] = msgspec.field(
        default_factory=lambda: list(get_args(NodeNotice))
    )
    """Kinds of notices to post: "trouble" (it cannot work), "end" (over, drained, banned, failed)."""


class DrillSection(Section, frozen=True, kw_only=True):
    """For [drills](../operate/trust-and-bans.md#drills) and tests in a swarm of your own. Never join another swarm with
    these keys."""

    cheat: Literal["", "greedy", "cold", "claims", "parrot"] = ""
    """Way in which the node cheats: "greedy", "cold", "claims", "parrot". Its key gets banned."""
    fake_token_s: Annotated[float, Meta(ge=0, le=3600)] = 0.0
    """Seconds that the "fake" engine takes per token of a batch's longest completion (0 to 3600)."""


class NodeConfig(Section, frozen=True, kw_only=True):
    """Everything that a volunteer may decide: `node.toml`. Every key has a default."""

    name: Text = ""
    """Your display name in reports, at most 128 characters; `--name` overrides it."""
    network: NodeNetworkSection = NodeNetworkSection()
    store: NodeStoreSection = NodeStoreSection()
    engine: EngineSection = EngineSection()
    limits: LimitsSection = LimitsSection()
    price: PriceSection = PriceSection()
    energy: NodeEnergySection = NodeEnergySection()
    teacher: TeacherSection = TeacherSection()
    web: WebSection = WebSection()
    notify: NodeNotifySection = NodeNotifySection()
    testing: DrillSection = DrillSection()
