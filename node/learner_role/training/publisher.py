"""What the trainer made becomes a version, while it trains on: exported, signed, adopted into the store, written down,
announced.

    snapshot ... exported -> tally, sign -> adopt into the store -> ledger: version and tally -> announce
        the trainer trains on from here

What always holds:
- Versions are announced in their order, and only when the store can serve them and the ledger knows them. Killed before
  that, nobody has heard of a version, and its name is never given again, since the next start takes the next
  incarnation.
- A version's tally counts what the ledger says that the steps since the version before it consumed, which nothing adds
  to any more.
- At most UNDER_WAY versions are on their way, and one snapshot is being read: there is no queue. What is due meanwhile
  is not published, and the newest state is as soon as there is room.
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
"""The newest version is announced again after pauses that double from the one to the other: gossip may lose a message.
"""

AHEAD = "ahead"
"""In `exports`: what was exported before it was published."""

ANCHOR_EVERY = 8
"""Published versions from one anchor to the next. Patches from the last anchor let who was away for up to so many
versions catch up in one step; the learner keeps its files for as long."""


@dataclass(kw_only=True, eq=False)
class Publication:
    """A version on its way: `exported` is set once the trainer has told how that ended, `told`. Until then it ends with
    the trainer's process, by `scope`."""

    version: PolicyVersion
    directory: Path
    began_s: float
    told: tuple[Header, Arrays] | None = None
    exported: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def conclude(self, header: Header, arrays: Arrays) -> None:
        """The trainer says how the export ended."""
        self.told = header, arrays
        self.exported.set()


@dataclass(kw_only=True, eq=False)
class VersionPublisher(Service):
    """See the module's paragraph.

    Args:
        ask: one request to the trainer, for its header and arrays. Raises TrainerLost, ChildRefused, RunError.
        kept: versions that stay to be looked at, as long as there is room.
        written: awaited until the ledger knows a training step.
        snapshot_s: seconds that the trainer took for snapshots since somebody set it to 0.
        lost: how a version was lost with the trainer since `go_on`, "" if none was. Rollouts may be waited for that it
            alone could bring.
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
        """What the trainer was exporting when it ended will never be there."""
        for one in self._under_way:
            if not one.exported.is_set():
                one.scope.cancel()
                self.lost = f"it ended while it exported version {one.version}"

    def go_on(self, published: Sequence[tuple[PolicyVersion, ManifestHash]]) -> None:
        """These were published before, oldest first; what of them belongs to the chain of `run` is gone on from."""
        self.capacity.manifests = dict(published)
        kept = [(version.version, manifest) for version, manifest in published if self.capacity.chain.contains(version)]
        self._after = self._previous = self._anchored = None
        for version, manifest in kept:
            self._note_anchor(version, manifest)
            self._after, self._previous = version, manifest
        self._begun, self._due, self.lost = -1, None, ""
        self._forget_manifests()

    def sweep(self) -> None:
        """Remove exports that a crash left and nobody adopted. Raises OSError."""
        self._ahead = None
        shutil.rmtree(self.exports, ignore_errors=True)
        self.exports.mkdir(parents=True, exist_ok=True)

    async def export_ahead(self) -> Path:
        """Export the policy before it has a name, for a trial, and return the directory; `publish` takes it as it is,
        unless `sweep` comes first. Raises TrainerLost, RunError."""
        directory = self.exports / AHEAD
        self._ahead = await self._ask_export(directory, "The first version", wait=True)
        return directory

    @property
    def _signer(self) -> VersionBuilder:
        """Signs with the certificate that is in force."""
        me = self.identity
        return VersionBuilder(learner=me.keypair, authority=me.authority, certificate=me.certificate)

    def _renew(self) -> None:
        """The newest announcement carries the new certificate as well."""
        if self._said is not None:
            self._announce(msgspec.structs.replace(self._said, certificate=self.identity.certificate))

    def _announce(self, said: Announcement) -> None:
        """From now on this is the newest."""
        self._said = said
        self.state.announcement = announce(self.identity.keypair, self.identity.authority, said)

    async def announce_again(self) -> None:
        """Repeat the newest announcement until cancelled, ever more seldom until there is another one."""
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
        """Whether the state after training step `step` is one to publish: every kappa-th is, and the `last`."""
        kappa = self.state.kappa
        return step > self._begun and (last or step // kappa > max(0, self._begun) // kappa)

    @property
    def has_room(self) -> bool:
        """Whether a snapshot may be taken now."""
        return len(self._under_way) < UNDER_WAY and all(one.exported.is_set() for one in self._under_way)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way."""
        return not self._under_way

    def put_off(self, step: int) -> None:
        """The state after `step` is due, and there is no room yet."""
        self._due = step if self._due is None else self._due

    async def begin(self, nursery: trio.Nursery) -> None:
        """Have a snapshot of the policy taken, and publish it in `nursery`; return when the trainer may train on.

        There must be room. Raises RunError; of a trainer that is lost, `lost` tells.
        """
        await nursery.start(self._publish_beside)

    async def publish(self) -> SignedManifest:
        """Publish the policy, and return when it is announced. Raises TrainerLost, RunError."""
        one = self._plan()
        try:
            with one.scope:
                await self._take_snapshot(one)
                return await self._bring_out(one)
            raise TrainerLost("it ended while it exported a version")
        finally:
            self._end(one)

    async def _publish_beside(self, task_status: trio.TaskStatus[None]) -> None:
        """Says that it has started once the snapshot comes before whatever the trainer is asked later."""
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
        """Return when nothing is on its way. What the trainer that ended was exporting is given up."""
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
                reason="publications take longer than training steps: publish_every may be more, or patches less",
            )
        self._begun, self._due = version.version, None
        return one

    async def _take_snapshot(self, one: Publication, sent: Callable[[], None] = lambda: None) -> None:
        """Have the trainer begin to export it. Raises TrainerLost, RunError."""
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
        """From the snapshot to the announcement. Raises RunError."""
        run, version, export = self.state, one.version, one.directory
        await one.exported.wait()
        export_s = trio.current_time() - one.began_s
        self.state.notify(leasable=False)  # the next snapshot may be taken
        assert one.told is not None
        reply, names = one.told
        if reply.get("event") == "export_failed":
            raise self._unpublished(f"Version {version}", str(reply.get("kind")), str(reply.get("error")))
        probed = _read_probe(reply.get("probe"))
        async with self._sealing:  # first come, first served: in their order
            await self.written(version.version)
            tally = await trio.to_thread.run_sync(self._tally, version)
            signed, made = await trio.to_thread.run_sync(self._seal, version, export, names, probed, tally)
            await self._announce_version(one, signed, {**made, "export_seconds": round(export_s, 4)})
            self.signals.version_published.emit(signed)
            await self.clean()
        run.notify()
        return signed

    async def _announce_version(self, one: Publication, signed: SignedManifest, made: Mapping[str, float]) -> None:
        """From now on it is the newest version, and whoever is here hears of it; its event tells how it was `made`."""
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
        """Remove versions that no rollout may be made with any more from the store, but for the last anchor."""
        keep = set(self.capacity.manifests.values())
        if self.kept is not None:
            self.kept.trim(keep)
        await trio.to_thread.run_sync(self._clean, keep)

    def _name(self, export: Path, version: PolicyVersion) -> None:
        """What was exported ahead is `version`."""
        try:
            (self.exports / AHEAD).rename(export)
        except OSError as error:
            raise RunError(
                f"Version {version} cannot be published: {error}. Check the disk, then start again."
            ) from None

    async def _ask_export(
        self, export: Path, what: str, *, wait: bool, sent: Callable[[], None] = lambda: None
    ) -> tuple[Header, Arrays]:
        """Raises TrainerLost, RunError."""
        header = {"directory": str(export), "dtype": self.weights_dtype, "wait": wait}
        try:
            return await self.ask("export", header, None, sent)
        except ChildRefused as refused:
            raise self._unpublished(what, refused.kind, refused.error) from None

    def _unpublished(self, what: str, kind: str, error: str) -> RunError:
        place = f" See the disk of {self.exports}." if kind == "disk" else ""
        return RunError(f"{what} cannot be published: {error}.{place}")

    def _tally(self, version: PolicyVersion) -> TallyRow:
        """What the steps since the version before consumed, signed. 100,000 records take a second: for a thread."""
        after = version.version if self._after is None else self._after
        trained = self.ledger.evidence.trained(after, version.version)
        signed = self._signer.tally(version, after, trained, self.now_ms())
        return TallyRow(version=version, after=after, envelope=signed)

    def _pin(self, newest: ManifestHash) -> None:
        """Let the store never make room by evicting the newest version; older ones it may, if there is a quota."""
        self.context.store.pin(newest)
        if self._pinned is not None:
            self.context.store.unpin(self._pinned)
        self._pinned = newest

    def _seal(
        self, version: PolicyVersion, export: Path, names: Arrays, probed: Probed | None, tally: TallyRow
    ) -> tuple[SignedManifest, dict[str, float]]:
        """Sign and adopt what was exported, and write down that it exists; return it, and figures for its event.

        Cancelled while it is read, which takes minutes for a large model, it ends with nothing adopted.
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
        """Put it into the store. What is kept to be looked at gives way, one version after the other. Raises
        StoreError."""
        while True:
            try:
                self.context.store.adopt(signed, export, patches)
                return
            except StoreFull:
                if self.kept is None or not trio.from_thread.run_sync(self.kept.yield_one):
                    raise

    def _bases(self) -> list[Base]:
        """The versions that patches start from, where they are held: the one before, and the last anchor."""
        wanted = dict.fromkeys(name for name in (self._previous, self._anchor()) if name is not None)
        found = [(self.context.store.manifest(name), name) for name in wanted if self.context.store.is_complete(name)]
        return [Base(manifest=signed, directory=self.context.store.directory(name)) for signed, name in found if signed]

    def _anchor(self) -> ManifestHash | None:
        """The newest anchor, if the store holds it."""
        name = self._anchored
        return name if name is not None and self.context.store.is_complete(name) else None

    def _note_anchor(self, version: int, manifest: ManifestHash) -> None:
        """It was published: the first one of each ANCHOR_EVERY kappa steps is an anchor."""
        every = ANCHOR_EVERY * self.state.kappa
        if self._after is None or version // every > self._after // every:
            self._anchored = manifest

    def _forget_manifests(self) -> None:
        """Forget versions that no rollout may be made with any more."""
        oldest = self.capacity.chain.head.version - self.capacity.window
        self.capacity.manifests = {
            v: manifest for v, manifest in self.capacity.manifests.items() if v.version >= oldest
        }

    def _clean(self, keep: set[ManifestHash]) -> None:
        """Remove all other versions but the last anchor from the store."""
        self.context.store.evict(keep if (anchor := self._anchor()) is None else keep | {anchor})


def _read_probe(told: Header | None) -> Probed | None:
    """What the trainer told of the probe, if it did (`learner.training.probe`)."""
    if told is None:
        return None
    rows = zip(told["prompts"], told["completions"], strict=True)
    sequences = tuple((tuple(prompt), tuple(completion)) for prompt, completion in rows)
    return Probed(dtype=told["dtype"], sequences=sequences, logprobs=tuple(told["logprobs"]))


TOLD_FIGURES = ("entropy", "mismatch_kl", "ess", "clip_share", "grad_norm")
"""Figures of the trainer's that a step's event has; all of them are in the ledger and among the metrics."""


LAGS_TOLD = 6
"""Lags whose KL a step's event tells, spread over those there were: what fits beside a word at 80 columns."""


def step_row(
    batch: Batch,
    logged: Sequence[LoggedGroup],
    head: PolicyVersion,
    began_ms: int,
    waited_s: float,
    reply: Mapping[str, Any],
    overlong: Overlong,
) -> StepRow:
    """Rollouts, tokens and reward are the swarm's; the reward is that of the logs where they are all. It is the tasks'
    own, whatever `overlong` made of it for the trainer."""
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
    """Of a step's figures those that its event tells, if they are known."""
    told: dict[str, float | str] = {
        name: float(f"{metrics[name]:.4g}") for name in TOLD_FIGURES if isinstance(metrics.get(name), float)
    }
    kls = {lag: figures["kl"] for lag, figures in metrics["by_lag"].items() if "kl" in figures}
    lags = list(kls)[:: -(-len(kls) // LAGS_TOLD) or 1]
    return told | ({"kl_by_lag": ", ".join(f"{lag}: {kls[lag]:.2g}" for lag in lags)} if kls else {})
