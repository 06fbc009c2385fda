"""Affine: y = x @ weight + bias. Every projection of every model goes through here."""

from __future__ import annotations

from dataclasses import dataclass

from tapeless.models.initialise import ZERO
from tapeless.program.builder import Builder
from tapeless.program.call import Buffer, Initial, Output, View, add, write


@dataclass(frozen=True)
class Affine:
    weight: Buffer | View
    bias: Buffer | View | None
    dweight: Buffer | View | None
    dbias: Buffer | View | None

    def columns(self, start: int, stop: int) -> Affine:
        """Part of it: some of its outputs."""
        weights = (self.weight, self.bias, self.dweight, self.dbias)
        return Affine(*(each.columns(start, stop) if isinstance(each, Buffer) else each for each in weights))


def declare_affine(
    p: Builder, name: str, inputs: int, outputs: int, initial: Initial, *, has_bias: bool = True
) -> Affine:
    weight = p.weight(f"{name}.weight", inputs, outputs, initial=initial, decay=True)
    bias = p.weight(f"{name}.bias", outputs, initial=ZERO) if has_bias else None
    return Affine(weight, bias, p.gradient(weight), p.gradient(bias) if bias else None)


def affine_forward(p: Builder, a: Affine, y: Buffer | View, x: Buffer) -> None:
    p.linear.forward(y=write(y), x=x, weight=a.weight, bias=a.bias)


def affine_backward(p: Builder, a: Affine, dx: Output | None, dy: Buffer, x: Buffer) -> None:
    p.linear.backward(dx=dx, dweight=add(a.dweight), dbias=add(a.dbias), dy=dy, x=x, weight=a.weight)
