"""Affine: y = x @ weight + bias. Every projection of every model goes through here."""

from __future__ import annotations

from dataclasses import dataclass

from tapeless.models.initialise import ZERO
from tapeless.program.builder import Builder
from tapeless.program.call import Buffer, Initial, Output, View, add, write


@dataclass(frozen=True)
class Affine:
    weight: View
    bias: View | None
    dweight: View | None
    dbias: View | None

    def columns(self, start: int, stop: int) -> Affine:
        """Part of it: some of its outputs."""

        def part(of: View | None) -> View | None:
            return of.buffer.columns(start, stop) if of else None

        return Affine(self.weight.buffer.columns(start, stop), part(self.bias), part(self.dweight), part(self.dbias))


def parts(buffer: Buffer, number: int) -> tuple[View, ...]:
    """Equal parts of the columns, side by side: views of one product, not copies."""
    width = buffer.shape[-1] // number
    return tuple(buffer.columns(n * width, (n + 1) * width) for n in range(number))


def declare_affine(
    p: Builder, name: str, inputs: int, outputs: int, initial: Initial, *, has_bias: bool = True,
    matrices: tuple[int, ...] | None = None,
) -> Affine:  # fmt: skip
    """`matrices`: the widths of those that are packed side by side in it; by default it is one. That between what is
    read and the first layer is none of them, as an embedding is not."""
    packed = (outputs,) if matrices is None else matrices
    weight = p.weight(f"{name}.weight", inputs, outputs, initial=initial, decay=True, matrices=packed)
    bias = p.weight(f"{name}.bias", outputs, initial=ZERO) if has_bias else None
    dweight, dbias = p.gradient(weight), p.gradient(bias) if bias else None
    return Affine(
        weight.all, bias.all if bias else None, dweight.all if dweight else None, dbias.all if dbias else None
    )


def affine_forward(p: Builder, a: Affine, y: Buffer | View, x: Buffer) -> None:
    p.linear.forward(y=write(y), x=x, weight=a.weight, bias=a.bias)


def affine_backward(p: Builder, a: Affine, dx: Output | None, dy: Buffer, x: Buffer) -> None:
    """x is needed for dweight alone: where the weight is frozen, it need not be there any more."""
    dx = dx if p.active(x) else None
    if dx or a.dweight or a.dbias:
        p.linear.backward(
            dx=dx, dweight=add(a.dweight), dbias=add(a.dbias),
            dy=dy, x=x if a.dweight else None, weight=a.weight,
        )  # fmt: skip
