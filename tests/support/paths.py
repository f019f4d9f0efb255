"""Name the repository's directory, for tests that read its documents or start its programs."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
