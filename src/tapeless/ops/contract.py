"""What an op is.

An op is a folder under `ops/` whose `reference.py` holds the derivation, a `SPEC`, `forward`, `backward`
(where there is one), `flops` and `example`. Nothing registers itself: `ops/__init__.py` lists the modules.

A kernel is a plain function. Its arguments come in the order outputs (what is saved for the backward among them),
what is read, scalars, which is the order of `Signature.arguments`; a gradient is `d` + the name. It writes into what
it is given and returns nothing. `add` holds the names of the outputs that the call adds to instead of overwriting.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Shape = tuple[int, ...]
Dims = dict[str, int]
Scalars = Mapping[str, Any]
NONE: frozenset[str] = frozenset()

# What a buffer's numbers are to the model. A Precision says which type each role has, but for the last two.
FIXED = {"index": "int64", "scalar": "float64"}
ROLES = ("activation", "stream", "weight", "frozen", "gradient", "statistic", "state", "master", *FIXED)

LEGEND = {
    "B": "batch",
    "T": "time (queries)",
    "S": "time of the keys",
    "R": "rows, B·T",
    "C": "channels",
    "H": "heads",
    "D": "head width, C/H",
    "A": "pairs of a head's channels that are turned, D/2",
    "E": "channels of keys and values, G·D",
    "G": "heads of keys and values, which queries share",
    "F": "hidden",
    "V": "vocabulary",
    "P": "positions held",
    "K": "rows in a chunk",
    "M": "rank of an adapter",
    "N": "elements of a region",
    "U": "those of them that AdamW steps, where Muon steps matrices",
    "L": "sections of a model: embedding, blocks, head",
}


class Scalar(float):
    """A number that says what it is, so that none is taken for another."""

    meaning: str

    def __new__(cls, value: float, meaning: str = "") -> "Scalar":
        made = super().__new__(cls, value)
        made.meaning = meaning
        return made


@dataclass(frozen=True)
class Signature:
    """One direction of an op: what it writes (each with its formula), what it reads, its scalars."""

    writes: Mapping[str, str]
    reads: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()
    adds: tuple[str, ...] = ()  # the outputs a call may add to instead of overwriting
    updates: tuple[str, ...] = ()  # the outputs that are changed in place: they are read, then written
    optional: tuple[str, ...] = ()  # what a call may leave out: a bias, a gradient nobody needs
    # Of what may be left out: which outputs are computed from it, so that it may not where one of them is asked for.
    needed_by: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def arguments(self) -> tuple[str, ...]:
        return (*self.writes, *self.reads)


@dataclass(frozen=True)
class Spec:
    """Everything about an op that is not its arithmetic."""

    name: str
    shapes: Mapping[str, str]  # name -> letters of the LEGEND; R stands for any number of leading axes
    forward: Signature
    backward: Signature | None = None
    # Arguments that must be "statistic", "index" or "scalar"; any other takes whatever has its type from the precision.
    roles: Mapping[str, str] = field(default_factory=dict)
    # What arguments and scalars mean, where another of the same shape and type would be wrong: "token ids", "bias". A
    # buffer that says another meaning, or is used with another, is refused.
    meanings: Mapping[str, str] = field(default_factory=dict)
    # Inputs whose gradient is, as it is, that of an output: one buffer serves both, and no call is needed.
    passes: Mapping[str, str] = field(default_factory=dict)
    # Outputs that are, as they are stored, the rounding of another: working weights of their master copy.
    rounded: Mapping[str, str] = field(default_factory=dict)
    # Weights that are read one by one rather than multiplied: where they have a master copy, that is read.
    full: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()  # inputs that are numbers like any other, and take no gradient
    # The backward computes all it needs from the inputs, so a training program has no forward call for it.
    fused: bool = False
    # What it reads as `seed` and `draws`, with its scalar `site`, are the counter of its random numbers.
    random: bool = False
    refuse: Callable[[Dims, Scalars], str | None] = lambda dims, scalars: None

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def differentiable(self) -> frozenset[str]:
        """The inputs that a loss may depend on through this op."""
        if self.backward is None:
            return frozenset(name for name in self.forward.reads if self.is_number(name)) - {*self.constants}
        return frozenset(name[1:] for name in self.backward.writes if name[1:] in self.forward.reads)

    def passes_back(self, output: str) -> bool:
        """Whether this output has a gradient that comes back through the op."""
        return output in self.passes.values() or (self.backward is not None and f"d{output}" in self.backward.reads)

    def signature(self, direction: str) -> Signature:
        signature = self.forward if direction == "forward" else self.backward
        if signature is None:
            raise LookupError(f"{self.name} has no backward")
        return signature

    def letters(self, argument: str) -> list[str]:
        """The shape letters of an argument; a gradient has those of what it is the gradient of."""
        return self.shapes.get(argument, self.shapes.get(argument[1:], "")).split()

    def accepts(self, argument: str, role: str) -> bool:
        """Whether a buffer of this role may be this argument."""
        wanted = self.roles.get(argument)
        return role == wanted if wanted else role not in FIXED

    def is_number(self, argument: str) -> bool:
        """Whether its type is the precision's to say: it is neither an index nor a scalar."""
        return self.roles.get(argument) not in FIXED

    def dtype(self, argument: str, number: str) -> str:
        """The type of an argument where every number is of the type `number`."""
        return FIXED.get(self.roles.get(argument, ""), number)

    def kernel_shape(self, argument: str, shape: Shape) -> Shape:
        """The shape in which a kernel sees a buffer: leading axes folded where the Spec says R."""
        letters = self.letters(argument)
        if letters[:1] != ["R"]:
            return shape
        kept = len(letters) - 1
        split = len(shape) - kept
        return (prod(shape[:split]), *shape[split:])

    def dims(self, shapes: Mapping[str, Shape]) -> Dims:
        """The value of every letter; ValueError with (argument, expected, found) where they disagree."""
        dims: Dims = {}
        for argument, shape in shapes.items():
            letters = self.letters(argument)
            seen = self.kernel_shape(argument, shape)
            wanted = [str(dims.get(letter, letter)) for letter in letters]
            agree = len(letters) == len(seen) and all(
                int(letter) == size if letter.isdigit() else dims.setdefault(letter, size) == size
                for letter, size in zip(letters, seen, strict=True)
            )
            if not agree:
                raise ValueError(argument, " ".join(letters), "×".join(wanted), "×".join(map(str, shape)))
        return dims


def store(out: Array, value: Array | complex, add: bool) -> None:
    """`=` or `+=`, as the call says."""
    if add:
        out += value
    else:
        out[...] = value


def product_flops(dims: Dims, letters: str, times: int = 1) -> int:
    """The FLOPs of `times` matrix products over these letters: one multiply and one add each."""
    return 2 * times * prod(dims[letter] for letter in letters)


def given(writes: Collection[str], *names: str) -> int:
    """How many of these gradients a call really asks for."""
    return sum(name in writes for name in names)


def away_from_zero(rng: np.random.Generator, *shape: int) -> Array:
    """Random values no closer to zero than 0.1: nothing an example computes may vanish by accident."""
    return rng.choice([-1.0, 1.0], shape) * rng.uniform(0.1, 1.5, shape)
