"""`volery export`: write one policy version as a model directory that transformers loads, and push it.

A version that the store holds is copied, file by file. One that it has evicted is made again of the learner's
checkpoint of its training step, if that is kept (`version_files`). An adapter is merged into its model, or written
alone. Beside it lie a card that tells what the model is, and a record of its files.

Invariants:
- the directory appears whole or not at all;
- nothing of the swarm is written, and a learner at work is not disturbed;
- what is pushed lies in the directory first: a push that fails loses nothing.
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
    """What `volery export` was asked for beside the version and the directory: the adapter alone, a licence and the
    base model as the hub calls them, a repository to push to ("": none), whether it is to be private, and a GGUF file
    with the type of its matrices (None: as they are)."""

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
    """Write the version `wanted` (the newest where that is "", the best by evaluation for "best") of the swarm or node
    at `source`, and push it if that is wished; return what was done, a line for each thing.

    `trainer` is the command of the trainer's process; `ask` asks for a licence. Raises UsageError, RunError.
    """
    licence = read_licence(wishes.licence) if wishes.licence else ""
    target = pushing.target_of(wishes.push, private=wishes.private) if wishes.push else None
    again = target is not None and (directory / RECORD).is_file()
    if directory.exists() and not again:
        raise UsageError(f"{directory} exists already; it was not touched. Name a directory that does not.")
    _require_gguf(wishes, directory, again=again)
    place = find_place(source)
    story = read_story(place)
    stored = stored_versions(place.state / "store")
    chosen = _chosen(place, story, stored, wanted)
    if target is not None and again:
        pushing.require_same(directory, chosen, "adapter" if wishes.adapter else "", target)
        licence = pushing.license_card(directory, licence, target, ask)
        said = f"{directory} holds version {chosen.version} already, and was not written again"
        if wishes.gguf is not None and not wishes.gguf.exists():
            size = _write_gguf(directory, wishes.gguf, wishes, story, chosen, licence)
            said += f", but for {wishes.gguf} ({size} bytes)"
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
    """Raises UsageError, RunError."""
    if wanted == BEST and not story.is_learner:
        raise UsageError(
            f"--version best: {place.state} is a volunteer's node, and evaluations are in the learner's ledger. Ask "
            "the operator which version is the best."
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
    raise UsageError(f"--version {wanted}: not held here (any more). Held: {names}{kept}.")


def _base(story: RunStory, wishes: Wishes) -> BaseModel:
    """Raises UsageError where an adapter would be said to be another model's."""
    directory = None if story.config is None else Path(story.config.model.directory)
    base = describe_base(directory, story.base, wishes.base_model)
    if wishes.adapter and base.other:
        raise UsageError(
            f"--adapter: [model] directory {directory} does not hold the model that this run began with, so the "
            "adapter is another's. Put that model back, or export the whole model without --adapter."
        )
    if wishes.adapter and wishes.push and not base.hub:
        raise UsageError(
            f"--push {wishes.push}: an adapter is of no use without its base model, and nothing says what the hub "
            "calls that. Add --base-model ORG/NAME, or push the whole model without --adapter."
        )
    return base


@dataclass(frozen=True)
class _Export:
    """One version on its way into a directory."""

    source: Path
    place: StateLocation
    story: RunStory
    chosen: Chosen
    base: BaseModel
    licence: str
    trainer: tuple[str, ...]

    def write(self, directory: Path, wishes: Wishes) -> str:
        """Write all of it; return what was done. Raises UsageError, RunError."""
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
        made = ", made of its checkpoint: the store does not hold it any more" if chosen.row is not None else ""
        return (
            f"Wrote version {chosen.version} ({why}{sum(files)} bytes, {len(files)} files) to {directory}{made}{said}"
        )

    def _shape(self, draft: Path, wishes: Wishes) -> tuple[str, str]:
        """Bring the files in `draft` into the form that is wished; return it, and what to say of it."""
        if not has_adapter(draft):
            if wishes.adapter:
                raise UsageError(
                    f"--adapter: version {self.chosen.version} has none, since its run trains all weights ([trainer] "
                    "lora_rank = 0). Leave --adapter away."
                )
            return "model", ""
        if wishes.adapter:
            keep_adapter(draft, self.base.called)
            return "adapter", ", the adapter alone"
        number = merge(draft)
        return "merged", f", its adapter merged into {counted(number, 'weight')}"


def _require_gguf(wishes: Wishes, directory: Path, *, again: bool) -> None:
    """Raises UsageError, RunError where no GGUF file could be written as it is wished."""
    path = wishes.gguf
    if path is None:
        return
    if wishes.adapter:
        raise UsageError("--gguf holds a whole model. Leave --adapter away.")
    if again and path.exists():
        return
    if again and _is_in(path, directory):
        raise UsageError(f"--gguf {path}: {directory} was written before. Name a file outside of it.")
    if path.exists():
        raise UsageError(f"--gguf {path} exists already; it was not touched. Name a file that does not.")
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
    """Take a new file at `path` away again if what comes after it fails."""
    try:
        yield
    except BaseException:
        if path is not None:
            path.unlink(missing_ok=True)
        raise


@contextmanager
def _appearing(directory: Path) -> Iterator[Path]:
    """A directory beside `directory`, which takes its place at the end, or is gone. Raises RunError."""
    draft = directory.with_name(f".{directory.name}.draft")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        yield draft
        draft.replace(directory)
    except OSError as error:
        raise RunError(f"{directory} could not be written: {error.strerror}. Nothing was left there.") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
