"""Products with a table of V words, where V has no factor that cuBLAS likes.

With V = 50257 a product takes five to seven times as long as with 50304, because its rows and tiles begin at odd
addresses. So the scores lie in rows of V rounded up, the table is multiplied up to the last multiple of GRAIN, and
the few words beyond, followed by rows of zeros, in a product of their own. Nothing is read or written beyond a tensor,
and the columns beyond V of a row of scores are scores of the zero word: 0.
"""

from __future__ import annotations

from functools import partial

from tapeless.kernels.cuda.launch import blocks
from tapeless.kernels.cuda.products import product
from tapeless.kernels.cuda.scratch import scratch
from tapeless.kernels.native import Native

GRAIN = 64
FROM = 1024  # words: below, a product takes no time to speak of, and padding would waste more than it saves


def row_width(words: int) -> int:
    """Of a row of scores."""
    return blocks(words, GRAIN) * GRAIN if words % 8 and words >= FROM else words


class VocabularyTable:
    """The words of `weight` (V C), in two parts or, where `whole`, in one. `runs` is what must run before a product."""

    def __init__(self, weight, whole: bool = False):
        words, channels = weight.shape
        odd = row_width(words) != words and not whole
        self.whole = words // GRAIN * GRAIN if odd else words
        self.width = words if whole else row_width(words)
        self.parts = [(slice(0, self.whole), weight[: self.whole])]
        self.runs: list[Native] = []
        self.rest = words - self.whole
        if odd:
            last = scratch(weight, GRAIN, channels, dtype=weight.dtype)
            self.runs += [partial(last[: self.rest].copy_, weight[self.whole :]), last[self.rest :].zero_]
            self.parts.append((slice(self.whole, self.width), last))

    def scores(self, z, x) -> list[Native]:
        """z = x @ weightᵀ, and 0 in the columns beyond V."""
        return [run for columns, words in self.parts for run in product(z[:, columns], x, words.T)]

    def back(self, dx, dz) -> list[Native]:
        """dx = dz @ weight."""
        runs: list[Native] = []
        for columns, words in self.parts:
            runs += product(dx, dz[:, columns], words, add=bool(runs))
        return runs

    def gradient(self, dweight, dz, x, add: bool) -> list[Native]:
        """dweight (+)= dzᵀ @ x."""
        runs = product(dweight[: self.whole], dz[:, : self.whole].T, x, add)
        if self.rest:
            last = scratch(dweight, GRAIN, dweight.shape[1], dtype=dweight.dtype)
            runs += product(last, dz[:, self.whole :].T, x)
            mine, found = dweight[self.whole :], last[: self.rest]
            runs.append(partial(mine.add_ if add else mine.copy_, found))
        return runs
