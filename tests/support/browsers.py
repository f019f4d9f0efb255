"""Start a real browser for tests, without a screen.

Where no Chromium can be had, its tests fail: skipping them would say that all is well.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES_OF_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright  # for tests with a browser alone

    found = next(filter(None, map(shutil.which, NAMES_OF_CHROMIUM)), None)
    assert found, "there is no Chromium here; run: sudo apt-get install -y chromium"
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found)
        yield opened
        opened.close()
