"""Define TRL's settings that every baseline shares: float32 on a CPU, one update on each batch of new rollouts.

They switch off everything that costs time and teaches nothing.

Invariant: all settings that are not given here are common to the baselines, so a comparison differs only in what its
own file says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trl.trainer.grpo_config import GRPOConfig


def plain_config(out: Path, *, prompts: int, group: int, **given: Any) -> GRPOConfig:
    """Return a configuration whose step trains on `prompts` groups of `group` completions; `given` are GRPOConfig's
    own names."""
    return GRPOConfig(
        output_dir=str(out),
        per_device_train_batch_size=prompts * group,
        num_generations=group,
        gradient_accumulation_steps=1,
        num_iterations=1,
        beta=0.0,
        shuffle_dataset=False,
        use_cpu=True,
        bf16=False,
        dataloader_pin_memory=False,
        logging_strategy="no",
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **given,
    )
