"""Write the model card of an export: a README.md with the front matter that Hugging Face's hub reads.

Pure. Names of peers and tasks are strangers' text. In the front matter every value is a JSON string, which YAML reads
unchanged. In the text every character with a meaning in Markdown or HTML is escaped.

Invariants:

- For any name, the front matter parses to the intended values, and the text contains no markup from a name.
- A number that is not in the ledger is left out, never invented.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from node.commands.export.card_facts import CardFacts, Contributor, RunFacts, scores_by_task
from node.runtime.formatting import counted, plain_name, share, times

MAX_TEXT_CHARS = 200
"""Most characters of a name or a spec on a card: one line."""

_MARKUP = re.compile(r"([!-$&-+\--/:<-@\[-`{-~])")
"""ASCII punctuation except , ; and %. Markdown lets each be escaped, and gives a meaning to most."""

FORMS = {
    "model": "a model directory for transformers",
    "merged": "a model directory for transformers, with the trained adapter merged into its base model",
    "adapter": "a LoRA adapter for peft: load the base model first, and then this adapter",
}


def write_card(facts: CardFacts) -> str:
    """Return the whole README.md."""
    parts = [front_matter(facts), *_sections(facts)]
    return "\n".join(parts)


def front_matter(facts: CardFacts) -> str:
    """Return the YAML between two lines of dashes."""
    lines = ["---"]
    if facts.licence:
        lines.append(f"license: {quoted(facts.licence)}")
    if facts.base_hub:
        lines.append(f"base_model: {quoted(facts.base_hub)}")
        lines.append(f"base_model_relation: {quoted('adapter' if facts.form == 'adapter' else 'finetune')}")
    lines.append(f"library_name: {quoted('peft' if facts.form == 'adapter' else 'transformers')}")
    lines.append("pipeline_tag: text-generation")
    lines += ["tags:", *(f"- {quoted(tag)}" for tag in _tags(facts))]
    return "\n".join([*lines, "---", ""])


def quoted(text: str) -> str:
    """Return `text` as a YAML scalar: a JSON string, without characters that do not print or break lines."""
    return json.dumps(plain_name(text, MAX_TEXT_CHARS), ensure_ascii=False)


def escaped(text: str) -> str:
    """Return `text` as a line of Markdown that shows it and does nothing else."""
    return _MARKUP.sub(r"\\\1", plain_name(text, MAX_TEXT_CHARS))


def as_code(text: str) -> str:
    """Return `text` as inline code in Markdown, which shows it unchanged."""
    return "`" + plain_name(text, MAX_TEXT_CHARS).replace("`", "'") + "`"


def _tags(facts: CardFacts) -> Iterator[str]:
    yield from facts.tags
    if facts.form == "adapter":
        yield "lora"
    if facts.gguf:
        yield "gguf"


def _sections(facts: CardFacts) -> Iterator[str]:
    yield f"# {escaped(facts.swarm) or 'A swarm'}, version {facts.version}\n"
    yield _opening(facts)
    if facts.base_called:
        relation = "The base model is" if facts.base_hub else "The run began with a directory called"
        yield f"{relation} {escaped(facts.base_called)}.\n"
    if not facts.licence:
        yield "No licence was named when this was exported. Ask the publisher before you use it.\n"
    yield "## Training\n"
    yield from _training(facts)
    if facts.run is not None:
        yield from _evaluation(facts.run, facts.version)
        yield from _contributors(facts.run)
    yield "## Where it comes from\n"
    yield _table(("", ""), _origin(facts))
    yield _receipts(facts)


def _opening(facts: CardFacts) -> str:
    return (
        f"Version {facts.version} of a policy that a swarm trained with reinforcement learning: peers generated "
        f"completions, and a learner trained on them, with Volery. This is {FORMS[facts.form]}.\n"
    )


def _training(facts: CardFacts) -> Iterator[str]:
    if facts.tasks:
        yield "Trained on:\n"
        for task in facts.tasks:
            of_all = f" ({share(task.share)} of the prompts)" if len(facts.tasks) > 1 else ""
            named = f"{escaped(task.title)}: " if task.title != task.spec.partition(":")[0] else ""
            yield f"- {named}{as_code(task.spec)}{of_all}"
        yield ""
        yield f"Held out, and never trained on: {_held_out(facts)}.\n"
    if facts.logs:
        yield f"Also trained on logged completions: {as_code(facts.logs)}.\n"
    if facts.untold:
        yield f"{facts.untold}\n"
    rows = list(facts.settings)
    if run := facts.run:
        again = f"; the learner was restarted {times(run.restarts)}" if run.restarts else ""
        rows += [
            ("training steps", f"{run.steps:,}{again}"),
            ("versions published", f"{run.versions:,}"),
            ("completions trained on", f"{run.rollouts:,}"),
            ("tokens trained on", f"{run.tokens:,}"),
        ]
    if rows:
        if facts.settings:
            yield "The settings are those in the swarm's configuration when this was exported.\n"
        yield _table(("setting", "value"), rows)


def _held_out(facts: CardFacts) -> str:
    """Return the prompts that the newest evaluation had; before the first, the configured maximum."""
    if facts.run is not None and (last := facts.run.after or facts.run.before) is not None:
        return counted(last.prompts, "prompt")
    return f"at most {counted(facts.held_out, 'prompt')} of each task" if facts.held_out else "nothing"


def _evaluation(run: RunFacts, exported: str) -> Iterator[str]:
    yield "## Evaluation\n"
    if run.before is None:
        yield "Nothing was evaluated.\n"
        return
    first, last = run.before, run.after or run.before
    prompts = counted(last.prompts, "held-out prompt")
    changed = f" (the first evaluation had {first.prompts:,})" if first.prompts != last.prompts else ""
    sampled = counted(last.samples, "sampled completion")
    yield (
        f"Mean reward over {prompts}{changed}, of the greedy completion and of {sampled} of each, as the learner "
        f"measured it.{' There was one evaluation.' if run.after is None else ''}"
        f"{'' if str(last.version) == exported else f' Version {exported} itself was not evaluated.'}\n"
    )
    before, after = scores_by_task(first), scores_by_task(last)
    rows = []
    for task, (greedy, drawn) in after.items():
        began = before.get(task)
        was = ("", "") if began is None or run.after is None else (f"{began[0]:.3f}", f"{began[1]:.3f}")
        rows.append((escaped(task) or "all", was[0], f"{greedy:.3f}", was[1], f"{drawn:.3f}"))
    heads = (f"{how}, version {one.version}" for how in ("greedy", "sampled") for one in (first, last))
    yield _table(("task", *heads), rows)


def _contributors(run: RunFacts) -> Iterator[str]:
    yield "## Contributors\n"
    yield from _generators(run)
    if run.teachers:
        yield "These peers scored completions with the teacher model so far:\n"
        rows = [(escaped(one.name), f"{one.groups:,}", f"{one.tokens:,}") for one in run.teachers]
        yield _table(("peer", "groups scored", "tokens scored"), rows)


def _generators(run: RunFacts) -> Iterator[str]:
    if not run.contributors:
        yield "So far the run was not trained on completions of any peer.\n"
        return
    yield "These peers generated the completions that the run was trained on so far. Each chose its own name:\n"
    rows = [*run.contributors, *([run.others] if run.others else [])]
    yield _table(("peer", "completions trained on", "share"), map(_row, rows))


def _row(one: Contributor) -> tuple[str, ...]:
    return escaped(one.name), f"{one.records:,}", share(one.share)


def _origin(facts: CardFacts) -> Iterator[tuple[str, str]]:
    yield "swarm", escaped(facts.swarm)
    yield "swarm id", f"`{facts.swarm_id}`"
    yield "operator", f"`{facts.operator}`"
    yield "version", f"`{facts.version}`"
    yield "manifest", f"`{facts.manifest}`" if facts.manifest else "none: this version was not published to the swarm"
    if facts.remade:
        yield "made from", "the learner's checkpoint of this step, because its store no longer held the version"
    yield "software", facts.software


def _receipts(facts: CardFacts) -> str:
    return (
        "The learner signed a receipt for each lease that was delivered, and a tally of the records behind each "
        "version. Ask the operator or a contributor for their file of receipts (`volery receipts export`), then check "
        "it offline:\n\n"
        f"    volery receipts verify receipts.jsonl --operator {facts.operator}\n\n"
        "It shows whether the file belongs to this swarm, who delivered what, and, with proofs, which version was "
        "trained on each record.\n"
    )


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
