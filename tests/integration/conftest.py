"""Provide directories in memory, and small models, for all tests below."""

from tests.support.node_fixtures import models, tmp_path

__all__ = ["models", "tmp_path"]
