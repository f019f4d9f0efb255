"""Open the sinks of the configuration."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from node.config.swarm_config import MetricsSection
from node.installation.extras import line_of_extra
from node.learner_role.metrics.board import Row
from node.learner_role.metrics.prometheus import split_address
from node.learner_role.metrics.sinks import Sink
from node.learner_role.metrics.sqlite import FILE, SqliteSink
from node.learner_role.metrics.tensorboard import DIRECTORY as TENSORBOARD
from node.learner_role.metrics.tensorboard import TensorBoardSink
from node.learner_role.metrics.wandb import DIRECTORY as WANDB
from node.learner_role.metrics.wandb import WandbSink
from node.runtime.errors import UsageError

SLUG_CHARS = 64
"""Most characters of a swarm's name in the name of a run. W&B allows 128 for the whole."""


def require_sinks(section: MetricsSection) -> None:
    """Raise UsageError for a sink that cannot work, before anything is opened."""
    if section.tensorboard and find_spec("tensorboard") is None:
        raise UsageError(
            "[metrics] tensorboard: it is not installed here. Set the key to false, or type: "
            f"{line_of_extra('tensorboard')}"
        )
    if section.wandb and find_spec("wandb") is None:
        raise UsageError(
            "[metrics] wandb: Weights & Biases is not installed here. Leave out the key, or type: "
            f"{line_of_extra('wandb')}"
        )
    if section.prometheus:
        try:
            split_address(section.prometheus)
        except ValueError as error:
            raise UsageError(f'[metrics] prometheus: {error}. For example "127.0.0.1:9464".') from None


def slug(name: str) -> str:
    """Return `name` with only the characters that a run's name may have: letters, digits, dots and dashes."""
    return "-".join(re.findall(r"[A-Za-z0-9.]+", name))[:SLUG_CHARS] or "swarm"


def open_sinks(section: MetricsSection, state: Path, *, run: str) -> list[Sink[Row]]:
    """Return the sinks, with their files below `state`. `run` names the swarm's series if many swarms share a place."""
    sinks: list[Sink[Row]] = []
    if section.sqlite:
        sinks.append(SqliteSink(path=state / FILE))
    if section.tensorboard:
        sinks.append(TensorBoardSink(directory=state / TENSORBOARD))
    if section.wandb:
        sinks.append(
            WandbSink(directory=state / WANDB, project=section.wandb, group=run, offline=section.wandb_offline)
        )
    return sinks
