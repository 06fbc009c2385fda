"""Hooks of mkdocs: links to files outside the site become plain words, and at the end the search is asked for the
field's words."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    """In the repository such a link leads somewhere."""
    return re.sub(r"\[([^\]]+)\]\((?:\.\./)+(?!docs/|decisions/)[^)]*\)", r"\1", markdown)


def on_post_build(config: Any, **_: Any) -> None:
    """A site whose search does not find the right page first is not built."""
    sys.path.insert(0, str(Path(__file__).parents[1]))  # mkdocs loads this file by itself
    from mkdocs.exceptions import PluginError

    from tools.search import WANTED, found

    wrong = [f"{words!r} finds {page} first" for words, page in found(Path(config.site_dir)) if page != WANTED[words]]
    if wrong:
        raise PluginError(f"the search of the site is off: {'; '.join(wrong)} (tools/search.py).")
