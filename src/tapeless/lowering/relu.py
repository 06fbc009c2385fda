"""ReLU in the GEMMs around it, on the CPU: what is computed is what the calls compute one after the other, to the last
bit, and three passes over the widest matrices of a block are saved.

- relu, linear: the GEMM packs what ReLU leaves of its x.
- relu once more, linear backward, relu backward: so does the GEMM that makes the weight's gradient, and the one that
  makes dx writes 0 where the ReLU was shut. Either ReLU may be missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from tapeless.lowering.rules import Fusion
from tapeless.program.call import Call, View
from tapeless.program.lowered import is_read


def _match(calls: Sequence[Call], number: int) -> int | None:
    at = number + (calls[number].title == "relu.forward")
    if at == len(calls) or calls[at].op != "linear" or calls[at].dims["R"] == 1:  # one row is no GEMM
        return None
    linear, last = calls[at], at
    if at > number and (calls[number]["y"] != _view(linear, "x") or not _is_between(calls, at + 1, calls[number]["y"])):
        return None
    behind = calls[at + 1] if at + 1 < len(calls) else None
    if linear.direction == "backward" and behind is not None and behind.title == "relu.backward":
        written = [each for each in linear.writes if each.name == "dx" and each.mode == "write"]
        if written and written[0].view == behind["dy"] and _is_between(calls, at + 2, behind["dy"]):
            last = at + 1
    return last + 1 if last > number else None


def _is_between(calls: Sequence[Call], since: int, view: View) -> bool:
    """Whether nobody needs it from this call on."""
    return view.buffer.kind == "workspace" and view.whole and not is_read(calls, since, view.buffer)


def _view(call: Call, name: str) -> View | None:
    return next((argument.view for argument in call.arguments if argument.name == name), None)


RELU_IN_LINEAR = Fusion("relu in linear", _match)
