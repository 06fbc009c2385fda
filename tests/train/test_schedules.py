"""Our schedules beside PyTorch's own classes, over whole courses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as theirs

from tapeless import TapelessError
from tapeless.train.schedules import NAMES, Schedule

COURSES = [
    {"lr": 1e-3, "steps": 1},
    {"lr": 3e-4, "steps": 400, "warmup": 40, "floor": 0.1, "every": 70},
    {"lr": 0.5, "steps": 300, "warmup": 1, "every": 7, "rate": 0.9},
    {"lr": 6e-4, "steps": 2000, "warmup": 700, "floor": 0.37, "every": 333, "rate": 0.5},
    {"lr": 10.0, "steps": 50, "warmup": 49, "every": 1, "rate": 1.0, "floor": 1.0},
]


def torch_course(schedule: Schedule) -> list[float]:
    """The rate that each update finds in PyTorch, and the one after the last."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=schedule.lr)
    rest = schedule.steps - schedule.warmup
    main: dict[str, Any] = {
        "constant": lambda: theirs.ConstantLR(optimizer, factor=1.0),
        "step": lambda: theirs.StepLR(optimizer, schedule.every, schedule.rate),
        "exponential": lambda: theirs.ExponentialLR(optimizer, schedule.rate ** (1 / schedule.every)),
        "cosine": lambda: theirs.CosineAnnealingLR(optimizer, rest, schedule.floor * schedule.lr),
        "linear": lambda: theirs.LinearLR(optimizer, 1.0, schedule.floor, rest),
    }
    if schedule.warmup:
        rise = theirs.LinearLR(optimizer, 1 / (schedule.warmup + 1), total_iters=schedule.warmup)
        scheduler = theirs.SequentialLR(optimizer, [rise, main[schedule.name]()], [schedule.warmup])
    else:
        scheduler = main[schedule.name]()
    rates = []
    for _ in range(schedule.steps + 1):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("course", COURSES)
@pytest.mark.parametrize("name", NAMES)
def test_every_rate_is_torch_s(name, course):
    schedule = Schedule(name, **course)
    expected = torch_course(schedule)
    worst = max(abs(schedule.at(step) - rate) for step, rate in enumerate(expected))
    assert worst <= 1e-12 * schedule.lr


@pytest.mark.parametrize("name", NAMES)
def test_it_stays_where_it_ended(name):
    schedule = Schedule(name, 1e-3, 100, warmup=10, floor=0.2, every=9)
    assert {schedule.at(step) for step in (100, 101, 109, 5000)} == {schedule.at(100)}


def test_the_corners_by_hand():
    schedule = Schedule("cosine", 0.8, 104, warmup=4, floor=0.25)
    assert [schedule.at(step) for step in range(5)] == pytest.approx([0.16, 0.32, 0.48, 0.64, 0.8], rel=1e-15)
    assert schedule.at(54) == pytest.approx(0.5, rel=1e-15)  # halfway between 0.8 and 0.2
    assert schedule.at(104) == pytest.approx(0.2, rel=1e-15)
    falling = replace(schedule, name="linear")
    assert [falling.at(step) for step in (4, 29, 104)] == pytest.approx([0.8, 0.65, 0.2], rel=1e-15)
    stairs = replace(schedule, name="step", every=10)
    assert [stairs.at(step) for step in (13, 14, 24)] == pytest.approx([0.8, 0.08, 0.008], rel=1e-14)
    assert replace(stairs, name="exponential").at(24) == pytest.approx(0.008, rel=1e-14)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": "cosin"}, "unknown schedule 'cosin': did you mean 'cosine'?"),
        ({"name": 7}, "unknown schedule 7: choose one of constant,"),
        ({"lr": 0}, "lr must be a finite number above 0, not 0."),
        ({"lr": float("nan")}, "lr must be a finite number above 0, not nan."),
        ({"lr": float("inf")}, "lr must be a finite number above 0, not inf."),
        ({"lr": "fast"}, "lr must be a number, not 'fast'."),
        ({"lr": True}, "lr must be a number, not True."),
        ({"steps": 0}, "steps must be a whole number of at least 1, not 0."),
        ({"steps": 2.5}, "steps must be a whole number of at least 1, not 2.5."),
        ({"warmup": -1}, "warmup must be a whole number of at least 0, not -1."),
        ({"warmup": 100}, "warmup=100 leaves nothing of steps=100"),
        ({"every": 0}, "every must be a whole number of at least 1, not 0."),
        ({"every": True}, "every must be a whole number of at least 1, not True."),
        ({"floor": 1.5}, "floor must be a share of lr between 0 and 1, not 1.5."),
        ({"floor": -0.1}, "floor must be a share of lr between 0 and 1, not -0.1."),
        ({"rate": 0.0}, "rate must be above 0 and at most 1, not 0.0."),
        ({"rate": 1.1}, "rate must be above 0 and at most 1, not 1.1."),
        ({"rate": "half"}, "rate must be a number, not 'half'."),
    ],
)
def test_a_wrong_value_gets_one_sentence(changes, sentence):
    with pytest.raises(TapelessError) as refused:
        Schedule(**{"name": "cosine", "lr": 1e-3, "steps": 100, **changes})
    assert str(refused.value).startswith(sentence)
