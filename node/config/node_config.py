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
    """The same of a volunteer's machine, and what a kWh costs its owner, for its own report alone."""

    per_kwh: Annotated[float, Meta(ge=0, le=1e6)] | None = None


class EngineSection(Section, frozen=True, kw_only=True):
    """What generates: the engine, where it runs, how much at a time, and in which hours.

    `kind` "auto" is for `node.engine.selection`, which takes one of the others by what the machine has.
    `kv_cache_gb`: the keys and values of a batch take at most so much memory, unless a single completion takes more;
    unset, half of what a GPU has free, elsewhere 1 GiB. Of "vllm" alone: `on_new_version` (`OnNewVersion`),
    `tensor_parallel_size` GPUs, `gpu_memory_utilization` of each for weights and KV cache, `max_model_len` tokens of
    prompt and completion (0: as many as model and memory allow), `quantization` of the weights while they are loaded.
    `cheat`: for drills against one's own swarm, see `node.engine.cheating`.
    `patience_s`: the node ends when nothing has worked for so long (`node.rollout_role.retries`).
    `fake_token_s`: the "fake" engine pretends to take so many seconds for each token of a batch's longest completion.
    """

    kind: Literal["auto", "transformers", "vllm", "fake"] = "auto"
    python: str = ""
    device: EngineDevice = "auto"
    kv_cache_gb: Gigabytes | None = None
    compute_dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    threads: Annotated[int, Meta(ge=0, le=1024)] = 0
    batch_rollouts: Annotated[int, Meta(ge=1, le=65_536)] = 64
    nice: Annotated[int, Meta(ge=0, le=19)] = 5
    hours: Annotated[str, Meta(max_length=MAX_CHARS)] = ""
    patience_s: PositiveFloat = PATIENCE_S
    on_new_version: OnNewVersion = "finish"
    tensor_parallel_size: Annotated[int, Meta(ge=1, le=64)] = 1
    gpu_memory_utilization: Annotated[float, Meta(gt=0, le=1)] = GPU_MEMORY_UTILIZATION
    max_model_len: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    quantization: Literal["", "fp8"] = ""
    cheat: Literal["", "greedy", "cold", "claims", "parrot"] = ""
    fake_token_s: Annotated[float, Meta(ge=0, le=3600)] = 0.0

    @property
    def compute_dtype_in_force(self) -> str:
        """The number format that layers are computed in, "auto" for that of the weights."""
        return "float32" if (self.compute_dtype, self.device) == ("auto", "cpu") else self.compute_dtype

    @property
    def scheme_in_force(self) -> str:
        """How weights are quantised, once `kind` was chosen; "" when they are not."""
        return self.quantization if self.kind == "vllm" else ""


class NodeNetworkSection(Section, frozen=True, kw_only=True):
    """Where a rollout node listens for other peers, an empty list being a node that only dials out; and its caps."""

    listen: AddressList = msgspec.field(default_factory=lambda: ["/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0"])
    announce: AddressList = []
    upload_mbit: Mbit | None = None
    download_mbit: Mbit | None = None


class NodeStoreSection(Section, frozen=True, kw_only=True):
    """How much of the disk a rollout node's versions may take: three of an 8B model in bfloat16, and patches."""

    quota_gb: Gigabytes = 64.0


class LimitsSection(Section, frozen=True, kw_only=True):
    """What the engine may take of the machine's memory, and for which programs it makes room.

    `ram_gb` and `ram_share` bound what the engine's processes hold, the smaller one counting; `vram_share` is of each
    GPU that the engine uses. `pause_for`: names of processes while which nothing is generated.
    """

    ram_gb: Gigabytes | None = None
    ram_share: PositiveShare | None = None
    vram_share: PositiveShare | None = None
    pause_for: Annotated[list[ProgramName], Meta(max_length=MAX_PROGRAMS)] = []

    def ram_bytes(self, machine_bytes: int) -> int | None:
        """What the engine's processes may hold on a machine with so much memory; None: no bound."""
        by_size = [] if self.ram_gb is None else [round(self.ram_gb * GB)]
        by_share = [] if self.ram_share is None else [round(self.ram_share * machine_bytes)]
        return min(by_size + by_share, default=None)


class NodeConfig(Section, frozen=True, kw_only=True):
    """`node.toml`: what a volunteer may decide. Everything has a default."""

    name: Text = ""
    network: NodeNetworkSection = NodeNetworkSection()
    store: NodeStoreSection = NodeStoreSection()
    engine: EngineSection = EngineSection()
    limits: LimitsSection = LimitsSection()
    price: PriceSection = PriceSection()
    energy: NodeEnergySection = NodeEnergySection()
