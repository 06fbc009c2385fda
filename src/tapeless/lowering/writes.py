"""The first write of a gradient: what adds first to a gradient that was zeroed writes it, and zeroing goes.

0 + x is x, so nothing changes but that a gradient is neither written as zeros nor read back as zeros. What lies between
gradients that do not fill their places is 0 from the beginning, and nobody writes it (`arena.gaps`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tapeless.program.call import Buffer, Call, Program, View
from tapeless.program.lowered import covers


def first_writes(program: Program, calls: Mapping[int, Call]) -> dict[int, Call]:
    """These calls of a program without zeroing, where each column of each gradient that they zero is added to by one of
    them; else as they are."""
    zeroing = [number for number, call in calls.items() if call.phase == "zero"]
    region = next((each for each in program.buffers if each.kind == "gradient" and each.members), None)
    if not zeroing or region is None:
        return dict(calls)
    written: dict[Buffer, list[View]] = {member: [] for member in region.members}
    found = {number: call for number, call in calls.items() if number not in zeroing}
    for number, call in found.items():
        arguments = []
        for argument in call.arguments:
            before = written.get(argument.view.buffer)
            if before is None:
                if argument.view.buffer == region and not all(map(_filled, written, written.values())):
                    return dict(calls)
                arguments.append(argument)
                continue
            if argument.mode == "add" and not argument.view.meets(before):
                argument = replace(argument, mode="write")
            if argument.mode != "write" and not covers(before, argument.view):
                return dict(calls)
            before.append(argument.view)
            arguments.append(argument)
        if tuple(arguments) != call.arguments:
            found[number] = replace(call, arguments=tuple(arguments))
    return found if all(map(_filled, written, written.values())) else dict(calls)


def _filled(buffer: Buffer, views: list[View]) -> bool:
    return covers(views, buffer.all)
