"""python -m tests.bugs (`make bugs`): plant every bug of the catalogue, see each caught, and write docs/bugs.md.

It ends with 1, and leaves the page as it is, if one gets past the checkers. About five minutes of one core.
"""

from __future__ import annotations

from tapeless.cli.bugs import run_bugs
from tapeless.cli.progress import one_by_one
from tests.bugs import page
from tests.bugs.catalogue import BUGS
from tests.bugs.rules import judge_all
from tests.check.everything import check_everything


def main() -> None:
    verdicts = run_bugs(json=False, bugs=BUGS, check=check_everything)
    page.write(verdicts, list(judge_all(one_by_one(BUGS, lambda bug: f"other rules: {bug.name}", quiet=False))))
    print(f"written to {page.PAGE}")


if __name__ == "__main__":
    main()
