"""Provide directories in memory, small models, and a browser, for all tests below."""

from tests.support.browsers import browser
from tests.support.node_fixtures import models, tmp_path

__all__ = ["browser", "models", "tmp_path"]
