"""Check what a start needs before a program opens, creates or starts anything, so that a mistake leaves nothing behind.

Invariants:

- Every refusal is a UsageError that names the key of the configuration and the next step.
- Only the presence of a model is checked here. The trainer checks it again, tensor by tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import parse_json
from node.runtime.errors import UsageError
from protocol.core.dates import moment
from swarm.libp2p import Address, BadAddress, parse_address, why_no_host, why_undialable

INDEX = "model.safetensors.index.json"
YOUNGEST_MS = 1_769_904_000_000
"""2026-02-01: there was no volery before."""

ANNOUNCE = "[network] announce"

SAVE_AGAIN = "load it with transformers once and write it with save_pretrained"


def require_model(directory: Path, key: str = "[model] directory") -> None:
    """Raise UsageError for a directory without a model with weights in safetensors. `key`: where its name stands."""
    require_directory(directory, key)
    if not (directory / "config.json").is_file():
        raise UsageError(f"{key}: {directory} has no config.json. Copy it from where the model came from.")
    if (directory / "model.safetensors").is_file():
        return
    if not (directory / INDEX).is_file():
        raise UsageError(
            f"{key}: {directory} has no weights, neither model.safetensors nor {INDEX}. "
            f"If they are in another format, {SAVE_AGAIN}."
        )
    missing = [name for name in _shards(directory / INDEX, key) if not (directory / name).is_file()]
    if missing:
        raise UsageError(f"{key}: {directory} lacks {missing[0]}, which {INDEX} names. Copy all shards of the model.")


def require_directory(directory: Path, key: str) -> None:
    """Raise UsageError if a model's directory does not exist. `key`: where its name stands."""
    if not directory.is_dir():
        wrong = "is a file" if directory.exists() else "does not exist"
        raise UsageError(
            f"{key}: {directory} {wrong}. Name a directory that save_pretrained wrote; `hf download NAME --local-dir "
            "DIRECTORY` fetches one."
        )


def require_addresses(listen: Sequence[str], announce: Sequence[str], *, announced_by: str = ANNOUNCE) -> None:
    """Raise UsageError for a text that is no address, or that nobody could dial. Only listening shows whether an
    address can be listened on.

    `announced_by` is the key or the option that `announce` comes from.
    """
    _require_each(listen, "[network] listen", why_no_host, "/ip4/0.0.0.0/tcp/4001")
    _require_each(announce, announced_by, why_undialable, "/ip4/203.0.113.7/tcp/4001, or /dns/learner.example/tcp/4001")


def _require_each(addresses: Sequence[str], where: str, objection: Callable[[Address], str], example: str) -> None:
    for text in addresses:
        try:
            if why := objection(parse_address(text)):
                raise BadAddress(f"{text!r}: {why}")
        except BadAddress as error:
            raise UsageError(f"{where}: {error}. For example {example}.") from None


def require_clock(now_ms: int) -> None:
    """Raise UsageError if the clock has lost its time, as on a machine without a battery: no peer would accept its
    dates."""
    if now_ms < YOUNGEST_MS:
        raise UsageError(
            f"This machine's clock shows {moment(now_ms)}, which is before this program was written. Set the clock, "
            "and start again."
        )


def shards_of(directory: Path) -> list[str]:
    """Return the names of the files with the weights, for a directory that `require_model` accepted."""
    if (directory / "model.safetensors").is_file():
        return ["model.safetensors"]
    return _shards(directory / INDEX)


def _shards(index: Path, key: str = "[model] directory") -> list[str]:
    try:
        return sorted(set(parse_json(read_file(index))["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise UsageError(f"{key}: {index} is not an index of weights; {SAVE_AGAIN}.") from None
