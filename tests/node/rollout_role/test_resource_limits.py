"""A member's limits: from the command line and the file to the transport and the store."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from node.config.common import GB
from node.config.live_limits import QUOTA, UPLOAD
from node.config.loader import read_node_config
from node.config.node_config import EngineSection, LimitsSection, NodeConfig, NodeNetworkSection, NodeStoreSection
from node.config.swarm_config import NetworkSection
from node.engine.factory import transformers_config, vllm_config
from node.engine.interface import EngineCrashed
from node.engine.transformers import TransformersConfig
from node.engine.transformers_worker.memory import GIB, default_kv_cache_bytes
from node.engine.vllm_install import has_gpu
from node.engine.worker_engine import open_worker_engine
from node.network.transport import open_transport
from node.rollout_role.command import Overrides, adjust
from node.rollout_role.resource_limits import LIMITS, RunningLimits, in_force
from node.rollout_role.services import set_quota, set_rates
from node.runtime.errors import UsageError
from node.runtime.events import EventLog, Fields
from swarm.libp2p.host import Host
from swarm.store import ChunkStore
from tests.support.paths import ROOT
from tests.support.store_fixture import small_swarm

SEED = bytes(range(32))


@pytest.mark.parametrize("section", [NetworkSection, NodeNetworkSection])
async def test_caps_reach_the_transport(section: type[NetworkSection] | type[NodeNetworkSection]) -> None:
    async with open_transport(SEED, section(listen=[], upload_mbit=8.0)) as transport:
        assert isinstance(transport, Host)
        caps = transport._caps
        assert caps.upload is not None
        assert caps.upload._core.bytes_per_s == 1_000_000
        assert caps.download is None
    async with open_transport(SEED, section(listen=[], download_mbit=80.0)) as transport:
        assert isinstance(transport, Host)
        caps = transport._caps
        assert caps.upload is None
        assert caps.download is not None
        assert caps.download._core.bytes_per_s == 10_000_000


async def test_changed_limits_reach_the_transport_and_the_store(tmp_path: Path) -> None:
    config = NodeConfig(
        network=NodeNetworkSection(upload_mbit=8.0, download_mbit=80.0), store=NodeStoreSection(quota_gb=0.5)
    )
    async with open_transport(SEED, NodeNetworkSection(listen=[])) as transport:
        assert isinstance(transport, Host)
        caps = transport._caps
        await set_rates(transport, config)
        assert caps.upload is not None
        assert caps.download is not None
        assert (caps.upload._core.bytes_per_s, caps.download._core.bytes_per_s) == (1_000_000, 10_000_000)
        await set_rates(transport, NodeConfig())
        assert (caps.upload, caps.download) == (None, None)
    with ChunkStore.open(tmp_path / "store", small_swarm().authority, quota_bytes=1) as store:
        await set_quota(store, EventLog(), config)
        assert store._quota_bytes == 500_000_000


def test_what_the_command_line_says_goes_before_the_file() -> None:
    config = NodeConfig(network=NodeNetworkSection(listen=["/ip4/127.0.0.1/tcp/1"], upload_mbit=1.0, download_mbit=2.0))
    assert adjust(config, Overrides()) == config
    said = adjust(config, Overrides(upload_mbit=10.0, quota_gb=100.0))
    assert said.network == NodeNetworkSection(listen=["/ip4/127.0.0.1/tcp/1"], upload_mbit=10.0, download_mbit=2.0)
    assert said.store.quota_gb == 100.0
    deaf = adjust(config, Overrides(download_mbit=40.0, no_listen=True))
    assert adjust(config, Overrides(hours="19:00-07:30")).engine.hours == "19:00-07:30"
    with pytest.raises(UsageError, match=r"^--hours: '19-7' is not a range of hours"):
        adjust(config, Overrides(hours="19-7"))
    assert deaf.network == NodeNetworkSection(listen=[], upload_mbit=1.0, download_mbit=40.0)


# Memory, programs, and the guide


def test_of_two_bounds_of_memory_the_smaller_counts() -> None:
    machine = 16 * GB
    assert LimitsSection().ram_bytes(machine) is None
    assert LimitsSection(ram_gb=4.0).ram_bytes(machine) == 4 * GB
    assert LimitsSection(ram_share=0.5).ram_bytes(machine) == 8 * GB
    assert LimitsSection(ram_gb=4.0, ram_share=0.5).ram_bytes(machine) == 4 * GB
    assert LimitsSection(ram_gb=10.0, ram_share=0.5).ram_bytes(machine) == 8 * GB


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ram_gb = 0", "ram_gb"),
        ("ram_share = 0", "ram_share"),
        ("ram_share = 1.5", "ram_share"),
        ("vram_share = 0.0", "vram_share"),
        ('pause_for = ["/usr/bin/blender"]', "pause_for"),
        ('pause_for = [""]', "pause_for"),
        ('pause_for = "blender"', "pause_for"),
        ("ram = 3", "ram"),
    ],
)
def test_limits_that_cannot_be_are_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "node.toml"
    path.write_text(f"[limits]\n{text}\n")
    with pytest.raises(UsageError, match=said):
        read_node_config(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[engine]\nkind = "fake"\n[limits]\nram_gb = 4.0\n', "[limits] ram_gb = 4.0 would do nothing"),
        ('[engine]\ndevice = "cpu"\n[limits]\nvram_share = 0.5\n', "[limits] vram_share = 0.5 would do nothing"),
    ],
)
def test_limits_that_would_do_nothing_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "node.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=re.escape(said)):
        read_node_config(path)


def test_limits_reach_the_engines_process() -> None:
    section = EngineSection(threads=3, nice=7)
    limits = LimitsSection(ram_gb=3.0, vram_share=0.5)
    transformers = transformers_config(section, limits, name="engine").spec()
    vllm = vllm_config(section, limits, name="engine").spec()
    for spec in (transformers, vllm):
        assert (spec.memory_bytes, spec.threads, spec.nice, spec.yields_memory) == (3 * GB, 3, 7, True)
    assert json.loads(transformers.argv[-1])["vram_share"] == 0.5
    assert json.loads(vllm.argv[-1])["gpu_memory_utilization"] == 0.5
    modest = EngineSection(gpu_memory_utilization=0.25)
    assert vllm_config(modest, limits, name="engine").gpu_memory_utilization == 0.25
    assert transformers_config(section, LimitsSection(), name="engine").spec().memory_bytes is None


async def test_a_real_engine_that_holds_too_much_is_ended_in_so_many_words() -> None:
    """Importing torch takes more than this; a child that cannot even start within its limit is not started again."""
    with pytest.raises(EngineCrashed, match=r"it held 0\.\d\d GB of memory, more than its limit of 0\.06 GB"):
        async with open_worker_engine(TransformersConfig(ram_bytes=60_000_000)):
            raise AssertionError("it started")


def test_a_batchs_cache_takes_no_more_than_a_quarter_of_the_memory_allowed() -> None:
    cpu = torch.device("cpu")
    assert default_kv_cache_bytes(cpu, None, None) == GIB
    assert default_kv_cache_bytes(cpu, 16 * GIB, None) == GIB
    assert default_kv_cache_bytes(cpu, GIB, None) == GIB // 4


LIMITING = {"hours", "nice", "threads", "batch_rollouts", "upload_mbit", "download_mbit", "quota_gb"}
"""Keys of the other sections that limit what a machine is asked for."""


def test_every_limit_is_named_in_words() -> None:
    fields = {
        f"[{section.name}] {field.name}"
        for section in msgspec.structs.fields(NodeConfig)
        if isinstance(section.type, type)
        for field in (msgspec.structs.fields(section.type) if issubclass(section.type, msgspec.Struct) else ())
        if section.name == "limits" or field.name in LIMITING
    }
    assert set(LIMITS) == fields
    said = in_force(
        NodeConfig(
            limits=LimitsSection(ram_gb=4.0, vram_share=0.5, pause_for=["blender", "steam"]),
            network=NodeNetworkSection(upload_mbit=8.0),
        )
    )
    assert said["[limits] ram_gb"] == said["[limits] ram_share"] == "4.0 GB"
    lacking = "" if has_gpu() or sys.platform != "linux" else ", but this machine has no NVIDIA GPU"
    assert said["[limits] vram_share"] == f"50 % of a GPU{lacking}"
    for too_much in (LimitsSection(ram_gb=1e6), LimitsSection(ram_share=1.0)):
        assert in_force(NodeConfig(limits=too_much))["[limits] ram_gb"].endswith(
            " GB, which is no limit on this machine"
        )
    assert said["[limits] pause_for"] == "blender, steam"
    assert (said["[network] upload_mbit"], said["[network] download_mbit"]) == ("8 Mbit/s", "none")


async def test_a_changed_limit_is_in_force_before_it_is_shown_and_told() -> None:
    told: list[tuple[str, Fields]] = []
    events, set_to = EventLog(), list[float | None]()
    events.listen(lambda name, fields: told.append((name, fields)))

    async def set_upload(config: NodeConfig) -> None:
        assert limits.changeable == {UPLOAD: before[-1]}, "it is shown afterwards"
        set_to.append(config.network.upload_mbit)

    limits = RunningLimits(config=NodeConfig(), setters={UPLOAD: set_upload}, events=events)
    at_first, before = limits.shown, list[float | None]([None])
    assert at_first == in_force(NodeConfig())
    await limits.change(UPLOAD, 8.0, "me")
    assert limits.shown == {
        **at_first, "[network] upload_mbit": "8 Mbit/s (until the node ends; at its start: none)"
    }  # fmt: skip
    before.append(8.0)
    await limits.change(UPLOAD, None, "me")
    assert limits.shown == at_first
    assert set_to == [8.0, None]
    assert told == [
        ("limit_changed", {"key": "[network] upload_mbit", "value": value, "by": "me"})
        for value in ("8 Mbit/s", "none")
    ]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (UPLOAD, 0.0, r"\[network\] upload_mbit: expected `float` >= 0\.1\."),
        (QUOTA, 5.0, r"\[store\] quota_gb has no effect on this node\."),
        ("nice", 5.0, "'nice' cannot be changed while the node runs"),
    ],
)
async def test_a_limit_that_cannot_be_changes_nothing(key: str, value: float, words: str) -> None:
    async def fail(config: NodeConfig) -> None:
        raise AssertionError("it was set")

    limits = RunningLimits(config=NodeConfig(), setters={UPLOAD: fail}, events=EventLog())
    with pytest.raises(UsageError, match=words):
        await limits.change(key, value, "me")
    assert limits.shown == in_force(NodeConfig())


def test_threads_are_told_beside_the_cores_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    assert in_force(NodeConfig())["[engine] threads"] == "8 (half of the 16 cores that the system counts)"
    named = NodeConfig(engine=EngineSection(threads=3))
    assert in_force(named)["[engine] threads"] == "3 of the 16 cores that the system counts"


def test_the_guides_table_has_every_limit_with_what_is_in_force_by_default() -> None:
    text = (ROOT / "docs" / "lend" / "limits-and-hours.md").read_text(encoding="utf-8")
    section = text.split("\n## Every limit\n")[1].split("\n## ")[0]
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in section.splitlines() if line[:3] == "| `"]
    default = in_force(NodeConfig()) | {"[engine] threads": "half the cores"}
    assert {row[0]: row[1] for row in rows} == default
    assert [row[0] for row in rows] == list(LIMITS)
    assert all(len(row) == 4 and row[2] and row[3] for row in rows), (
        "each row must say what the limit does, and how to see it"
    )
