"""Kernels as people write them: right forms are judged right, and each class of mistake is named."""

from __future__ import annotations

import re

import pytest
import torch

from tapeless.check import op
from tests.own_kernels import RIGHT, WRONG
from tests.random_cases import SOAK

SMALL: dict[str, int] = {} if SOAK > 1 else {"largest": 65, "pairs": 2}
# Of the right forms: what PyTorch takes no better, or refuses itself.
KNOWN = {"numbers of 1e19", "does not take an axis of size 0", "does not take autocast"}
SEEDS = range(3 if SOAK > 1 else 1)


def judged(name, kernel, seed=0, **options):
    right = RIGHT[name]
    return op(right.definition, right.inputs, kernel=kernel, seed=seed, **right.options | options)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_kernel_is_right(name, seed):
    report = judged(name, RIGHT[name].kernel, seed, **SMALL)
    assert report, report
    assert not report.left
    assert not set(report.limits) - {"numbers of 1e19", "does not take an axis of size 0", "does not take autocast"}, (
        report
    )
    assert sum(report.covered.values()) > 50


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_named(name, seed):
    wrong = WRONG[name]
    report = judged(wrong.of, wrong.kernel, seed, first=True)
    assert report.verdict == "wrong", report
    assert re.match(wrong.kind, report.wrong[0].kind), report


def test_there_are_sixty_classes_of_mistake():
    assert len(WRONG) >= 60


@pytest.mark.parametrize(
    "name",
    [
        *("overwrites_dy", "dy_through_its_pointer", "AsksForTheWrongInput", "through_half_precision"),
        *("sigmoid_that_overflows", "KeepsTheTensor", "one_block_of_64"),
    ],
)
def test_what_gradcheck_does_not_see(name):
    wrong = WRONG[name]
    given = [each.double().requires_grad_() for each in RIGHT[wrong.of].inputs]
    assert torch.autograd.gradcheck(wrong.kernel.apply, given, raise_exception=False)
