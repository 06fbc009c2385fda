"""The worst error of every kernel over the whole range of float32, beside torch's: the table of docs/ranges.md.

python -m benchmarks.ranges_table
"""

from __future__ import annotations

import re
from math import isnan
from pathlib import Path

import numpy as np
from tests.check.torch_ops import FORWARDS, beside_torch

from tapeless.ops import OPS

PAGE = Path(__file__).parents[1] / "docs" / "ranges.md"
START, END = "<!-- ranges -->\n", "<!-- end of ranges -->"


def main() -> None:
    rows = ["| kernel | result | values | worst error | allowed | torch's worst |", "|---|---|--:|--:|--:|--:|"]
    np.seterr(all="ignore")
    for name in OPS:
        for direction in ("forward", "backward") if OPS[name].SPEC.backward else ("forward",):
            for result, (error, theirs, _) in beside_torch(name, direction, seed=0).items():
                peer = "" if name not in FORWARDS or isnan(theirs) else f"{theirs:.3g}"
                rows.append(
                    f"| {name}.{direction} | {result} | {error.values:,} | {error.error:.3g} | {error.allowed:.3g} | "
                    f"{peer} |"
                )
                print(rows[-1])
    table = START + "\n".join(rows) + "\n" + END
    PAGE.write_text(re.sub(f"{START}.*?{END}", lambda found: table, PAGE.read_text(), flags=re.DOTALL))


if __name__ == "__main__":
    main()
