"""What right gradients do not show: that each call is given what it takes an argument for, and that the update treats
each weight as what it was declared to be.

A Spec says what its arguments mean, a buffer what it holds, a scalar what number it is, and a weight which matrices lie
side by side in it. Here they are held to one another, and to the columns that the list really reads.
"""

from __future__ import annotations

from itertools import accumulate

from tapeless.errors import ProgramError
from tapeless.ops.contract import Scalar
from tapeless.program.call import Argument, Call, Program, View, Weight, member_offsets


def check_call_meanings(call: Call) -> None:
    """Of one call alone: what says what it is stands where that is asked for, and nowhere else."""
    meanings = call.spec.meanings
    for argument in call.arguments:
        found, wanted = argument.view.buffer.meaning, meanings.get(argument.name, "")
        if found and found != wanted:
            raise ProgramError(
                f"wrong meaning: {argument.view.name} is declared as {found}, but {argument.name} of {call.at} "
                f"{f'is {wanted}' if wanted else 'is none'}."
            )
    for name, value in call.scalars:
        wanted = meanings.get(name, "")
        if isinstance(value, Scalar) and value.meaning != wanted:
            raise ProgramError(
                f"wrong meaning: {name} of {call.at} ({call.arguments[0].view.name}) is given {value.meaning} "
                f"({value!r})."
            )


def check_one_meaning(program: Program) -> None:
    """What is declared without a meaning has that of its first use."""
    first: dict[str, tuple[str, Argument, Call]] = {}
    for call in program.calls:
        for argument in call.arguments:
            meaning = call.spec.meanings.get(argument.name)
            buffer = argument.view.buffer
            if meaning and not buffer.members:
                before, one, other = first.setdefault(buffer.name, (meaning, argument, call))
                if before != meaning:
                    raise ProgramError(
                        f"wrong meaning: {buffer.name} is {meaning}, as {argument.name} of {call.at}, and {before}, as "
                        f"{one.name} of {other.at}: it can be one of them."
                    )


def check_updated(program: Program, update: Call, norm: Call) -> None:
    """The update decays those weights that decay, whole, steps as matrices those that are declared, and tells of each
    section what belongs to it, as the norm does."""
    scalars, members = dict(update.scalars), update["weights"].buffer.members
    decays = scalars["decayed"] if scalars.get("decay") else ()
    matrices = {start: (rows, widths) for start, rows, widths in scalars.get("matrices", ())}
    sections: dict[str, int] = {}
    for weight, start in zip(members, member_offsets(members)[0], strict=True):
        if not isinstance(weight, Weight):
            continue
        stop = start + weight.elements
        sections.setdefault(weight.section, start)
        met = [first <= start and stop <= last for first, last in decays if first < stop and start < last]
        if scalars.get("decay") and met != [True] * weight.decay:
            does = "does not decay" if not met else "decays" if met == [True] else "decays in part"
            raise ProgramError(
                f"wrong decay: {weight.name} {does} in {update.at}, and is declared as {weight.meaning or 'nothing'}, "
                f"which {'decays' if weight.decay else 'does not'}."
            )
        found = matrices.pop(start, None)
        due = (weight.shape[0], weight.matrices) if weight.matrices and "matrices" in scalars else None
        if found != due:
            raise ProgramError(
                f"wrong matrices: {weight.name} is stepped as {_told(found)} by {update.at}, and is declared as "
                f"{_told(due)}."
            )
    for start, stray in matrices.items():
        raise ProgramError(f"wrong matrices: {update.at} steps {_told(stray)} at {start}, where no weight begins.")
    for call in (norm, update):
        if dict(call.scalars)["sections"] != tuple(sections.values()):
            raise ProgramError(
                f"wrong sections: {call.at} ({call.writes[0].view.name}) has them begin at "
                f"{dict(call.scalars)['sections']}, and its weights at {tuple(sections.values())}."
            )
    _check_cuts(program)


def _told(matrices: tuple[int, tuple[int, ...]] | None) -> str:
    rows, widths = matrices or (0, ())
    if not widths:
        return "no matrix"
    return f"matrices of {rows} rows and {', '.join(map(str, widths))} columns"


def _check_cuts(program: Program) -> None:
    """Matrices that lie side by side in a weight are those whose results are read apart: what a product is cut into by
    the calls that read it are the matrices of its weight. One that what comes in is multiplied with is none."""
    reads: dict[str, list[tuple[View, Call]]] = {}
    for call in program.phase("forward"):
        for argument in call.arguments:
            if argument.mode != "write":
                reads.setdefault(argument.view.buffer.name, []).append((argument.view, call))
    found: dict[Weight, tuple[Call, dict[int, Call]]] = {}
    for call in program.phase("forward"):
        for argument in call.reads:
            weight, y = argument.view.buffer, call.writes[0].view
            if isinstance(weight, Weight) and (weight.meaning, weight.kind) == ("matrix", "weight"):
                _, edges = found.setdefault(weight, (call, {}))
                comes_in = any(each.view.buffer.kind == "input" for each in call.reads)
                for view, reader in () if comes_in else (*reads.get(y.buffer.name, ()), (y, call)):
                    for edge in (view.start, view.stop):
                        if y.start <= edge <= y.stop:
                            edges.setdefault(argument.view.start + edge - y.start, reader)
    for weight, (call, edges) in found.items():
        declared = set(accumulate(weight.matrices, initial=0)) if weight.matrices else set()
        if not weight.adapter and declared != edges.keys():
            odd = min(declared ^ edges.keys())
            reader = edges.get(odd) or next(iter(edges.values()), call)
            seen = f"reads what it makes {'apart' if odd in edges else 'together'} at column {odd}"
            raise ProgramError(
                f"wrong matrices: {weight.name} is declared as {_told((weight.shape[0], weight.matrices))}, and "
                f"{reader.at} {seen if edges else 'multiplies what comes in with it: it is none of a layer'}."
            )
