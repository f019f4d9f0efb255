"""A small swarm from beginning to end: a learner and two rollout nodes, one of which accepts no connections."""

from __future__ import annotations

import csv
import io
import json
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from learner.provisioning.estimation.estimator import fit
from learner.provisioning.estimation.recording import FILE, Delivered, Published, Stepped, read_lines
from protocol.core.digest import cid_of
from protocol.core.genesis import read_genesis
from protocol.versions.manifest import open_manifest
from tests.e2e.auditing import audit
from tests.e2e.ledger_rules import Run, check_ledger, check_receipts, peer_of, skipped
from tests.e2e.programs import Program, Swarm, stopped, wait_done, wait_event, wait_for
from tests.support.observed_swarm import timings

STEPS = 12
NODE_MIB = 200
"""MiB that a process of ours may take without its children. The children hold the tensor libraries, this process does
not."""


AUDIT_TOLERANCE = 1e-3
"""In nats: both sides compute in float32."""


def test_a_swarm_runs_to_its_end(swarm: Swarm) -> None:
    # No node is on standby: otherwise the slower node would deliver only once the faster one, which waits for that
    # below, is given up. Heartbeats are slow, since a node is stopped until the other one has delivered.
    swarm.configure(steps=STEPS, held_out=16, heartbeat_s=20.0)
    with swarm.config.open("a", encoding="utf-8") as file:
        file.write("\n[provisioning]\nselect_peers = false\n")
    learner = swarm.learn()
    trainer = learner.child("learner.training.server")
    wait_event(learner, "version_published")
    with ExitStack() as first_waits:
        # The learner takes no step before both nodes hold weights: until then one alone fills the staleness window.
        with stopped(trainer):
            nodes = [
                swarm.join("listening", engine="transformers"),
                swarm.join("dialling", "--no-listen", engine="transformers"),
            ]
            for node in nodes:
                wait_event(node, "version_installed", learner)
            first = wait_for("a first receipt", lambda: next((node for node in nodes if node.events("receipt")), None))
            first_waits.enter_context(stopped(psutil.Process(first.pid)))
        # Nor does the faster one end the run before the other has delivered.
        for node in nodes:
            wait_event(node, "receipt", learner)
    peaks = peaks_mib([learner, *nodes])

    story = "\n".join(program.story() for program in (learner, *nodes))
    assert [program.wait() for program in (learner, *nodes)] == [0, 0, 0], story
    assert max(peaks.values()) <= NODE_MIB, peaks
    assert all(program.err.read_text() == "" for program in (learner, *nodes)), story
    check_ledger(swarm, Run(steps=STEPS))
    for node in nodes:
        check_receipts(swarm, node)
        check_views_of_node(swarm, node)
    check_views_of_learner(swarm, nodes)
    check_export(swarm)
    check_recording(swarm, nodes)
    check_audit(swarm, nodes)
    assert wait_event(nodes[1], "swarm_found")  # it wrote a log of its own
    assert not list((swarm.state / "exports").iterdir())  # or every version would stay on the disk for ever


@pytest.mark.rest
def test_small_steps_travel_as_patches(swarm: Swarm) -> None:
    """With two updates in a training step, as ECHO-2 takes them."""
    swarm.configure(steps=STEPS, staleness=1, learning_rate=1e-6, weights_dtype="bfloat16")
    text = swarm.config.read_text(encoding="utf-8")
    swarm.config.write_text(text.replace("[trainer]", "[trainer]\nupdates_per_step = 2"), encoding="utf-8")
    learner = swarm.learn()
    node = swarm.join("node", engine="transformers")
    wait_done(learner, node)
    updates = [json.loads(metrics)["updates"] for (metrics,) in swarm.rows("SELECT metrics FROM steps")]
    assert max(updates) == 2
    total = max(event["total_bytes"] for event in learner.events("version_published"))
    fetched = node.events("version_fetched")
    by_patches = [event for event in fetched if event["patches"]]
    assert len(by_patches) >= len(fetched) // 2 > 1, node.story()
    assert all(event["fetched_bytes"] == event["patch_bytes"] < total / 4 for event in by_patches), by_patches
    assert node.events("traffic")[-1]["bytes_down"] >= sum(event["fetched_bytes"] for event in fetched), node.story()
    assert learner.events("traffic")[-1]["bytes_up"] > 0, learner.story()
    assert not node.troubles, node.story()
    check_ledger(swarm, Run(steps=STEPS))
    check_receipts(swarm, node)


def peaks_mib(programs: list[Program]) -> dict[str, float]:
    """Return the most memory that each process itself ever held (VmHWM), watched until all have ended."""
    peaks: dict[str, float] = {}

    def all_ended() -> bool:
        for program in programs:
            peaks[program.name] = max(peaks.get(program.name, 0.0), _high_water_mib(program.pid))
        ended = [program.process.poll() is not None for program in programs]
        assert all(ended) or not any(program.process.poll() for program in programs), programs[0].story()
        return all(ended)

    wait_for("the end of the run", all_ended, progress=lambda: len(programs[0].events("step")))
    assert min(peaks.values()) > 0
    return peaks


def _high_water_mib(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def check_audit(swarm: Swarm, nodes: list[Program]) -> None:
    """Check that the records still in the ledger are what their leases' seeds draw with the weights that they name."""
    audited = audit(swarm.state)
    assert audited.tokens
    assert audited.tokens.keys() <= {peer_of(swarm, node) for node in nodes}
    assert max(audited.gap.values()) <= AUDIT_TOLERANCE
    assert max(audited.apart.values()) <= AUDIT_TOLERANCE


def check_recording(swarm: Swarm, nodes: list[Program]) -> None:
    """Check that the run's times and sizes are recorded, and can be planned with."""
    with (swarm.state / FILE).open("rb") as file:
        events = list(read_lines(file, FILE))
    assert [event.step for event in events if isinstance(event, Stepped)] == list(range(1, STEPS + 1))
    published = {event.version for event in events if isinstance(event, Published)}
    assert published | skipped(swarm) == set(range(STEPS + 1))
    seen = fit(events)
    assert timings(seen) is not None
    for profile in (seen.profile(peer_of(swarm, node)) for node in nodes):
        assert profile is not None
        assert profile.claimed_rate > 0
        assert profile.shown_rate is not None
        assert profile.broadcast_s is not None
    ((admitted,),) = swarm.rows("SELECT count(*) FROM records WHERE rule = 'admitted'")
    assert sum(event.admitted for event in events if isinstance(event, Delivered)) == admitted


def check_views_of_learner(swarm: Swarm, nodes: list[Program]) -> None:
    """Check that `status` and `report` agree with the ledger, in every form."""
    ((admitted,),) = swarm.rows("SELECT count(*) FROM records WHERE rule = 'admitted'")
    status = swarm.machine.call("status", swarm.config, "--json")
    assert status.code == 0, status.err
    facts = json.loads(status.out)
    assert (facts["role"], facts["training_steps"], facts["rollouts_admitted"]) == ("learner", STEPS, admitted)
    assert facts["newest_version"] == f"1.{STEPS}"
    assert f"{admitted:,}" in swarm.machine.call("status", swarm.config).out

    report = json.loads(swarm.machine.call("report", swarm.config, "--json").out)
    assert report["totals"]["admitted"] == admitted
    assert report["totals"]["versions_published"] == STEPS + 1 - len(skipped(swarm))
    rows = list(csv.DictReader(io.StringIO(swarm.machine.call("report", swarm.config, "--csv").out)))
    work = {peer["name"]: peer for peer in report["peers"]}
    assert {row["name"]: int(row["admitted"]) for row in rows} == {
        name: peer["admitted"] for name, peer in work.items()
    }
    ((relayed,),) = swarm.rows("SELECT coalesce(sum(bytes), 0) FROM relayed")
    assert report["totals"]["bytes_relayed"] == relayed <= report["totals"]["bytes_up"]
    assert {row["name"]: int(row["bytes_relayed"]) for row in rows} == {
        name: peer["bytes_relayed"] for name, peer in work.items()
    }
    for kind in ("run", "day", "version"):
        accounts = report["accounts"][f"{kind}s"]
        assert sum(row["tokens"] for row in accounts) == report["totals"]["tokens"]
        assert sum(row["joules"] for row in accounts) == round(sum(peer["joules"] or 0 for peer in work.values()))
        rows = list(csv.DictReader(io.StringIO(swarm.machine.call("report", swarm.config, "--csv", "--by", kind).out)))
        assert [row["name"] for row in rows] == [row["name"] for row in accounts]
    text = swarm.machine.call("report", swarm.config).out
    for node in nodes:
        assert work[node.name]["energy"].keys() == {"owner"}, "the watts must come from its node.toml"
        peer = work[node.name]
        assert (peer["role"], peer["peer"]) == ("rollout", peer_of(swarm, node))
        assert peer["admitted"] > 0  # both had a part in it, whichever of them dialled
        assert peer["bytes_down"] > 0
        assert node.name in text


def check_views_of_node(swarm: Swarm, node: Program) -> None:
    """Check that a volunteer sees the node's own work, from its own receipts."""
    report = swarm.machine.call("report", node.state, "--json")
    assert report.code == 0, report.err
    facts = json.loads(report.out)
    ((admitted,),) = swarm.rows(
        "SELECT count(*) FROM records WHERE rule = 'admitted' AND peer = ?", facts["peer"]["peer"]
    )
    assert (facts["kind"], facts["peer"]["admitted"]) == ("own", admitted)
    assert facts["peer"]["energy"]["owner"] > 0
    assert facts["peer"]["electricity"] > 0
    others = {peer for (peer,) in swarm.rows("SELECT peer FROM peers")} - {facts["peer"]["peer"]}
    assert others >= {one["peer"] for one in facts["traffic"] if one["bytes_down"] > 0} > set()
    for way in ("bytes_up", "bytes_down"):
        assert sum(one[way] for one in facts["traffic"]) == facts["peer"][way]
    status = json.loads(swarm.machine.call("status", node.state, "--json").out)
    assert (status["role"], status["rollouts_admitted"]) == ("rollout", admitted)
    (row,) = csv.DictReader(io.StringIO(swarm.machine.call("report", node.state, "--csv").out))
    assert int(row["admitted"]) == admitted
    identity = swarm.machine.call("identity", "--state", node.state).out
    assert identity.split()[:2] == [peer_of(swarm, node), "rollout"]


def check_export(swarm: Swarm) -> None:
    """Check that the export is the version that was signed, byte by byte, and that transformers loads it."""
    import transformers

    directory = swarm.directory / "export"
    done = swarm.machine.call("export", swarm.config, directory)
    assert done.code == 0, done.err
    authority = read_genesis((swarm.state / "genesis").read_bytes())[1]
    ((name,),) = swarm.rows("SELECT manifest FROM versions WHERE version = ?", STEPS)
    signed = open_manifest((swarm.state / "store" / "manifests" / name.hex()).read_bytes(), authority)
    assert signed.hash == name
    manifest = signed.manifest
    of_the_export = {"README.md", "volery.json"}
    assert {path.name for path in directory.iterdir()} == {entry.name for entry in manifest.files} | of_the_export
    for entry in manifest.files:
        data = memoryview((directory / entry.name).read_bytes())
        assert len(data) == entry.size
        for index in entry.chunks:
            chunk = manifest.chunks[index]
            assert cid_of(data[: chunk.size]) == chunk.cid
            data = data[chunk.size :]
    policy = transformers.AutoModelForCausalLM.from_pretrained(directory)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    assert policy.config.vocab_size == len(tokenizer) == 64
    start = transformers.AutoModelForCausalLM.from_pretrained(swarm.model)
    pairs = zip(policy.parameters(), start.parameters(), strict=True)
    assert any(not a.equal(b) for a, b in pairs)  # it was trained
    again = swarm.machine.call("export", swarm.config, directory)
    assert again.code == 2
    assert "already exists" in again.err
