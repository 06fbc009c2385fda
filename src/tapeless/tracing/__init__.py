"""One weight, followed through one update: its gradient as a sum over tokens (`contributions`), the optimizer's
arithmetic (`Update`), the same gradient by complex step and the words that the change pushes (`Probe`). And of every
head what it looks at, with the gradient of each look (`attention_pulls`); of the
residual stream what joins it (`branches`)."""

from tapeless.attention import Looked, attention_pulls
from tapeless.tracing.probe import Digits, Probe, Push
from tapeless.tracing.shares import Contributions, Part, contributions
from tapeless.tracing.stream import Branch, branches
from tapeless.tracing.update import Arithmetic, Line, Update

__all__ = [
    "Arithmetic",
    "Branch",
    "Contributions",
    "Digits",
    "Line",
    "Looked",
    "Part",
    "Probe",
    "Push",
    "Update",
    "attention_pulls",
    "branches",
    "contributions",
]
