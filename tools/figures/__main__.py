"""python -m tools.figures: makes every figure of the documents again and writes it where it stands."""

from __future__ import annotations

import argparse
import sys

from tools.figures.made import FIGURES
from tools.figures.places import ROOT, write


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.figures", description=__doc__)
    parser.add_argument("--light", action="store_true", help="only those that nothing is run or measured for: seconds")
    parser.add_argument("--only", default="", metavar="NAME", help="only this one")
    options = parser.parse_args()
    if options.only and options.only not in FIGURES:
        print(f"there is no figure {options.only!r}: choose one of {', '.join(FIGURES)}.", file=sys.stderr)
        return 2
    made = {}
    for name, figure in FIGURES.items():
        if options.only in ("", name) and not (options.light and figure.run):
            print(name, file=sys.stderr)
            made[name] = figure.make()
    for page in write(made):
        print(f"{page.relative_to(ROOT)} is changed.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
