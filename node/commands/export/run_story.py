"""Read what an export needs to know about its run: the swarm, the ledger's history, and the training data.

If the ledger cannot be read, the card lacks its numbers, but the export succeeds: the weights are in the store. A
volunteer has no ledger, and its card says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version as distribution_version

from learner.ledger.queries.reader import read_ledger
from learner.ledger.rows import CheckpointRow
from learner.ledger.sqlite.database import LedgerError, is_blank
from node.commands.export.base_model import BaseModel
from node.commands.export.card_facts import CardFacts, RunFacts, logs_of, run_facts, settings_of, task_facts
from node.commands.export.version_choice import Chosen
from node.config.swarm_config import SwarmConfig
from node.learner_role.training.resume import LEDGER
from node.reports.model.report import Evaluation, SwarmReport
from node.reports.readers.ledger_report import swarm_report
from node.runtime.errors import RunError, UsageError
from node.runtime.formatting import plain_name
from node.state.learner_state import genesis_at
from node.state.locate import StateLocation
from protocol.core.errors import PeerError
from protocol.core.genesis import read_genesis
from protocol.core.identity import peer_id_of
from protocol.core.ids import PolicyVersion

VOLUNTEER = (
    "This was exported on a contributor's machine. Its training data, evaluation and contributors are recorded in the "
    "ledger of the swarm's learner."
)


@dataclass(frozen=True, kw_only=True)
class RunStory:
    """What is known about a run.

    Args:
        report: None if there is no readable ledger; `trouble` says why.
        rows: checkpoints, newest first.
        manifests: manifest hashes by published version.
        base: digests of the files that the run began with.
    """

    swarm: str
    swarm_id: str
    operator: str
    is_learner: bool
    config: SwarmConfig | None
    report: SwarmReport | None = None
    trouble: str = ""
    rows: tuple[CheckpointRow, ...] = ()
    manifests: Mapping[PolicyVersion, str] = field(default_factory=dict)
    base: Mapping[str, str] = field(default_factory=dict)

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """Return the evaluations of versions that no restart cut off, in order of time."""
        return () if self.report is None else self.report.surviving_evaluations

    def manifest_of(self, chosen: Chosen) -> str:
        """Return the hash of the manifest that a version was published with; "" if it was not published."""
        return self.manifests.get(chosen.version, "") if chosen.held is None else chosen.held.hash.hex()


def read_story(place: StateLocation) -> RunStory:
    """Return the story of the run whose state is at `place`. Raises UsageError, RunError about the swarm's genesis."""
    at = next((path for path in (place.state / "genesis", place.state / "store" / "genesis") if path.exists()), None)
    if at is None:
        raise RunError(f"{place.state / 'store'} holds no complete version yet.")
    raw, authority = genesis_at(at)
    try:
        name = read_genesis(raw)[0].name
    except PeerError as error:  # pragma: no cover  (the file was just read)
        raise UsageError(f"{at} is not a swarm's genesis ({error}).") from None
    told = {
        "swarm": plain_name(name),
        "swarm_id": authority.swarm.hex(),
        "operator": str(peer_id_of(authority.operator)),
        "is_learner": place.is_learner,
        "config": place.config,
    }
    ledger = place.state / LEDGER
    if not place.is_learner or is_blank(ledger):
        return RunStory(**told)  # type: ignore[arg-type]
    try:
        staleness = None if place.config is None else place.config.learn.staleness
        report = swarm_report(ledger, staleness=staleness)
        with read_ledger(ledger) as reader:
            return RunStory(
                **told,  # type: ignore[arg-type]
                report=report,
                rows=tuple(reader.training.checkpoints()),
                manifests={version: manifest.hex() for version, manifest in reader.training.manifests()},
                base=reader.training.base_model(),
            )
    except LedgerError as error:
        return RunStory(**told, trouble=str(error))  # type: ignore[arg-type]


def card_facts(story: RunStory, chosen: Chosen, form: str, base: BaseModel, licence: str, gguf: str = "") -> CardFacts:
    """Return what the card of an export tells."""
    config, run = story.config, RunFacts()
    if story.report is not None:
        run = run_facts(story.report, chosen.version.version)
    return CardFacts(
        swarm=story.swarm,
        swarm_id=story.swarm_id,
        operator=story.operator,
        version=str(chosen.version),
        manifest=story.manifest_of(chosen),
        form=form,
        software=f"volery {distribution_version('volery')}",
        licence=licence,
        base_hub=base.hub,
        base_called=base.called,
        remade=chosen.row is not None,
        tasks=() if config is None else task_facts(config),
        held_out=0 if config is None else config.task.held_out,
        logs="" if config is None else logs_of(config),
        settings=() if config is None else settings_of(config),
        run=None if story.report is None else run,
        untold=_untold(story),
        gguf=gguf,
    )


def _untold(story: RunStory) -> str:
    if not story.is_learner:
        return VOLUNTEER
    return "" if story.report is not None else "The ledger of the run could not be read when this was exported."
