"""The dry run of a join: asked of a real host over loopback, and as people read it; no node joins."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
import trio

from learner.ledger.ledger import Ledger
from node.config.common import PriceSection
from node.config.node_config import (
    EngineSection,
    LimitsSection,
    NodeConfig,
    NodeNetworkSection,
    NodeStoreSection,
    TeacherSection,
)
from node.config.swarm_config import (
    LearnSection,
    MixtureTask,
    ModelSection,
    NetworkSection,
    OfflineSection,
    SwarmConfig,
    SwarmSection,
    TaskSection,
    TrustSection,
)
from node.learner_role.peers.join_terms import WRONG_TOKEN, LearnerTerms, tasks_of
from node.rollout_role.app import run_rollout
from node.rollout_role.dry_run import Found, look, show_join, story
from node.runtime.errors import UsageError
from node.runtime.events import Clock, EventLog
from node.state.keys import load_or_create_key
from node.state.owner_orders import OwnerSignals
from protocol.core.genesis import certify_learner, read_genesis
from protocol.core.identity import Keypair
from protocol.core.ids import PolicyVersion, PublicKey
from protocol.core.invite import Invite
from protocol.versions.exchange import NotTold, TellTerms
from protocol.versions.staleness import Chain
from protocol.work import WORK
from swarm.libp2p import open_libp2p
from swarm.store import ChunkStore
from swarm.transfer.serving import Knowledge, Serving
from swarm.transport.interface import Stream, Transport
from tests.support.learner_fixture import context_of
from tests.support.store_fixture import small_model, small_swarm
from tests.support.swarm_fixture import announce_manifest

SWARM, STRANGERS = small_swarm(), small_swarm("strangers")
SIGNED = SWARM.publish(small_model(1))
YEAR_2100_MS = 4_102_444_800_000
TOKEN = "sesame"
CONFIG = SwarmConfig(
    swarm=SwarmSection(name="test"),
    model=ModelSection(directory="/models/Tiny-1B"),
    learn=LearnSection(steps=300, staleness=3, group_size=16, max_new_tokens=512, prompts_per_step=4),
    task=TaskSection(
        mixture=[MixtureTask(spec="reverse:letters=3", weight=3.0), MixtureTask(spec="sort", name="numbers")]
    ),
    network=NetworkSection(join_token=TOKEN),
)
WHY = "there is no NVIDIA GPU here"
NODE = NodeConfig(
    name="attic",
    engine=EngineSection(kind="transformers"),
    network=NodeNetworkSection(listen=[]),
    price=PriceSection(per_hour=0.35, currency="EUR"),
    limits=LimitsSection(pause_for=["blender"]),
)


WINDOW = 2
"""The staleness window now. The operator changed it: the run began with that of CONFIG."""

NOW_MS = Clock.now_ms()
"""What the learner's clock says, unless a test sets it."""


def terms_with(certificate: bytes = SWARM.certificate, now_ms: int = NOW_MS) -> LearnerTerms:
    context = context_of(
        ledger=cast(Ledger, None),
        state=SimpleNamespace(
            capacity=SimpleNamespace(chain=Chain(bases=(0,), head=PolicyVersion(1, 7)), window=WINDOW)
        ),
        now_ms=lambda: now_ms,
    )
    context.identity.certificate = certificate
    return LearnerTerms(context=context, config=CONFIG, max_turns=1)


@asynccontextmanager
async def learner(
    root: Path, terms: LearnerTerms | None, *, seed: bytes = SWARM.learner.seed, genesis: bytes = SWARM.genesis
) -> AsyncIterator[tuple[Transport, list[Stream]]]:
    """A host that answers as a learner does, with a version; and work lines that somebody opened."""
    joined: list[Stream] = []

    async def work(stream: Stream) -> None:
        joined.append(stream)
        await trio.sleep_forever()

    with ChunkStore.open(root / "store", SWARM.authority) as store:
        store.begin(SIGNED)
        async with open_libp2p(seed, ["/ip4/127.0.0.1/tcp/0"], []) as transport:
            newest = announce_manifest(SWARM, SIGNED)
            answer = None if terms is None else terms.answer
            knowledge = Knowledge(genesis=genesis, newest=lambda: newest, peers=list, terms=answer)
            Serving(transport=transport, store=store, knowledge=knowledge).start()
            transport.handle(WORK, work)
            yield transport, joined


def invite_to(transport: Transport, token: str = TOKEN) -> Invite:
    return Invite(
        operator=SWARM.operator.public, swarm=SWARM.authority.swarm, addresses=transport.addresses(), token=token
    )


def told_of(invite: Invite, node: NodeConfig, state: Path) -> list[str]:
    genesis, _ = read_genesis(SWARM.genesis)
    found = Found(genesis=genesis, learner=SWARM.learner.peer_id, certificate=None, terms=None, newest=None)
    return [" ".join(line.split()) for line in story(found, invite, node, state=state, why=WHY)]


def test_an_invite_that_expires_and_a_disk_that_is_smaller_than_the_quota(tmp_path: Path) -> None:
    invite = Invite(operator=SWARM.operator.public, swarm=SWARM.authority.swarm, addresses=[], expires_ms=YEAR_2100_MS)
    wide = msgspec.structs.replace(NODE, store=NodeStoreSection(quota_gb=900_000.0))
    lines = told_of(invite, wide, tmp_path)
    assert "invite expires at 2100-01-01 00:00:00 UTC" in lines
    [state] = [line for line in lines if line.startswith("state ")]
    assert state.endswith(" free there, less than the disk quota")
    small = msgspec.structs.replace(NODE, store=NodeStoreSection(quota_gb=0.001))
    [state] = [line for line in told_of(invite, small, tmp_path) if line.startswith("state ")]
    assert state.endswith(" free there")


async def test_all_is_told_and_nobody_joins(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with learner(tmp_path, terms_with()) as (transport, joined):
        told = await show_join(invite_to(transport), NODE, state=state, wait_s=20.0)
        assert joined == []
    assert not state.exists()
    lines = [" ".join(line.split()) for line in told.splitlines()]
    for line in (
        f"operator's key {SWARM.operator.peer_id}, as the invite has it: compare it with theirs",
        "invite does not expire",
        f"swarm id {SWARM.authority.swarm.hex()}",
        f"learner {SWARM.learner.peer_id}",
        "model Tiny-1B",
        "run training step 7 of 300, staleness window 2",
        "work 16 completions of a prompt, of at most 512 tokens",
        "[limits] pause_for blender",
        "[store] quota_gb 64 GB",
        "to the learner name 'attic', price 0.35 EUR an hour,",
        "tokens per second of a first test, time left of your hours, joules that the machine used while lent;",
        "key made when you join",
        'engine transformers ([engine] kind = "transformers"), device auto',
    ):
        assert line in lines, told
    assert [line.split(" of the prompts")[0] for line in lines if line.startswith("task ")] == [
        "task reverse, 75 %",
        "task numbers, 25 %",
    ]
    [size] = [line for line in lines if line.startswith("size ")]
    assert size.endswith(f"in {len(SIGNED.manifest.files)} files; fits in the quota")
    assert "letters=3" not in told, "options stay with the learner"


async def test_what_was_looked_at_is_what_the_learner_signed(tmp_path: Path) -> None:
    async with learner(tmp_path, terms_with()) as (transport, _):
        found = await look(invite_to(transport), NODE, 20.0)
    assert found.learner == SWARM.learner.peer_id
    assert found.newest is not None
    assert found.newest.raw == SIGNED.raw
    assert found.terms == terms_with().answer(TOKEN)


async def test_a_wrong_token_is_refused_as_by_joining(tmp_path: Path) -> None:
    async with learner(tmp_path, terms_with()) as (transport, _):
        for token in ("", "please"):
            with pytest.raises(UsageError, match="The learner refused this node: The join token is missing or wrong"):
                await look(invite_to(transport, token), NODE, 20.0)


async def test_who_speaks_for_another_swarm_is_refused_as_by_joining(tmp_path: Path) -> None:
    async with learner(tmp_path, terms_with(), genesis=STRANGERS.genesis) as (transport, _):
        with pytest.raises(UsageError, match="The invite is for another swarm than the one at its address"):
            await look(invite_to(transport), NODE, 20.0)


FOREIGN = certify_learner(
    STRANGERS.operator, SWARM.authority, learner=PublicKey(SWARM.learner.public), not_before_ms=0,
    not_after_ms=YEAR_2100_MS,
)  # fmt: skip
ENDED = certify_learner(
    SWARM.operator, SWARM.authority, learner=PublicKey(SWARM.learner.public), not_before_ms=0, not_after_ms=1000
)


@pytest.mark.parametrize(
    ("certificate", "seed"),
    [(FOREIGN, SWARM.learner.seed), (ENDED, SWARM.learner.seed), (SWARM.certificate, bytes(range(32)))],
    ids=["of another operator", "of another time", "of another key"],
)
async def test_terms_of_who_is_not_the_learner_are_not_believed(
    tmp_path: Path, certificate: bytes, seed: bytes
) -> None:
    async with learner(tmp_path, terms_with(certificate), seed=seed) as (transport, _):
        assert transport.peer_id == Keypair(seed).peer_id
        with pytest.raises(UsageError, match="could not prove that it belongs to this swarm"):
            await look(invite_to(transport), NODE, 20.0)


DAY_MS = 86_400_000
HOLDS = certify_learner(
    SWARM.operator, SWARM.authority, learner=PublicKey(SWARM.learner.public), not_before_ms=NOW_MS + DAY_MS,
    not_after_ms=NOW_MS + 90 * DAY_MS,
)  # fmt: skip
"""By a learner's clock that is two days ahead of ours."""


async def test_a_clock_that_is_wrong_here_is_no_fault_of_the_operators(tmp_path: Path) -> None:
    async with learner(tmp_path, terms_with(HOLDS, NOW_MS + 2 * DAY_MS)) as (transport, _):
        with pytest.raises(UsageError) as caught:
            await look(invite_to(transport), NODE, 20.0)
    said = str(caught.value)
    assert said.startswith("This machine's clock is probably wrong: it shows 20")
    assert "and is 2.0 days behind the learner's, which shows 20" in said
    assert "timedatectl set-ntp true" in said
    assert "Ask the operator" not in said


async def test_joining_says_it_in_the_same_words(tmp_path: Path) -> None:
    config = msgspec.structs.replace(NODE, engine=EngineSection(kind="fake"))
    async with learner(tmp_path, terms_with(HOLDS, NOW_MS + 2 * DAY_MS)) as (transport, joined):
        with pytest.raises(UsageError, match=r"clock is probably wrong: it shows .* is 2\.0 days behind"):
            await run_rollout(
                invite_to(transport), config, EventLog(), state=tmp_path / "state", wait_s=20.0,
                on_ready=lambda home, role: None, signals=OwnerSignals(),
            )  # fmt: skip
        assert joined == []


async def test_of_an_older_learner_whose_clock_is_not_known_both_causes_are_told(tmp_path: Path) -> None:
    async with learner(tmp_path, terms_with(HOLDS, 0)) as (transport, _):
        with pytest.raises(UsageError, match=r"Set this clock if it is wrong; otherwise ask the operator"):
            await look(invite_to(transport), NODE, 20.0)


async def test_an_older_learner_is_not_asked_what_it_does_not_understand(tmp_path: Path) -> None:
    async with learner(tmp_path, None) as (transport, _):
        found = await look(invite_to(transport), NODE, 20.0)
    assert found.terms is None
    assert found.newest is not None, "the line lives: no unknown question ended it"
    told = "\n".join(story(found, invite_to(transport), NODE, state=tmp_path, why=WHY))
    assert "not told before joining" in told


@pytest.mark.parametrize("allowed", [True, False])
async def test_whether_quantised_weights_are_welcome_is_told(tmp_path: Path, allowed: bool) -> None:
    learn = msgspec.structs.replace(CONFIG.learn, engine_formats=["stored", "fp8"] if allowed else ["stored"])
    terms = dataclasses.replace(terms_with(), config=msgspec.structs.replace(CONFIG, learn=learn))
    async with learner(tmp_path, terms) as (transport, _):
        invite = invite_to(transport)
        found = await look(invite, NODE, 20.0)
    fast = msgspec.structs.replace(NODE, engine=EngineSection(kind="vllm", quantization="fp8"))
    told = "\n".join(story(found, invite, fast, state=tmp_path, why=WHY))
    assert ("with the weights as they are or fp8 weights" in told) == allowed
    assert ("fp8 weights, which this swarm refuses: leave [engine] quantization out" in told) == (not allowed)
    small = msgspec.structs.replace(NODE, engine=EngineSection(kind="transformers", quantization="int4"))
    reason = "1.0 GB with it, of 2.0 GB"
    assert "int4 weights, which" in "\n".join(story(found, invite, small, state=tmp_path, why=WHY, held_why=reason))
    plain = "\n".join(story(found, invite, NODE, state=tmp_path, why=WHY, held_why=reason))
    assert f"the weights as they are ({reason})" in plain
    assert "fp8 weights," not in "\n".join(story(found, invite, NODE, state=tmp_path, why=WHY))


@pytest.mark.parametrize("strict", [True, False])
async def test_the_number_format_that_is_asked_for_is_told(tmp_path: Path, strict: bool) -> None:
    trust = TrustSection(required_compute_dtype="float32" if strict else "any")
    terms = dataclasses.replace(terms_with(), config=msgspec.structs.replace(CONFIG, trust=trust))
    async with learner(tmp_path, terms) as (transport, _):
        invite = invite_to(transport)
        found = await look(invite, NODE, 20.0)
    half = msgspec.structs.replace(NODE, engine=EngineSection(kind="vllm", compute_dtype="float16"))
    told = "\n".join(story(found, invite, half, state=tmp_path, why=WHY))
    assert ("with the weights as they are, computing in float32" in told) == strict
    assert ('compute_dtype "float16", which this swarm refuses: set it to "float32"' in told) == strict
    whole = msgspec.structs.replace(NODE, engine=EngineSection(kind="vllm", compute_dtype="float32"))
    assert "which this swarm refuses" not in "\n".join(story(found, invite, whole, state=tmp_path, why=WHY))


@pytest.mark.parametrize("takes", [True, False])
async def test_a_teacher_is_told_with_whether_the_swarm_takes_its_scores(tmp_path: Path, takes: bool) -> None:
    terms = dataclasses.replace(terms_with(), teacher_digest=bytes(32) if takes else b"")
    async with learner(tmp_path, terms) as (transport, _):
        invite = invite_to(transport)
        found = await look(invite, NODE, 20.0)
    teaches = msgspec.structs.replace(NODE, teacher=TeacherSection(directory="/models/teacher"))
    told = "\n".join(story(found, invite, teaches, state=tmp_path, why=WHY))
    assert ("/models/teacher: scores with it and generates nothing" in told) == takes
    assert ("/models/teacher: this swarm accepts no scores of nodes" in told) == (not takes)


def test_what_is_told_of_tasks_is_their_share_and_kind() -> None:
    assert [(task.name, task.share) for task in tasks_of(CONFIG)] == [("reverse", 0.75), ("numbers", 0.25)]
    assert all(task.about for task in tasks_of(CONFIG))
    offline = msgspec.structs.replace(CONFIG, offline=OfflineSection(path="logs.jsonl", share=1.0))
    assert tasks_of(offline) == [], "nothing is leased"
    assert terms_with().answer("no") == NotTold(reason=WRONG_TOKEN)


def test_a_key_that_is_there_a_model_that_is_too_large_and_names_of_strangers(tmp_path: Path) -> None:
    keypair = load_or_create_key(tmp_path / "node.key")
    rude = TellTerms(certificate=SWARM.certificate, model="a\x1b[2Jb", steps=3)
    genesis = read_genesis(SWARM.genesis)[0]
    found = Found(genesis=genesis, learner=SWARM.learner.peer_id, certificate=None, terms=rude, newest=SIGNED)
    invite = Invite(operator=SWARM.operator.public, swarm=SWARM.authority.swarm, addresses=["/ip4/192.0.2.1/tcp/1"])
    small = msgspec.structs.replace(NODE, store=NodeStoreSection(quota_gb=1e-9))
    told = "\n".join(story(found, invite, small, state=tmp_path, why=WHY))
    assert str(keypair.peer_id) in told
    assert "does not fit in the quota" in told
    assert "\x1b" not in told
    assert "none: this learner trains on logs" in told
    unborn = dataclasses.replace(found, newest=None)
    assert "none is published yet" in "\n".join(story(unborn, invite, NODE, state=None, why=WHY))
