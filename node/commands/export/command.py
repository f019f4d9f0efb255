"""Write one policy version as a model directory that transformers loads, and push it (`volery export`).

A version in the store is copied file by file. A version that the store has evicted is made again from the learner's
checkpoint of its training step, if that is kept (`version_files`). An adapter is merged into its model, or written
alone. The directory also gets a card that describes the model, and a record of its files.

Invariants:

- The directory appears whole or not at all.
- Nothing of the swarm is changed, and a running learner is not disturbed.
- Files are complete in the directory before they are pushed, so a push that fails loses nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from learner.artifacts.atomic_directory import write_bytes
from node.commands.export import push as pushing
from node.commands.export.adapters import has_adapter, keep_adapter, merge
from node.commands.export.base_model import BaseModel, describe_base, read_licence
from node.commands.export.card import write_card
from node.commands.export.gguf_file import GgufType, require_gguf, write_gguf
from node.commands.export.push import Ask
from node.commands.export.record import CARD, RECORD, write_record
from node.commands.export.run_story import RunStory, card_facts, read_story
from node.commands.export.version_choice import BEST, Chosen, choose
from node.commands.export.version_files import write_version
from node.learner_role.training.trainer_process import TRAINER
from node.runtime.atomic_files import writing
from node.runtime.errors import RunError, UsageError
from node.runtime.formatting import counted
from node.state.locate import StateLocation, find_place
from node.state.stored_versions import StoredVersions, stored_versions


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """The options of `volery export` besides the version and the directory.

    Args:
        adapter: write the adapter alone.
        licence, base_model: the hub's names for them.
        push: repository to push to; "" for none.
        private: make the repository private.
        gguf: GGUF file to write; None for none.
        gguf_type: number format of its matrices; None keeps theirs.
    """

    adapter: bool = False
    licence: str = ""
    base_model: str = ""
    push: str = ""
    private: bool = False
    gguf: Path | None = None
    gguf_type: GgufType | None = None


NO_WISHES = Wishes()


def export_version(
    source: Path,
    directory: Path,
    wanted: str,
    wishes: Wishes = NO_WISHES,
    *,
    trainer: Sequence[str] = TRAINER,
    ask: Ask = str,
) -> str:
    """Write a version of the swarm or node at `source`, and push it if that was asked for. Return a report in lines.

    Args:
        wanted: the version; "" for the newest, "best" for the best by evaluation.
        trainer: command of the trainer's process.
        ask: asks the person at the terminal for a licence.

    Raises UsageError, RunError.
    """
    licence = read_licence(wishes.licence) if wishes.licence else ""
    target = pushing.target_of(wishes.push, private=wishes.private) if wishes.push else None
    again = target is not None and (directory / RECORD).is_file()
    if directory.exists() and not again:
        raise UsageError(f"{directory} already exists, and was not changed. Name a directory that does not exist.")
    _require_gguf(wishes, directory, again=again)
    place = find_place(source)
    stored = stored_versions(place.state / "store")  # first, so that the ledger knows the steps of every version
    story = read_story(place)
    chosen = _chosen(place, story, stored, wanted)
    if target is not None and again:
        pushing.require_same(directory, chosen, "adapter" if wishes.adapter else "", target)
        licence = pushing.license_card(directory, licence, target, ask)
        said = f"{directory} already holds version {chosen.version}, and was not written again"
        if wishes.gguf is not None and not wishes.gguf.exists():
            size = _write_gguf(directory, wishes.gguf, wishes, story, chosen, licence)
            said += f", except {wishes.gguf} ({size} bytes)"
    else:
        base = _base(story, wishes)
        licence = licence or base.licence
        if target is not None:
            licence = licence or ask()
            pushing.require_licence(licence, target)
        export = _Export(source, place, story, chosen, base, licence, tuple(trainer))
        said = export.write(directory, wishes)
    lines = [said, *(note for note in (chosen.note, stored.about_damaged) if note)]
    if target is not None:
        lines.append(pushing.push(directory, target))
    return "\n".join(lines)


def _chosen(place: StateLocation, story: RunStory, stored: StoredVersions, wanted: str) -> Chosen:
    """Return the version to export. Raises UsageError, RunError."""
    if wanted == BEST and not story.is_learner:
        raise UsageError(
            f"--version best: {place.state} belongs to a rollout node, and evaluations are in the learner's ledger. "
            "Ask the operator which version is the best."
        )
    held = stored.complete
    if story.trouble and wanted == BEST:
        raise RunError(story.trouble)
    if (chosen := choose(wanted, held, story.rows, story.evaluations)) is not None:
        return chosen
    if story.trouble:
        raise RunError(story.trouble)
    if not held and not wanted:
        raise RunError(f"{place.state / 'store'} holds no complete version yet.")
    names = ", ".join(str(v.version) for v in held) or "none"
    kept = f"; checkpoints: {', '.join(row.directory for row in reversed(story.rows))}" if story.rows else ""
    raise UsageError(f"--version {wanted} is not, or no longer, kept here. The store holds: {names}{kept}.")


def _base(story: RunStory, wishes: Wishes) -> BaseModel:
    """Return the base model. Raises UsageError if an adapter would be attributed to another model."""
    directory = None if story.config is None else Path(story.config.model.directory)
    base = describe_base(directory, story.base, wishes.base_model)
    if wishes.adapter and base.other:
        raise UsageError(
            f"--adapter: [model] directory {directory} does not hold the model that this run began with, and the "
            "adapter fits only that one. Put that model back, or export the whole model without --adapter."
        )
    if wishes.adapter and wishes.push and not base.hub:
        raise UsageError(
            f"--push {wishes.push}: an adapter is useless without its base model, and that model's name on the hub is "
            "not known. Add --base-model ORG/NAME, or push the whole model without --adapter."
        )
    return base


@dataclass(frozen=True)
class _Export:
    """Writes one version into a directory."""

    source: Path
    place: StateLocation
    story: RunStory
    chosen: Chosen
    base: BaseModel
    licence: str
    trainer: tuple[str, ...]

    def write(self, directory: Path, wishes: Wishes) -> str:
        """Write all files; return what was done. Raises UsageError, RunError."""
        chosen, file = self.chosen, wishes.gguf
        inside = file is not None and _is_in(file, directory)
        with _undoing(None if inside else file), _appearing(directory) as draft:
            write_version(self.place, chosen, self.source, draft, self.trainer, light=wishes.adapter)
            form, said = self._shape(draft, wishes)
            named = file.name if file is not None and inside else ""
            card = write_card(card_facts(self.story, chosen, form, self.base, self.licence, named))
            write_bytes(draft / CARD, card.encode())
            if file is not None:
                path = draft / file.name if inside else file
                size = _write_gguf(draft, path, wishes, self.story, chosen, self.licence)
                said += f", and {file} ({size} bytes)"
            manifest = self.story.manifest_of(chosen)
            write_record(draft, swarm=self.story.swarm_id, version=str(chosen.version), manifest=manifest, form=form)
        files = [path.stat().st_size for path in directory.iterdir()]
        why = f"{chosen.why}; " if chosen.why else ""
        made = ", made from its checkpoint because the store no longer holds it" if chosen.row is not None else ""
        return (
            f"Wrote version {chosen.version} ({why}{sum(files)} bytes, {len(files)} files) to {directory}{made}{said}"
        )

    def _shape(self, draft: Path, wishes: Wishes) -> tuple[str, str]:
        """Convert the files in `draft` to the requested form; return the form, and what to say about it."""
        if not has_adapter(draft):
            if wishes.adapter:
                raise UsageError(
                    f"--adapter: version {self.chosen.version} has no adapter, because its run trains all weights "
                    "([trainer] lora_rank = 0). Omit --adapter."
                )
            return "model", ""
        if wishes.adapter:
            keep_adapter(draft, self.base.called)
            return "adapter", ", only the adapter"
        number = merge(draft)
        return "merged", f", with its adapter merged into {counted(number, 'weight')}"


def _require_gguf(wishes: Wishes, directory: Path, *, again: bool) -> None:
    """Raise UsageError or RunError if the requested GGUF file could not be written."""
    path = wishes.gguf
    if path is None:
        return
    if wishes.adapter:
        raise UsageError("--gguf writes a whole model. Omit --adapter.")
    if again and path.exists():
        return
    if again and _is_in(path, directory):
        raise UsageError(f"--gguf {path}: {directory} was written before. Name a file outside it.")
    if path.exists():
        raise UsageError(f"--gguf {path} already exists, and was not changed. Name a file that does not exist.")
    require_gguf(path)


def _is_in(path: Path, directory: Path) -> bool:
    return path.parent.resolve() == directory.resolve()


def _write_gguf(model: Path, path: Path, wishes: Wishes, story: RunStory, chosen: Chosen, licence: str) -> int:
    """Write the model as a GGUF file; return its size in bytes. Raises UsageError, RunError."""
    with writing(path, "--gguf"):
        path.parent.mkdir(parents=True, exist_ok=True)
        title = f"{story.swarm} {chosen.version}".strip()
        write_gguf(model, path, kind=wishes.gguf_type, title=title, licence=licence)
        return path.stat().st_size


@contextmanager
def _undoing(path: Path | None) -> Iterator[None]:
    """Remove the new file at `path` if the block fails."""
    try:
        yield
    except BaseException:
        if path is not None:
            path.unlink(missing_ok=True)
        raise


@contextmanager
def _appearing(directory: Path) -> Iterator[Path]:
    """Yield a directory beside `directory` that takes its place at the end, or is removed. Raises RunError."""
    draft = directory.with_name(f".{directory.name}.draft")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        yield draft
        draft.replace(directory)
    except OSError as error:
        raise RunError(f"{directory} could not be written: {error.strerror}. Nothing was left there.") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
