"""Publish the trainer's state as a version while it trains on: export, sign, adopt into the store, record, announce.

    snapshot ... exported -> tally, sign -> adopt into the store -> ledger: version and tally -> announce
        the trainer trains on from here

Invariants:

- Versions are announced in order, and only when the store can serve them and the ledger has them. If the learner is
  killed before, nobody knows the version. Its name is not used again, since the next start takes the next incarnation.
- A version's tally counts the records that, by the ledger, the steps since the version before it consumed. No record is
  added to these steps later.
- At most UNDER_WAY versions are being published, and one snapshot is being read. There is no queue: a state that is due
  meanwhile is skipped, and the newest state is published as soon as there is room.
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import trio

from learner.artifacts.version_builder import Base, VersionBuilder, new_bytes, patches_of
from learner.curriculum.offline_stream import LoggedGroup
from learner.ledger.rows import StepRow, TallyRow
from learner.monitoring.alarms import known
from learner.provisioning.estimation.broadcasts import UNDER_WAY
from learner.provisioning.estimation.recording import Published
from learner.rollouts.buffer import Batch
from learner.rollouts.overlong import Overlong
from learner.rollouts.reward_parts import means
from node.learner_role.scheduling.run_recording import RunRecorder
from node.learner_role.shared.context import Service
from node.learner_role.shared.signals import TrainerSpoke
from node.learner_role.training.checkpoints import TrainerLost
from node.learner_role.training.trainer_process import CallInTurn, once
from node.learner_role.trust.version_retention import VersionRetention
from node.processes.outcomes import ChildRefused
from node.runtime.errors import RunError
from protocol.core.ids import ManifestHash, PolicyVersion
from protocol.core.pipe import Arrays, Header
from protocol.versions.announcement import Announcement, announce, topic_of
from protocol.versions.manifest import SignedManifest
from protocol.versions.probe import Probed
from protocol.versions.safetensors_header import LayoutError
from swarm.store import StoreError, StoreFull
from swarm.transport.interface import Transport

REANNOUNCE_S, REANNOUNCE_SELDOM_S = 5.0, 60.0
"""First and longest pause in seconds before the newest version is announced again. Pauses double in between. Gossip may
lose a message."""

AHEAD = "ahead"
"""Directory in `exports` of a version that was exported before its publication."""

ANCHOR_EVERY = 8
"""Published versions from one anchor to the next. With patches from the last anchor, a node that was away for up to so
many versions can catch up in one step. The learner keeps the anchor's files as long."""


@dataclass(kw_only=True, eq=False)
class Publication:
    """A version that is being published.

    `exported` is set once the trainer reported the result of the export, `told`. If the trainer's process ends before,
    `scope` cancels the publication.
    """

    version: PolicyVersion
    directory: Path
    began_s: float
    told: tuple[Header, Arrays] | None = None
    exported: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def conclude(self, header: Header, arrays: Arrays) -> None:
        """Note the result of the export."""
        self.told = header, arrays
        self.exported.set()


@dataclass(kw_only=True, eq=False)
class VersionPublisher(Service):
    """Publishes versions.

    Args:
        exports: the directory of exports.
        weights_dtype: the format of published versions.
        ask: makes one request to the trainer. Raises TrainerLost, ChildRefused and RunError.
        kept: versions that are kept for audits, as long as there is room.
        written: awaited until the ledger has a training step.
        snapshot_s: seconds that the trainer took for snapshots since this was set to 0.
        lost: how a version was lost with the trainer since `go_on`, "" if none was. The loop may wait for rollouts that
            only this version could bring.
    """

    transport: Transport
    exports: Path
    weights_dtype: str
    ask: CallInTurn
    recorder: RunRecorder
    kept: VersionRetention | None
    written: Callable[[int], Awaitable[None]]
    snapshot_s: float = 0.0
    lost: str = ""
    _said: Announcement | None = None
    _ahead: tuple[Header, Arrays] | None = None
    _begun: int = -1
    _due: int | None = None
    _under_way: list[Publication] = field(default_factory=list)
    _sealing: trio.Lock = field(default_factory=trio.Lock)
    _settled: trio.Event = field(default_factory=trio.Event)
    _anchored: ManifestHash | None = None
    _previous: ManifestHash | None = None
    _after: int | None = None
    _pinned: ManifestHash | None = None

    def __post_init__(self) -> None:
        self.signals.certificate_renewed.subscribe(lambda _: self._renew())
        self.signals.trainer_spoke.subscribe(self._hear)
        self.signals.trainer_died.subscribe(lambda _: self._give_up())

    def _hear(self, said: TrainerSpoke) -> None:
        if said.header.get("event") in ("exported", "export_failed"):
            for one in self._under_way:
                if str(one.directory) == said.header.get("directory"):
                    one.conclude(said.header, said.arrays)

    def _give_up(self) -> None:
        """Cancel the publications whose export the trainer had not finished when it ended."""
        for one in self._under_way:
            if not one.exported.is_set():
                one.scope.cancel()
                self.lost = f"it ended while it exported version {one.version}"

    def go_on(self, published: Sequence[tuple[PolicyVersion, ManifestHash]]) -> None:
        """Continue after versions that were published before, oldest first, as far as they belong to the chain."""
        self.capacity.manifests = dict(published)
        kept = [(version.version, manifest) for version, manifest in published if self.capacity.chain.contains(version)]
        self._after = self._previous = self._anchored = None
        for version, manifest in kept:
            self._note_anchor(version, manifest)
            self._after, self._previous = version, manifest
        self._begun, self._due, self.lost = -1, None, ""
        self._forget_manifests()

    def sweep(self) -> None:
        """Remove exports that a crash left and that were not adopted. Raises OSError."""
        self._ahead = None
        shutil.rmtree(self.exports, ignore_errors=True)
        self.exports.mkdir(parents=True, exist_ok=True)

    async def export_ahead(self) -> Path:
        """Export the policy for a trial, before it has a name, and return the directory.

        `publish` uses this export, unless `sweep` comes first. Raises TrainerLost and RunError.
        """
        directory = self.exports / AHEAD
        self._ahead = await self._ask_export(directory, "The first version", wait=True)
        return directory

    @property
    def _signer(self) -> VersionBuilder:
        """Return a builder that signs with the certificate in force."""
        me = self.identity
        return VersionBuilder(learner=me.keypair, authority=me.authority, certificate=me.certificate)

    def _renew(self) -> None:
        """Sign the newest announcement again, with the new certificate."""
        if self._said is not None:
            self._announce(msgspec.structs.replace(self._said, certificate=self.identity.certificate))

    def _announce(self, said: Announcement) -> None:
        """Sign an announcement, and make it the newest."""
        self._said = said
        self.state.announcement = announce(self.identity.keypair, self.identity.authority, said)

    async def announce_again(self) -> None:
        """Repeat the newest announcement until cancelled, with growing pauses until there is a newer one."""
        repeated, pause_s, due_s = b"", REANNOUNCE_S, 0.0
        while True:
            await trio.sleep(REANNOUNCE_S)
            newest, now_s = self.state.announcement, trio.current_time()
            if newest != repeated:
                repeated, pause_s, due_s = newest, REANNOUNCE_S, now_s
            if newest and now_s >= due_s:
                await self.transport.publish(topic_of(self.identity.swarm), newest)
                due_s, pause_s = now_s + pause_s, min(2 * pause_s, REANNOUNCE_SELDOM_S)

    def is_due(self, step: int, *, last: bool) -> bool:
        """Return whether to publish the state after training step `step`: every kappa-th, and the `last`."""
        kappa = self.state.kappa
        return step > self._begun and (last or step // kappa > max(0, self._begun) // kappa)

    @property
    def has_room(self) -> bool:
        """Return whether a snapshot may be taken now."""
        return len(self._under_way) < UNDER_WAY and all(one.exported.is_set() for one in self._under_way)

    @property
    def is_idle(self) -> bool:
        """Return whether no version is being published."""
        return not self._under_way

    def put_off(self, step: int) -> None:
        """Note that the state after `step` is due, but there is no room yet."""
        self._due = step if self._due is None else self._due

    async def begin(self, nursery: trio.Nursery) -> None:
        """Let the trainer take a snapshot, and publish it in `nursery`. Return when the trainer may train on.

        There must be room. Raises RunError. If the trainer is lost, `lost` says so.
        """
        await nursery.start(self._publish_beside)

    async def publish(self) -> SignedManifest:
        """Publish the policy, and return when it is announced. Raises TrainerLost and RunError."""
        one = self._plan()
        try:
            with one.scope:
                await self._take_snapshot(one)
                return await self._bring_out(one)
            raise TrainerLost("it ended while it exported a version")
        finally:
            self._end(one)

    async def _publish_beside(self, task_status: trio.TaskStatus[None]) -> None:
        """Publish. `task_status.started` is called once the snapshot comes before any later request to the trainer."""
        one, sent = self._plan(), once(task_status.started)
        try:
            with one.scope:
                try:
                    await self._take_snapshot(one, sent)
                except TrainerLost as loss:
                    self.lost = str(loss)
                    return
                await self._bring_out(one)
        finally:
            self._end(one)
            sent()

    def require_whole(self) -> None:
        """Raise TrainerLost if a version was lost with the trainer."""
        if self.lost:
            raise TrainerLost(self.lost)

    async def drain(self) -> None:
        """Return when no version is being published. Exports of a trainer that ended are given up."""
        while self._under_way:
            await self._settled.wait()

    def _plan(self) -> Publication:
        version = self.capacity.chain.head
        one = Publication(version=version, directory=self.exports / str(version), began_s=trio.current_time())
        self._under_way.append(one)
        if self._due is not None and self._due < version.version:
            self.events.emit(
                "versions_skipped",
                first=self._due,
                last=version.version - 1,
                reason="publications take longer than training steps: raise publish_every, or make patches smaller",
            )
        self._begun, self._due = version.version, None
        return one

    async def _take_snapshot(self, one: Publication, sent: Callable[[], None] = lambda: None) -> None:
        """Let the trainer begin the export. Raises TrainerLost and RunError."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            await trio.to_thread.run_sync(self._name, one.directory, one.version)
            one.conclude(*ahead)
            return
        reply, names = await self._ask_export(one.directory, f"Version {one.version}", wait=False, sent=sent)
        self.snapshot_s += float(reply.get("seconds", 0.0))
        if "files" in reply:  # a trainer that does nothing beside training
            one.conclude(reply, names)

    def _end(self, one: Publication) -> None:
        self._under_way.remove(one)
        self._settled.set()
        self._settled = trio.Event()
        self.state.notify(leasable=False)

    async def _bring_out(self, one: Publication) -> SignedManifest:
        """Publish a snapshot: wait for its export, sign, adopt, record and announce it. Raises RunError."""
        run, version, export = self.state, one.version, one.directory
        await one.exported.wait()
        export_s = trio.current_time() - one.began_s
        self.state.notify(leasable=False)  # the next snapshot may be taken
        assert one.told is not None
        reply, names = one.told
        if reply.get("event") == "export_failed":
            raise self._unpublished(f"Version {version}", str(reply.get("kind")), str(reply.get("error")))
        probed = _read_probe(reply.get("probe"))
        async with self._sealing:  # the lock is fair, so versions come in their order
            await self.written(version.version)
            tally = await trio.to_thread.run_sync(self._tally, version)
            signed, made = await trio.to_thread.run_sync(self._seal, version, export, names, probed, tally)
            await self._announce_version(one, signed, {**made, "export_seconds": round(export_s, 4)})
            self.signals.version_published.emit(signed)
            await self.clean()
        run.notify()
        return signed

    async def _announce_version(self, one: Publication, signed: SignedManifest, made: Mapping[str, float]) -> None:
        """Make it the newest version, and announce it to the swarm. `made`: figures for its event."""
        run, version = self.state, one.version
        self._pin(signed.hash)
        self.signals.version_adopted.emit(signed)
        self._announce(
            Announcement(
                version=version,
                manifest=signed.hash,
                manifest_bytes=len(signed.raw),
                total_bytes=signed.manifest.total_bytes,
                certificate=self.identity.certificate,
            )
        )
        run.published = signed
        run.capacity.manifests[version] = self._previous = signed.hash
        self._note_anchor(version.version, signed.hash)
        self._after = version.version
        self._forget_manifests()
        await self.transport.publish(topic_of(self.identity.swarm), self.state.announcement)
        self.events.emit(
            "version_published",
            version=str(version),
            total_bytes=signed.manifest.total_bytes,
            patch_bytes=sum(patch.size for patch in signed.manifest.patches),
            seconds=round(trio.current_time() - one.began_s, 4),
            **made,
        )
        self.recorder.record(
            Published(
                at_s=self.recorder.now_s(),
                version=version.version,
                made_s=round(max(0.0, trio.current_time() - one.began_s), 6),
                size_bytes=signed.manifest.total_bytes,
                patch_bytes=min((patch.size for patch in signed.manifest.patches), default=0),
            )
        )

    async def clean(self) -> None:
        """Remove versions from the store whose rollouts would be stale, except the last anchor."""
        keep = set(self.capacity.manifests.values())
        if self.kept is not None:
            self.kept.trim(keep)
        await trio.to_thread.run_sync(self._clean, keep)

    def _name(self, export: Path, version: PolicyVersion) -> None:
        """Rename the export that was made ahead to that of `version`."""
        try:
            (self.exports / AHEAD).rename(export)
        except OSError as error:
            raise RunError(
                f"Version {version} cannot be published: {error}. Check the disk, then start again."
            ) from None

    async def _ask_export(
        self, export: Path, what: str, *, wait: bool, sent: Callable[[], None] = lambda: None
    ) -> tuple[Header, Arrays]:
        """Ask the trainer for an export. Raises TrainerLost and RunError."""
        header = {"directory": str(export), "dtype": self.weights_dtype, "wait": wait}
        try:
            return await self.ask("export", header, None, sent)
        except ChildRefused as refused:
            raise self._unpublished(what, refused.kind, refused.error) from None

    def _unpublished(self, what: str, kind: str, error: str) -> RunError:
        place = f" Check the disk of {self.exports}." if kind == "disk" else ""
        return RunError(f"{what} cannot be published: {error}.{place}")

    def _tally(self, version: PolicyVersion) -> TallyRow:
        """Return the signed tally of the steps since the version before.

        100,000 records take a second: call it on a thread.
        """
        after = version.version if self._after is None else self._after
        trained = self.ledger.evidence.trained(after, version.version)
        signed = self._signer.tally(version, after, trained, self.now_ms())
        return TallyRow(version=version, after=after, envelope=signed)

    def _pin(self, newest: ManifestHash) -> None:
        """Pin the newest version, so that the store never evicts it to make room. It may evict older ones."""
        self.context.store.pin(newest)
        if self._pinned is not None:
            self.context.store.unpin(self._pinned)
        self._pinned = newest

    def _seal(
        self, version: PolicyVersion, export: Path, names: Arrays, probed: Probed | None, tally: TallyRow
    ) -> tuple[SignedManifest, dict[str, float]]:
        """Sign and adopt an export, and record it in the ledger. Return the manifest, and figures for its event.

        Reading a large model takes minutes. If that is cancelled, nothing is adopted.
        """
        before = None if self._previous is None else self.context.store.manifest(self._previous)
        now_ms = trio.from_thread.run_sync(self.context.signing_ms)
        try:
            published = self._signer.publish(
                export,
                version,
                self._previous,
                now_ms,
                self._bases(),
                names,
                probed,
                tally.envelope,
                look=trio.from_thread.check_cancelled,
            )
            signed = published.signed
            self._adopt(signed, export, published.patches)
        except StoreError as error:
            raise RunError(f"Version {version} cannot be published. {error}") from error
        except (OSError, LayoutError) as error:
            raise RunError(
                f"Version {version} cannot be published: {error}. Check the disk, then start again."
            ) from error
        for made in (export, patches_of(export)):  # the store has its own links to the files
            shutil.rmtree(made, ignore_errors=True)
        fresh_bytes = new_bytes(signed.manifest, before.manifest if before else None)
        self.ledger.training.version_published(
            version,
            signed.hash,
            self.now_ms(),
            total_bytes=signed.manifest.total_bytes,
            new_bytes=fresh_bytes,
            tally=tally,
        )
        sizes = {"new_bytes": fresh_bytes, "patches": len(published.patches)}
        return signed, {**sizes, "patch_seconds": round(published.patch_s, 4)}

    def _adopt(self, signed: SignedManifest, export: Path, patches: Sequence[Path]) -> None:
        """Adopt an export into the store. Versions kept for audits give way, one after the other. Raises StoreError."""
        while True:
            try:
                self.context.store.adopt(signed, export, patches)
                return
            except StoreFull:
                if self.kept is None or not trio.from_thread.run_sync(self.kept.yield_one):
                    raise

    def _bases(self) -> list[Base]:
        """Return the bases of patches that the store holds: the version before, and the last anchor."""
        wanted = dict.fromkeys(name for name in (self._previous, self._anchor()) if name is not None)
        found = [(self.context.store.manifest(name), name) for name in wanted if self.context.store.is_complete(name)]
        return [Base(manifest=signed, directory=self.context.store.directory(name)) for signed, name in found if signed]

    def _anchor(self) -> ManifestHash | None:
        """Return the newest anchor, if the store holds it."""
        name = self._anchored
        return name if name is not None and self.context.store.is_complete(name) else None

    def _note_anchor(self, version: int, manifest: ManifestHash) -> None:
        """Note a published version: the first one in each ANCHOR_EVERY * kappa steps is an anchor."""
        every = ANCHOR_EVERY * self.state.kappa
        if self._after is None or version // every > self._after // every:
            self._anchored = manifest

    def _forget_manifests(self) -> None:
        """Forget versions whose rollouts would be stale."""
        oldest = self.capacity.chain.head.version - self.capacity.window
        self.capacity.manifests = {
            v: manifest for v, manifest in self.capacity.manifests.items() if v.version >= oldest
        }

    def _clean(self, keep: set[ManifestHash]) -> None:
        """Remove all versions from the store except `keep` and the last anchor."""
        self.context.store.evict(keep if (anchor := self._anchor()) is None else keep | {anchor})


def _read_probe(told: Header | None) -> Probed | None:
    """Return the trainer's probe, if it sent one (`learner.training.probe`)."""
    if told is None:
        return None
    rows = zip(told["prompts"], told["completions"], strict=True)
    sequences = tuple((tuple(prompt), tuple(completion)) for prompt, completion in rows)
    return Probed(dtype=told["dtype"], sequences=sequences, logprobs=tuple(told["logprobs"]))


TOLD_FIGURES = ("entropy", "mismatch_kl", "ess", "clip_share", "grad_norm")
"""The trainer's figures that a step's event has. The ledger and the metrics have all of them."""


LAGS_TOLD = 6
"""Most lags whose KL is in a step's event, spread over those that occurred: as many as fit beside a word at 80
columns."""


def step_row(
    batch: Batch,
    logged: Sequence[LoggedGroup],
    head: PolicyVersion,
    began_ms: int,
    waited_s: float,
    reply: Mapping[str, Any],
    overlong: Overlong,
) -> StepRow:
    """Return the row of a training step.

    Rollouts, tokens and reward are those of the swarm. If the step used only logs, the reward is that of the logs. It
    is the tasks' own reward, without the changes of `overlong` for the trainer.
    """
    completions = [completion for group in batch.groups for completion in group.completions]
    from_logs = [one.reward for group in logged for one in group.completions]
    rewards = [completion.reward for completion in completions] or from_logs
    metrics = {
        key: float(value) for key, value in reply.items() if isinstance(value, int | float) and key not in ("id", "ok")
    }
    if (difficulty := batch.difficulty) is not None:
        metrics["difficulty"] = difficulty
    if (error := batch.reward_error) is not None:
        metrics["reward_error"] = error
    if completions:
        metrics["cut_off"] = fmean(one.cut_off for one in completions)
        metrics["overlong_penalty"] = fmean(one.reward - overlong.reward(one) for one in completions)
    named = means(completion.parts for completion in completions)
    by_lag = {str(lag): {"reward": reward} for lag, reward in batch.rewards_by_lag.items()}
    if from_logs:
        metrics["offline_sequences"] = len(from_logs)
        by_lag["offline"] = {"reward": sum(from_logs) / len(from_logs)}
    for lag, figures in reply.get("by_lag", {}).items():
        by_lag[lag] = {**by_lag.get(lag, {}), **figures}
    return StepRow(
        step=head.version,
        incarnation=head.incarnation,
        began_ms=began_ms,
        waited_s=waited_s,
        train_s=max(0.0, float(reply["seconds"]) - float(reply.get("blocked_s", 0.0))),
        rollouts=batch.rollouts,
        tokens=sum(len(completion.logprobs) for completion in completions),
        reward=sum(rewards) / len(rewards),
        metrics={**known(metrics), "by_lag": by_lag, **({"rewards": dict(named)} if named else {})},
    )


def event_figures(metrics: Mapping[str, Any]) -> dict[str, float | str]:
    """Return the figures of a step that its event has, as far as they are known."""
    told: dict[str, float | str] = {
        name: float(f"{metrics[name]:.4g}") for name in TOLD_FIGURES if isinstance(metrics.get(name), float)
    }
    kls = {lag: figures["kl"] for lag, figures in metrics["by_lag"].items() if "kl" in figures}
    lags = list(kls)[:: -(-len(kls) // LAGS_TOLD) or 1]
    return told | ({"kl_by_lag": ", ".join(f"{lag}: {kls[lag]:.2g}" for lag in lags)} if kls else {})
