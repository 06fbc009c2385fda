"""Affine: y = x @ weight + bias. Every projection of every model goes through here.

An adapted one (LoRA) adds scale · (x @ lora_a) @ lora_b. Where several projections are packed in one weight, lora_a has
theirs side by side, so that x is multiplied once, and lora_b has in each one's columns what makes those of y.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import sqrt
from typing import Any, NamedTuple

from tapeless.models.adapters import LORA_A, LORA_B, Adapters
from tapeless.models.initialise import ZERO, Uniform
from tapeless.models.parts import Scope
from tapeless.ops.contract import Scalar
from tapeless.program.builder import Builder
from tapeless.program.call import Buffer, Initial, Output, View, add, as_view, write


class Adapted(NamedTuple):
    """Columns of y, the columns of lora_b that make them, and those of x @ lora_a they are made of."""

    y: tuple[int, int]
    b: tuple[int, int]
    low: tuple[int, int]


@dataclass(frozen=True)
class Adapter:
    name: str  # of the product x @ lora_a
    scale: float
    a: View
    da: View | None
    b: Buffer
    db: Buffer | None
    parts: tuple[Adapted, ...]

    def columns(self, start: int, stop: int, name: str) -> Adapter | None:
        """What adapts these columns of y alone."""
        mine = [each for each in self.parts if each.y[0] < stop and start < each.y[1]]
        if not mine:
            return None
        first, last = mine[0].low[0], mine[-1].low[1]
        cut = []
        for y, b, low in mine:
            begin, end = max(y[0], start), min(y[1], stop)
            columns = (b[0] + begin - y[0], b[0] + end - y[0])
            cut.append(Adapted((begin - start, end - start), columns, (low[0] - first, low[1] - first)))
        a, da = _columns(self.a, first, last), self.da and _columns(self.da, first, last)
        return replace(self, name=name, a=a, da=da, parts=tuple(cut))

    def low(self, p: Builder, x: Buffer) -> Buffer:
        """x @ lora_a."""
        return p.shared_workspace(f"{self.name}.low", *x.shape[:-1], self.a.shape[-1])

    def dlow(self, p: Builder, x: Buffer) -> Buffer:
        return p.shared_workspace(f"{self.name}.dlow", *x.shape[:-1], self.a.shape[-1])


@dataclass(frozen=True)
class Affine:
    weight: View
    bias: View | None
    dweight: View | None
    dbias: View | None
    adapter: Adapter | None = None

    @property
    def needs_input(self) -> bool:
        """Whether its backward reads what it was applied to."""
        return self.dweight is not None or (self.adapter is not None and self.adapter.da is not None)

    def columns(self, start: int, stop: int, name: str) -> Affine:
        """Part of it: some of its outputs, and what they are called."""

        def part(of: View | None) -> View | None:
            return of.buffer.columns(start, stop) if of else None

        return Affine(
            self.weight.buffer.columns(start, stop),
            part(self.bias),
            part(self.dweight),
            part(self.dbias),
            self.adapter.columns(start, stop, name) if self.adapter else None,
        )


def parts(buffer: Buffer, number: int) -> tuple[View, ...]:
    """Equal parts of the columns, side by side: views of one product, not copies."""
    width = buffer.shape[-1] // number
    return tuple(buffer.columns(n * width, (n + 1) * width) for n in range(number))


def _columns(of: Buffer | View, start: int, stop: int) -> View:
    view = as_view(of)
    return view.buffer.columns(view.start + start, view.start + stop)


def declare_affine(
    s: Scope,
    name: str,
    inputs: int,
    outputs: int,
    initial: Initial,
    *,
    has_bias: bool = True,
    matrices: tuple[int, ...] | None = None,
) -> Affine:
    """Declare the weight of a projection, its bias and its adapter.

    `matrices`: the widths of the matrices that are packed side by side in the weight; by default it is one. The
    projection from features to channels is none of them, as an embedding is not.
    """
    packed = (outputs,) if matrices is None else matrices
    weight = s.p.weight(f"{name}.weight", inputs, outputs, initial=initial, meaning="matrix", matrices=packed)
    bias = s.p.weight(f"{name}.bias", outputs, initial=ZERO, meaning="bias") if has_bias else None
    dweight, dbias = s.p.gradient(weight), s.p.gradient(bias) if bias else None
    return Affine(
        weight.all,
        bias.all if bias else None,
        dweight.all if dweight else None,
        dbias.all if dbias else None,
        declare_adapter(s.p, name, inputs, s.adapters) if s.adapters and packed else None,
    )


def declare_adapter(p: Builder, name: str, inputs: int, adapters: Adapters) -> Adapter | None:
    adapted, rank = adapters.of(name), adapters.rank
    if not adapted:
        return None
    widths, ranks = tuple(each.stop - each.start for each in adapted), (rank,) * len(adapted)
    edges = list(pairwise(accumulate(widths, initial=0)))
    parts = tuple(
        Adapted((each.start, each.stop), edge, (n * rank, (n + 1) * rank))
        for n, (each, edge) in enumerate(zip(adapted, edges, strict=True))
    )
    both: dict[str, Any] = {"meaning": "matrix", "adapter": True}
    first = Uniform(1 / sqrt(inputs))
    a = p.weight(f"{name}.{LORA_A}", inputs, sum(ranks), initial=first, matrices=ranks, **both)
    b = p.weight(f"{name}.{LORA_B}", rank, sum(widths), initial=ZERO, matrices=widths, **both)
    da = p.gradient(a)
    scale = Scalar(adapters.scale, "adapter scale")
    return Adapter(name, scale, a.all, da.all if da else None, b, p.gradient(b), parts)


def affine_forward(p: Builder, a: Affine, y: Buffer | View, x: Buffer) -> None:
    p.linear.forward(y=write(y), x=x, weight=a.weight, bias=a.bias)
    if a.adapter:
        adapter_forward(p, a.adapter, y, x)


def affine_backward(p: Builder, a: Affine, dx: Output | None, dy: Buffer, x: Buffer) -> None:
    """x is needed for the gradients of matrices alone: where they are frozen, it need not be there any more."""
    dx = dx if p.active(x) else None
    if a.adapter:
        adapter_backward(p, a.adapter, dx, dy, x)
        dx = add(dx.view) if dx else None
    if dx or a.dweight or a.dbias:
        p.linear.backward(
            dx=dx, dweight=add(a.dweight), dbias=add(a.dbias), dy=dy, x=x if a.dweight else None, weight=a.weight
        )


def adapter_forward(p: Builder, a: Adapter, y: Buffer | View, x: Buffer) -> None:
    low = a.low(p, x)
    p.linear.forward(y=write(low), x=x, weight=a.a)
    for each in a.parts:
        p.adapt.forward(
            y=add(_columns(y, *each.y)), low=low.columns(*each.low), weight=a.b.columns(*each.b), scale=a.scale
        )


def adapter_backward(p: Builder, a: Adapter, dx: Output | None, dy: Buffer, x: Buffer) -> None:
    low, dlow = a.low(p, x), a.dlow(p, x)
    goes_on = p.active(low)
    for each in reversed(a.parts):
        if goes_on or a.db:
            p.adapt.backward(
                dlow=write(dlow.columns(*each.low)) if goes_on else None,
                dweight=add(a.db.columns(*each.b)) if a.db else None,
                dy=_columns(dy, *each.y),
                low=low.columns(*each.low),
                weight=a.b.columns(*each.b),
                scale=a.scale,
            )
    if goes_on:
        p.linear.backward(dx=dx, dweight=add(a.da), dy=dlow, x=x if a.da else None, weight=a.a)
