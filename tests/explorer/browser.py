"""A real browser for the tests: the one that is installed, found by its name or named by TAPELESS_BROWSER.

What a page shows is waited for and never looked at once: it answers a click when it comes to it.
"""

import os
import re
import shutil

from playwright.sync_api import Locator
from playwright.sync_api import expect as expect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
expect.set_options(timeout=30_000)


def found() -> str | None:
    return os.environ.get("TAPELESS_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


def says(place: Locator, text: str) -> None:
    expect(place).to_have_text(text, use_inner_text=True)


def shows(place: Locator, text: str) -> None:
    expect(place).to_contain_text(text, use_inner_text=True)


def begins(place: Locator, text: str) -> None:
    expect(place).to_have_text(re.compile("^" + re.escape(text)), use_inner_text=True)


if __name__ == "__main__":
    print(found() or "")
