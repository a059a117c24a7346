"""A browser for tests of pages; without one they are skipped."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = [
    *"--headless --no-sandbox --disable-gpu --disable-quic --no-first-run".split(),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    ),
]


@contextmanager
def opened_browser() -> Iterator[Any]:
    """Open Chromium while the block runs."""
    reason = "playwright is not installed"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    chromium = next((found for name in NAMES if (found := shutil.which(name))), None)
    if chromium is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield opened
        opened.close()
