"""The founding document's exercises with optimizers, worked out and then walked by the kernels of both backends."""

from __future__ import annotations

import runpy
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tapeless.ops import OPS

ROOT = Path(__file__).parents[2]
GRADIENTS = (-0.1, -0.08, -0.12, -0.09, -0.11)
DTYPES = {"reference": np.float64, "cpu": np.float32}
# What a few roundings leave: of float64's sixteen digits, and of float32's seven.
TOLERANCE = {"reference": 1e-14, "cpu": 3e-7}

# Worked out with 40 decimal digits. Momentum's m: −0.1, −0.17, −0.273, −0.3357, −0.41213.
EXPECTED = {
    "sgd": (0.501, 0.5018, 0.503, 0.5039, 0.505),
    "momentum": (0.501, 0.5027, 0.50543, 0.508787, 0.5129083),
    "adamw": (
        0.509999999000000100,
        0.519881255949968641,
        0.529822655632148029,
        0.539721121760494538,
        0.549685368077207409,
    ),
}


class Weight:
    """One weight, moved by the update kernel of an op."""

    def __init__(self, op: str, backend: str, start: float, lr: float) -> None:
        self.op, self.backend, self.lr = op, backend, np.array([lr])
        self.value, self.m, self.v = (np.array([each], DTYPES[backend]) for each in (start, 0.0, 0.0))
        self.told = (np.array([0]), np.zeros(1), np.zeros(1))  # the number of the step, and how far it went

    def step(self, gradient: float) -> float:
        read = (np.array([gradient], self.value.dtype), np.ones(1), np.array([1]), self.lr)
        arguments = {
            "sgd": (self.value, None, *self.told, *read, (0,)),
            "momentum": (self.value, self.m, None, *self.told, *read, 0.9, (0,)),
            "adamw": (self.value, self.m, self.v, None, *self.told, *read, 0.9, 0.999, 1e-8, 0.0, (), (0,)),
        }[self.op]
        if self.backend == "reference":
            OPS[self.op].forward(*arguments)
        else:
            for run in import_module(f"tapeless.ops.{self.op}.cpu").forward(*arguments, scratch=[np.empty((2, 1))]):
                run()
        return float(self.value[0])


@pytest.mark.parametrize("backend", DTYPES)
@pytest.mark.parametrize("op", EXPECTED)
def test_five_gradients(op, backend):
    weight = Weight(op, backend, 0.5, 0.01)
    found = [weight.step(gradient) for gradient in GRADIENTS]
    assert found == pytest.approx(EXPECTED[op], rel=TOLERANCE[backend], abs=0)


@pytest.mark.parametrize("backend", DTYPES)
@pytest.mark.parametrize(
    ("lr", "after_ten", "trend"),
    [
        (0.1, 1.9539646797, "nearer"),
        (0.5, 2.9970703125, "nearer"),
        (1.0, 3.0, "there"),
        (1.5, 2.9970703125, "nearer"),  # from side to side
        (2.0, 0.0, "as far"),  # the border
        (2.1, -4.7812273803, "farther"),
    ],
)
def test_the_quadratic(lr, after_ten, trend, backend):
    """loss = 0.5·(w − 3)² from w = 0: the distance to 3 is multiplied by 1 − lr at every step."""
    weight = Weight("sgd", backend, 0.0, lr)
    course = [0.0]
    for number in range(1, 11):
        course.append(weight.step(course[-1] - 3))
        theory = 3 - 3 * (1 - lr) ** number
        assert course[-1] == pytest.approx(theory, rel=10 * TOLERANCE[backend], abs=10 * TOLERANCE[backend])
    assert course[-1] == pytest.approx(after_ten, rel=10 * TOLERANCE[backend], abs=10 * TOLERANCE[backend])
    distances = [abs(each - 3) for each in course]
    assert all(
        {"nearer": after < before, "there": after == 0, "as far": after == before, "farther": after > before}[trend]
        for before, after in pairwise(distances)
    )
    sides = {each > 3 for each in course[1:]}
    assert sides == ({False, True} if lr > 1 else {False})


def test_momentum_s_sum_and_adam_s_means():
    """The columns of the table in docs/optimizers.md."""
    momentum, adam = Weight("momentum", "reference", 0.5, 0.01), Weight("adamw", "reference", 0.5, 0.01)
    sums, means, sizes = [], [], []
    for number, gradient in enumerate(GRADIENTS, 1):
        momentum.step(gradient)
        adam.step(gradient)
        sums.append(momentum.m[0])
        means.append(adam.m[0] / (1 - 0.9**number))
        sizes.append(np.sqrt(adam.v[0] / (1 - 0.999**number)))
    assert sums == pytest.approx([-0.1, -0.17, -0.273, -0.3357, -0.41213], rel=1e-14)
    assert means == pytest.approx([-0.1, -0.0894737, -0.1007380, -0.0976156, -0.1006398], abs=5e-8)
    assert sizes == pytest.approx([0.1, 0.0905489, 0.1013318, 0.0986169, 0.1010009], abs=5e-8)


PICTURES = runpy.run_path(str(ROOT / "benchmarks" / "optimizer_pictures.py"))["PICTURES"]


@pytest.mark.parametrize("name", PICTURES)
def test_the_pictures_in_the_docs_are_what_is_drawn(name):
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == PICTURES[name]()
    assert f"]({name})" in (ROOT / "docs" / "optimizers.md").read_text(encoding="utf-8")


def test_the_docs_hold_the_numbers_that_were_worked_out():
    text = (ROOT / "docs" / "optimizers.md").read_text(encoding="utf-8")
    for number, (sgd, momentum, adam) in enumerate(zip(*EXPECTED.values(), strict=True), 1):
        row = next(line for line in text.splitlines() if line.startswith(f"| {number} |"))
        assert f"| {sgd:.4f} |" in row
        assert f"| {momentum:g} |" in row or f"| {momentum:.7f} |" in row
        assert f"| {adam:.11f} |" in row
