"""Read how a model routes tokens to experts, for router replay and for audits.

Pure, except for reading config.json. It rejects a model whose routing cannot be replayed, and settings whose deliveries
would be too large with the experts in them.
"""

from __future__ import annotations

from pathlib import Path

from learner.artifacts.expert_routing import KNOWN, routing_in
from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import NotText, parse_config
from learner.rollouts.open_leases import delivery_bytes
from learner.trust.margins import Experts, experts_in
from node.config.swarm_config import SwarmConfig
from node.runtime.errors import UsageError
from protocol.core.limits import MAX_EXPERT_BYTES, MAX_WORK_BYTES
from protocol.experts import Routing

KEY = "[trainer] router_replay"


def replayed_routing(config: SwarmConfig) -> Routing | None:
    """Return how the model routes; None if nothing is replayed. Raises UsageError that names the key."""
    if not config.trainer.router_replay:
        return None
    directory, learn = Path(config.model.directory), config.learn
    found = _config_of(config, KEY)
    routing = routing_in(found) if isinstance(found, dict) else None
    if routing is None:
        kind = found.get("model_type") if isinstance(found, dict) else None
        raise UsageError(
            f"{KEY} = true, but {directory} is no mixture of experts that can be replayed (model_type {kind!r}). Known "
            f"types: {', '.join(sorted(KNOWN))}. Set the key to false."
        )
    of_one = learn.max_new_tokens * routing.token_bytes
    if of_one > MAX_EXPERT_BYTES:
        raise UsageError(
            f"{KEY} = true: a completion of [learn] max_new_tokens = {learn.max_new_tokens} has {of_one} bytes of "
            f"experts ({routing.token_bytes} a token), but a record may have at most {MAX_EXPERT_BYTES}. Lower "
            f"max_new_tokens to {MAX_EXPERT_BYTES // routing.token_bytes}."
        )
    if (size := delivery_bytes(learn.group_size, learn.max_new_tokens, routing)) > MAX_WORK_BYTES:
        raise UsageError(
            f"{KEY} = true: [learn] group_size = {learn.group_size} completions of max_new_tokens = "
            f"{learn.max_new_tokens} take up to {size} bytes with {routing.token_bytes} bytes of experts a token, but "
            f"a delivery may have at most {MAX_WORK_BYTES}. Lower one of the two."
        )
    return routing


def audited_experts(config: SwarmConfig) -> Experts:
    """Return what audits know about the experts of each token. Raises UsageError if config.json cannot be read."""
    if not config.trust.audits:
        return Experts.NONE
    return experts_in(_config_of(config, "[model] directory"), told=config.trainer.router_replay)


def _config_of(config: SwarmConfig, key: str) -> object:
    file = Path(config.model.directory) / "config.json"
    try:
        return parse_config(read_file(file))
    except (OSError, ValueError, NotText) as error:
        raise UsageError(f"{key}: {file} cannot be read: {error}. Copy it again.") from error
