"""Links to files that are not part of the site become plain words: in the repository they lead somewhere."""

from __future__ import annotations

import re
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    return re.sub(r"\[([^\]]+)\]\((?:\.\./)+(?!docs/|decisions/)[^)]*\)", r"\1", markdown)
