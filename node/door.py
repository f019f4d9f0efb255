"""What is looked at before a program opens, makes or starts anything: a mistake found here leaves nothing behind.

What always holds: every refusal is a UsageError that names the key of the configuration and the next step. The trainer
checks the model again, tensor by tensor; here it is only asked whether there is one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from node.errors import UsageError
from swarm.libp2p import BadAddress, parse_address

INDEX = "model.safetensors.index.json"
SAVE_AGAIN = "load it with transformers once and write it with save_pretrained"


def require_model(directory: Path) -> None:
    """Refuse a directory that holds no model with weights in safetensors."""
    if not directory.is_dir():
        wrong = "is a file" if directory.exists() else "does not exist"
        raise UsageError(
            f"[model] directory: {directory} {wrong}. Name a directory that save_pretrained wrote, relative to this "
            "file; `hf download NAME --local-dir DIRECTORY` fetches one."
        )
    if not (directory / "config.json").is_file():
        raise UsageError(f"[model] directory: {directory} has no config.json. Copy it from where the model came from.")
    if (directory / "model.safetensors").is_file():
        return
    if not (directory / INDEX).is_file():
        raise UsageError(
            f"[model] directory: {directory} has no weights, neither model.safetensors nor {INDEX}. "
            f"If they are in another format, {SAVE_AGAIN}."
        )
    missing = [name for name in _shards(directory / INDEX) if not (directory / name).is_file()]
    if missing:
        raise UsageError(
            f"[model] directory: {directory} lacks {missing[0]}, which {INDEX} names. Copy all shards of the model."
        )


def require_addresses(listen: Sequence[str], announce: Sequence[str]) -> None:
    """Refuse what is no address; whether one can be listened on is found out by listening."""
    for key, addresses in (("listen", listen), ("announce", announce)):
        for address in addresses:
            try:
                parse_address(address)
            except BadAddress as error:
                raise UsageError(f"[network] {key}: {error}. For example /ip4/0.0.0.0/tcp/4001.") from None


def shards_of(directory: Path) -> list[str]:
    """Names of the files that hold the weights of a directory which `require_model` let pass."""
    if (directory / "model.safetensors").is_file():
        return ["model.safetensors"]
    return _shards(directory / INDEX)


def _shards(index: Path) -> list[str]:
    try:
        return sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise UsageError(f"[model] directory: {index} is not an index of weights; {SAVE_AGAIN}.") from None
