"""Every kernel over the whole range of float32, beside the reference and torch; and what was wrong there once."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import torch
import typer

from tapeless.backends.backend import backend_named
from tapeless.check import ranges
from tapeless.check.configurations import CONFIGURATIONS
from tapeless.check.ranges import VALUES, check_ranges
from tapeless.check.tolerances import RANGES, TIMES_TORCH, TORCH_FLOOR
from tapeless.cli import lockstep as command
from tapeless.ops import OPS
from tests.bugs.overflow import BUGS
from tests.check.torch_ops import FORWARDS, beside_torch
from tests.random_cases import SOAK, some

pytestmark = pytest.mark.usefixtures("two_threads")

cpu = backend_named("cpu")

TRIED = VALUES if SOAK > 1 else VALUES // 8
SEEDS = [0] if SOAK == 1 else [int.from_bytes(os.urandom(4)) for _ in range(max(1, SOAK // 10))]
DIRECTIONS = [(name, way) for name in OPS for way in ("forward", "backward") if getattr(OPS[name].SPEC, way)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "direction"), some(DIRECTIONS, 3), ids=map(".".join, some(DIRECTIONS, 3)))
def test_random_numbers_of_the_whole_range(name: str, direction: str, seed: int) -> None:
    """Within the bound of the op on every case; and the worst is at most twice as bad as torch's worst."""
    found = beside_torch(name, direction, seed, TRIED)
    assert found
    for error, theirs, length in found.values():
        assert error.ok, f"{error}, seed {seed}"
        assert error.values >= TRIED
        if name in FORWARDS:
            allowed = max(TIMES_TORCH * theirs, TORCH_FLOOR * length)
            assert error.error <= allowed, f"{error}; torch is off by {theirs:.3g} at most, seed {seed}"


@pytest.mark.parametrize("name", OPS)
def test_healthy_ops_have_no_finding(name: str) -> None:
    assert list(check_ranges(name, cpu)) == []


def test_every_op_is_tried_and_has_a_bound() -> None:
    assert RANGES.keys() == {*OPS, "any other op", "own kernel"}
    assert set(FORWARDS) <= set(OPS)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_what_overflows_is_found(bug) -> None:
    with bug.plant(), np.errstate(all="ignore"):
        assert {finding.place for finding in check_ranges(bug.where.split()[0], cpu)} == {bug.where}


def test_an_error_of_a_thousandth_is_found_wherever_it_is(monkeypatch) -> None:
    from tapeless.ops.tanh import cpu as tanh

    right = tanh.forward

    def nearly(y, x):
        return [*right(y, x), lambda: y.__setitem__(x == x.max(), y[x == x.max()] * np.float32(1.001))]

    monkeypatch.setattr(tanh, "forward", nearly)
    assert any("tanh.forward" in finding.detail for finding in check_ranges("tanh", cpu))


def test_a_kernel_that_raises_is_a_finding(monkeypatch) -> None:
    from tapeless.ops.tanh import cpu as tanh

    monkeypatch.setattr(tanh, "forward", lambda y, x: 1 / 0)
    (found,) = check_ranges("tanh", cpu)
    assert found.detail == "raises ZeroDivisionError: division by zero"


def test_the_command_fails_outside_the_range(monkeypatch, capsys) -> None:
    off = ranges.RangeError("gelu", "backward", "dx", np.inf, 16.0, 1000, "x of 30", (0, 1), -np.inf, 0.0)
    monkeypatch.setattr(command, "ops_alone", lambda backend: iter(()))
    monkeypatch.setattr(command, "check_on_threads", lambda name: iter(()))
    monkeypatch.setattr(command, "CONFIGURATIONS", CONFIGURATIONS[:1])
    monkeypatch.setattr(command, "LARGER", ())
    monkeypatch.setattr(command, "range_errors", lambda name, backend: iter([off] if name == "gelu" else []))
    with pytest.raises(typer.Exit):
        command.check_backend("cpu", [], json=True)
    document = json.loads(capsys.readouterr().out.replace("-Infinity", "null").replace("Infinity", "null"))
    assert not document["ok"]
    assert document["broken"] == [str(off)]
    with pytest.raises(typer.Exit):
        command.check_backend("cpu", [], json=False)
    assert "dx is -inf at (0, 1)" in " ".join(capsys.readouterr().out.split())


# What was wrong


def run(runs) -> None:
    for each in runs:
        each()


def empty(*shape: int):
    return np.full(shape, np.nan, np.float32)


def test_gelu_far_from_zero() -> None:
    """dx was −∞ from −30.53 down, NaN from 2e19 up, and y −1.8e-5 at −1e30."""
    from tapeless.ops.gelu import cpu as gelu

    x = np.array([-3e38, -1e30, -1e4, -100, -31, -30, -11, 11, 31, 1e4, 2e19, 1e30, 3e38], np.float32)
    y, dx = empty(x.size), empty(x.size)
    run(gelu.forward(y, x) + gelu.backward(dx, np.ones_like(x), x))
    assert np.array_equal(y, np.where(x > 0, x, 0))
    assert np.abs(dx - (x > 0)).max() < 1e-30


def test_a_norm_over_one_channel_has_no_gradient() -> None:
    """g − mean g was what g had been rounded by."""
    from tapeless.ops.layernorm import cpu as layernorm

    rng = np.random.default_rng(0)
    x, dy = (rng.normal(size=(1000, 1)).astype(np.float32) for _ in range(2))
    weight, bias = np.array([1.3], np.float32), np.array([0.2], np.float32)
    y, mean, rstd, dx, dweight, dbias = empty(1000, 1), empty(1000), empty(1000), empty(1000, 1), empty(1), empty(1)
    run(layernorm.forward(y, mean, rstd, x, weight, bias, 1e-5))
    run(layernorm.backward(dx, dweight, dbias, dy, x, weight, mean, rstd, [empty(16, 2, 1)]))
    assert (y == bias).all()
    assert (dx == 0).all()


@pytest.mark.parametrize("size", [1e4, 1e20])
def test_a_norm_over_two_channels_leaves_signs(size: float) -> None:
    """However near each other they are: the rounded mean was as far from the middle as they."""
    from tapeless.ops.layernorm import cpu as layernorm

    rng = np.random.default_rng(0)
    x = np.repeat((size * rng.uniform(1, 2, size=(1000, 1))).astype(np.float32), 2, axis=1)
    x[:, 1] = np.nextafter(x[:, 1], np.float32(np.inf))
    x[:, 1] = np.nextafter(x[:, 1], np.float32(np.inf) * (rng.integers(0, 2, 1000) * 2 - 1))
    weight, bias, y = np.ones(2, np.float32), np.zeros(2, np.float32), empty(1000, 2)
    mean, rstd = empty(1000), empty(1000)
    run(layernorm.forward(y, mean, rstd, x, weight, bias, 1e-12))
    spread = (x[:, 1].astype(np.float64) - x[:, 0]) / 2
    true = spread / np.sqrt(spread * spread + 1e-12)
    assert np.abs(y - np.stack([-true, true], axis=1)).max() < 1e-6


def attention_beside_torch(shape: tuple[int, int, int], heads: int, size: float) -> tuple[dict[str, float], ...]:
    """The largest errors of dq, dk and dv, ours and torch's."""
    from tapeless.ops.attention import cpu as attention

    rng = np.random.default_rng(0)
    q, k, v, dy = ((size * rng.normal(size=shape)).astype(np.float32) for _ in range(4))
    y, lse, dq, dk, dv = empty(*shape), empty(shape[0], heads, shape[1]), *(empty(*shape) for _ in range(3))
    strips = empty(1, 2, min(64, shape[1]), shape[1] + 32)
    run(attention.forward(y, lse, q, k, v, None, True, 0, [strips[:, 0]]))
    run(attention.backward(dq, dk, dv, dy, q, k, v, y, lse, None, True, 0, [strips]))
    wide = [x.astype(np.float64) for x in (q, k, v, dy)]
    true = [np.empty(shape) for _ in range(4)]
    scores = np.empty(lse.shape)
    OPS["attention"].forward(true[0], scores, *wide[:3], None, True, 0)
    OPS["attention"].backward(*true[1:], wide[3], *wide[:3], true[0], scores, None, True, 0)

    def split(x):
        return torch.tensor(x).reshape(*shape[:2], heads, -1).transpose(1, 2).clone().requires_grad_()

    tensors = [split(x) for x in (q, k, v)]
    products = tensors[0] @ tensors[1].transpose(2, 3) / (shape[2] // heads) ** 0.5
    masked = products.masked_fill(~torch.ones(shape[1], shape[1], dtype=torch.bool).tril(), -torch.inf)
    (torch.softmax(masked, -1) @ tensors[2]).backward(split(dy).detach())
    peers = [x.grad.transpose(1, 2).reshape(shape).numpy() for x in tensors]
    return tuple(
        {name: float(np.abs(a - b).max()) for name, a, b in zip(("dq", "dk", "dv"), found, true[1:], strict=True)}
        for found in ((dq, dk, dv), peers)
    )


@pytest.mark.parametrize("size", [1e4, 1e6])
@pytest.mark.parametrize(("shape", "heads"), [((2, 64, 32), 2), ((2, 100, 16), 2), ((1, 7, 2), 2), ((3, 1, 4), 1)])
def test_saturated_heads_are_as_good_as_torch(shape, heads, size) -> None:
    """A weight was rebuilt from a rounded lse, and dp − dy · y was not 0 where one key has it all."""
    ours, peers = attention_beside_torch(shape, heads, size)
    for name, peer in peers.items():
        assert ours[name] <= TIMES_TORCH * peer, (name, ours[name], peer)


def test_equal_scores_of_any_size_share_a_loss() -> None:
    """log V was lost beside scores of 1e30, in the reference too."""
    from tapeless.ops.classifier import cpu as classifier

    for vocab in (7, 1030):
        x, weight = np.full((3, 1), 1e15, np.float32), np.full((vocab, 1), 1e15, np.float32)
        targets, count, loss = np.array([0, 3, 6]), np.array([3.0]), empty(1)
        scratch = [np.empty(3)] if vocab < 1024 else [empty(16 * 3 * 3), np.empty(16 * 3), empty(3), empty(3)]
        scratch.append(empty(1 << 18))  # what the built-in GEMM packs into
        run(classifier.forward(loss, empty(3, vocab), x, weight, targets, count, scratch=scratch))
        true = np.empty(1)
        OPS["classifier"].forward(true, np.empty((3, vocab)), x.astype(float), weight.astype(float), targets, count)
        assert loss[0] == pytest.approx(np.log(vocab), rel=1e-6)
        assert true[0] == pytest.approx(np.log(vocab), rel=1e-12)


def test_the_mean_of_squares_fits_where_their_sum_does_not() -> None:
    from tapeless.ops.squared_error import cpu as squared_error

    x, table = np.full((2, 1000), 5e17, np.float32), np.full((1, 1000), -5e17, np.float32)
    x[:, 0], loss = 1e18, empty(1)
    run(squared_error.forward(loss, 1e1 * x, 1e1 * table, np.array([0, 0]), np.array([2.0]), [np.empty(2)]))
    assert loss[0] == pytest.approx(1e38, rel=1e-2)
