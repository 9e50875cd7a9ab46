"""A real Chromium for the tests marked `browser`."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The browser, while the tests of one module run, as asyncio has a running loop meanwhile; skips where something is not installed."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install -c constraints.txt '.[browser]'")
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("needs Chromium: apt-get install chromium, or its path in CHROMIUM")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def is_error(message: Any) -> bool:
    """Whether a message of the console is an error of the page; the status of a reply is none."""
    return message.type == "error" and not message.text.startswith("Failed to load resource")


def until(tab: Any, holds: str) -> None:
    """Wait until an expression holds in a tab; `wait_for_function` would evaluate a text there, which the page forbids."""
    end = time.monotonic() + 60
    while not tab.evaluate(holds):
        assert time.monotonic() < end, holds
        tab.wait_for_timeout(20)


@pytest.fixture
def tab(chromium: Any) -> Iterator[Any]:
    """A new tab, in which an error of a script or one against the security policy fails the test."""
    context = chromium.new_context(viewport={"width": 1200, "height": 700}, reduced_motion="reduce")
    page, errors = context.new_page(), list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if is_error(message) else None)
    page.on("dialog", lambda dialog: (errors.append("a dialog"), dialog.dismiss()))
    yield page
    context.close()
    assert errors == []
