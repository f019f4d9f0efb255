"""What is asked of those who compute rewards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from learner.rollouts.environment import Question, Reply

Ask = Callable[[Sequence[Question]], Awaitable[Sequence[Reply]]]
"""What comes back to what was said, in order: asked of an environment, wherever that is."""
