"""A real browser for the tests: the one that is installed, found by its name or named by TAPELESS_BROWSER."""

import os
import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def found() -> str | None:
    return os.environ.get("TAPELESS_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


if __name__ == "__main__":
    print(found() or "")
