"""One weight, followed through one update: its gradient as a sum over tokens (`contributions`), the optimizer's
arithmetic (`Update`), the same gradient by complex step and the tokens that the change pushes (`Probe`); and what every
head attends to, with the gradient of each attention score (`attention_pulls`)."""

from tapeless.attention import Looked, attention_pulls
from tapeless.tracing.probe import Digits, Probe, Push
from tapeless.tracing.shares import Contributions, Part, contributions
from tapeless.tracing.update import Arithmetic, Line, Update

__all__ = [
    "Arithmetic",
    "Contributions",
    "Digits",
    "Line",
    "Looked",
    "Part",
    "Probe",
    "Push",
    "Update",
    "attention_pulls",
    "contributions",
]
