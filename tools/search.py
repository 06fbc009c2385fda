"""What the site's search finds first: asked when `make docs` builds it, and by python -m tools.search SITE.

A reader searches with the field's words. For each of them some page must come first, by the ranking that the site uses
(lunr, a hit in a heading counting a thousandfold). `WANTED` is the list; the headings of those pages have the words,
which a test of the suite holds without building the site.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
HEADING = re.compile(r"^#{1,4} (.+)$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
# What is searched, and the page that must come first.
WANTED = {
    "matmul": "settings",
    "GEMM": "settings",
    "KV cache": "training",
    "prefill": "training",
    "dataset": "training",
    "dataloader": "training",
    "sequence length": "training",
    "activation checkpointing": "training",
    "gradient checkpointing": "training",
    "mixed precision": "training",
    "validation loss": "training",
    "early stopping": "training",
    "learning-rate decay": "training",
    "weight decay": "training",
    "LoRA rank": "fine-tuning",
    "RoPE theta": "settings",
    "sliding window": "settings",
    "gradient accumulation": "training",
    "out of memory": "faq",
    "NaN": "faq",
    "determinism": "determinism",
}


def headings() -> Iterator[tuple[str, str]]:
    """(page, heading) of every page that a reader can come to from the search."""
    for page in sorted(DOCS.rglob("*.md")):
        for heading in HEADING.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
            yield page.stem, heading


def found(site: Path) -> Iterator[tuple[str, str]]:
    """(what was searched, the page that comes first) of every entry of the list."""
    from lunr import lunr

    entries = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    fields = [{"field_name": "title", "boost": 1000}, {"field_name": "text", "boost": 1}]
    index = lunr(ref="location", fields=fields, documents=entries)
    for words in WANTED:
        hits = index.search(words.replace("-", " "))
        yield words, Path(hits[0]["ref"].partition("#")[0]).stem if hits else "nothing"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.search", description=__doc__)
    parser.add_argument("site", type=Path, help="the folder that `make docs` makes")
    wrong = 0
    for words, page in found(parser.parse_args().site):
        if page != WANTED[words]:
            wrong += 1
            print(f"{words!r} finds {page} first, not {WANTED[words]}.", file=sys.stderr)
    print(f"{len(WANTED) - wrong} of {len(WANTED)} searches find the right page first.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
