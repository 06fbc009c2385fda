"""What the founding documents get wrong: each wrong form fails the check that ours passes.

One section per row of the second table of SEEDS.md, then the exercises of document 004 that have one right answer.
A wrong form is put in the place of the right one (the kernels of an op are the functions of its module), so that
it is judged by the very check that judges ours.
"""

from math import exp, log, sqrt

import numpy as np
import pytest

from tapeless import PRESETS, Model
from tapeless.check.complex_step import STEP, check_model, relative_error
from tapeless.check.configurations import CONFIGURATIONS
from tapeless.check.ops import check_op
from tapeless.check.tolerances import TOLERANCES
from tapeless.models import transformer
from tapeless.ops import OPS
from tapeless.ops.contract import NONE, store

EXACT = TOLERANCES["complex step"]


def refused(errors):
    """The tensors whose gradient the complex step contradicts."""
    return {error.tensor for error in errors if not error.ok}


def model_of(name, **fields):
    return Model(name, backend="reference", **fields)


def configuration(name):
    return next(found for found in CONFIGURATIONS if found.name == name)


def agree(found, true):
    found, true = np.asarray(found), np.asarray(true)
    # Shapes first: relative_error would broadcast, and a sum over too many axes is one of the errors here.
    return found.shape == true.shape and relative_error(found, true) <= EXACT


# 000: dx = (1/D)·rstd·[D·dy − Σdy − (x−mean)·Σ(dy·(x−mean))]·γ. Two faults, and either alone is enough.


def layernorm_backward(inside, power):
    """The document's layout of the formula, with γ inside or outside the sums and rstd to some power within."""

    def backward(dx, dweight, dbias, dy, x, weight, mean, rstd, add=NONE):
        D, centred, r = x.shape[1], x - mean[:, None], rstd[:, None]
        g = dy * weight if inside else dy
        last = centred * r**power * (g * centred).sum(axis=1, keepdims=True)
        bracket = D * g - g.sum(axis=1, keepdims=True) - last
        store(dx, r * bracket / D * (1 if inside else weight), "dx" in add)
        store(dweight, (dy * centred * r).sum(axis=0), "dweight" in add)
        store(dbias, dy.sum(axis=0), "dbias" in add)

    return backward


@pytest.mark.parametrize(("inside", "power"), [(False, 0), (False, 2), (True, 0)])
def test_layernorm_as_document_000_has_it_is_refused(monkeypatch, inside, power):
    monkeypatch.setattr(OPS["layernorm"], "backward", layernorm_backward(inside, power))
    assert refused(check_op("layernorm")) == {"dx"}


def test_layernorm_as_document_002_has_it_passes_and_so_does_ours(monkeypatch):
    assert not refused(check_op("layernorm"))
    monkeypatch.setattr(OPS["layernorm"], "backward", layernorm_backward(inside=True, power=2))
    assert not refused(check_op("layernorm"))


def test_layernorm_of_document_000_hides_where_gamma_is_one_and_rstd_is_one():
    # Why nobody noticed: on a fresh model (γ = 1) and rows of variance 1 the wrong formula is the right one.
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 6))
    x = (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)
    fresh = (rng.normal(size=(4, 6)), x, np.ones(6), np.zeros(4), np.ones(4))
    found, true = ([np.empty((4, 6)), np.empty(6), np.empty(6)] for _ in range(2))
    layernorm_backward(inside=False, power=0)(*found, *fresh)
    OPS["layernorm"].backward(*true, *fresh)
    assert agree(found[0], true[0])


# 000: dγ and dβ "summed over tokens & features".


def test_norm_weights_summed_over_features_too_are_refused(monkeypatch):
    right = OPS["layernorm"].backward

    def over_everything(dx, dweight, dbias, dy, x, weight, mean, rstd, add=NONE):
        right(dx, dweight, dbias, dy, x, weight, mean, rstd, add)
        xhat = (x - mean[:, None]) * rstd[:, None]
        assert (dy * xhat).sum().shape == ()  # one number for all channels; storing it gives each the same
        store(dweight, (dy * xhat).sum(), "dweight" in add)
        store(dbias, dy.sum(), "dbias" in add)

    monkeypatch.setattr(OPS["layernorm"], "backward", over_everything)
    assert refused(check_op("layernorm")) == {"dweight", "dbias"}


def test_norm_weights_get_a_gradient_per_channel():
    model = model_of("gpt2-4x256", batch=2, time=3, layers=1, channels=6, heads=2, vocab=7, context=3)
    rng = np.random.default_rng(0)
    model.forward_backward(rng.integers(0, 7, (2, 3)), rng.integers(0, 7, (2, 3)))
    for name in ("norm.weight", "norm.bias"):
        assert model.grads[name].shape == (6,)
        assert len(set(model.grads[name])) == 6  # a sum over channels would have made them all alike


# 000: about 80 MFLOP forward for L=4, D=256, T=1024, V=50257.


def test_forward_of_the_standard_model_is_35_gflop_and_three_quarters_is_head():
    calls = transformer.evaluation(PRESETS["gpt2-4x256"], 1, 1024).calls
    total = sum(call.flops for call in calls)
    head = sum(call.flops for call in calls if call.op == "classifier")
    assert 35e9 < total < 35.5e9
    assert 0.74 < head / total < 0.76
    assert total > 400 * 80e6

    # By hand, products alone: 12 C² per row of a block, the causal half of T×T twice, and the vocabulary.
    L, T, C, V = 4, 1024, 256, 50257
    products = 2 * T * L * 12 * C**2 + 2 * L * 2 * C * T * (T + 1) // 2 + 2 * T * C * V
    assert products < total < 1.02 * products


# 002: loss = −log(p + 1e-10) beside the gradient p − onehot.


def biased_classifier(loss, logits, x, weight, targets, count, class_weights=None):
    z = x @ weight.T
    valid = np.flatnonzero(targets >= 0)
    p = np.exp(z - z.real.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    loss[...] = -np.log(p[valid, targets[valid]] + 1e-10).sum() / count


def classifier_loss(forward, scores, target):
    """The loss of one row whose scores are given: the vocabulary product is with the identity."""
    loss, z = np.empty(1, scores.dtype), np.empty((1, len(scores)), scores.dtype)
    forward(loss, z, scores[None], np.eye(len(scores)), np.array([target]), np.ones(1))
    return loss[0]


def test_loss_with_epsilon_is_refused_even_on_ordinary_scores(monkeypatch):
    assert not refused(check_op("classifier"))
    monkeypatch.setattr(OPS["classifier"], "forward", biased_classifier)
    assert refused(check_op("classifier")) == {"dx", "dweight"}


def test_loss_with_epsilon_saturates_and_goes_below_zero():
    ours = OPS["classifier"].forward
    surprised, certain = np.array([0.0, 50.0]), np.array([50.0, 0.0])
    true = 50 + log(1 + exp(-50))
    assert agree(classifier_loss(ours, surprised, 0), true)
    assert classifier_loss(biased_classifier, surprised, 0) < 23.1  # −log 1e-10, however wrong the model is
    assert classifier_loss(ours, certain, 0) >= 0
    assert classifier_loss(biased_classifier, certain, 0) < 0  # no −log of a probability is negative


def test_gradient_of_the_loss_with_epsilon_is_not_the_document_s():
    scores = np.array([0.0, 30.0])
    claimed = np.exp(scores - 30) / np.exp(scores - 30).sum() - np.array([1, 0])  # p − onehot
    slopes = {}
    for forward in (OPS["classifier"].forward, biased_classifier):
        steps = scores + 1j * STEP * np.eye(2)
        slopes[forward] = np.array([classifier_loss(forward, row, 0).imag / STEP for row in steps])
    assert agree(slopes[OPS["classifier"].forward], claimed)
    # Where the model is most wrong the biased loss hardly slopes at all: 1e-3 of what the document passes back.
    assert np.abs(slopes[biased_classifier]).max() < 2e-3 * np.abs(claimed).max()


# 002: "Σ dy = 0 (must be satisfied by valid gradients)".


def test_softmax_backward_takes_any_dy_and_it_is_dx_that_sums_to_zero():
    # With the identity as keys, attention's dq is the gradient of the scores themselves (over √D).
    rng = np.random.default_rng(1)
    T, D = 3, 5
    q, v, dout = (rng.normal(size=(1, rows, D)) for rows in (T, D, T))
    k = np.eye(D)[None]
    y, lse, dq, dk, dv = (np.empty(shape) for shape in ((1, T, D), (1, 1, T), (1, T, D), (1, D, D), (1, D, D)))
    OPS["attention"].forward(y, lse, q, k, v, None, False, 0)
    OPS["attention"].backward(dq, dk, dv, dout, q, k, v, y, lse, None, False, 0)
    dscores = dq[0] * sqrt(D)

    scores, dy = q[0] / sqrt(D), dout[0] @ v[0].T  # dy of the softmax: what arrives at its probabilities

    def weighted(scores):
        p = np.exp(scores)
        return (dy * p / p.sum(axis=-1, keepdims=True)).sum()

    steps = scores + 1j * STEP * np.eye(scores.size).reshape(-1, T, D)
    true = np.array([weighted(step).imag / STEP for step in steps]).reshape(T, D)
    assert agree(dscores, true)
    assert np.abs(dy.sum(axis=1)).min() > 0.1  # valid gradients, and none of them satisfies the claim
    assert np.abs(dscores.sum(axis=1)).max() <= EXACT * np.abs(dscores).max()


# 003: the attention gradient "simplified (identity + small update)".


def identity_plus_small_update(dq, dk, dv, dy, q, k, v, y, lse, starts, causal, window, add=NONE):
    store(dq, 0.01 * dy, "dq" in add)
    store(dk, 0.01 * dy, "dk" in add)
    store(dv, dy + 0.01 * dy, "dv" in add)


def test_attention_as_identity_plus_small_update_is_refused(monkeypatch):
    assert not refused(check_model(configuration("cllm")))
    monkeypatch.setattr(OPS["attention"], "backward", identity_plus_small_update)
    checked = list(check_model(configuration("cllm")))
    # The gradient is right until it meets the last attention on its way back, and wrong everywhere behind it.
    sound = {"norm.", "blocks.1.mlp.", "blocks.1.norm2.", "blocks.1.attn.proj."}
    behind = {error.tensor for error in checked if not error.tensor.startswith(tuple(sound))}
    assert refused(checked) == behind
    assert {"blocks.0.attn.qkv.weight", "blocks.1.attn.qkv.weight", "tokens.weight"} <= behind


# 003: squared error to the target's embedding, silent on whether the target side gets a gradient.


def test_target_side_is_a_constant_of_the_proven_gradient(monkeypatch):
    assert not refused(check_model(configuration("cllm")))
    moving = lambda x, table, targets: np.where(targets[:, None] >= 0, x - table[targets], 0)  # noqa: E731
    monkeypatch.setattr(OPS["squared_error"], "_difference", moving)
    assert refused(check_model(configuration("cllm"))) == {"tokens.weight"}


def test_a_token_that_is_only_a_target_gets_no_gradient():
    model = model_of("cllm", batch=2, time=3, layers=1, channels=8, heads=2, vocab=6, context=3)
    model.forward_backward([[0, 1, 2], [2, 1, 0]], [[5, 4, 5], [1, 5, 2]])
    table = model.grads["tokens.weight"]
    assert (table[[3, 4, 5]] == 0).all()
    assert (table[[0, 1, 2]] != 0).any(axis=1).all()


def spread_and_loss_after_training(target_side):
    """Random tokens after random tokens: nothing can be learned, so an honest loss stays at chance."""
    model = model_of("cllm", batch=8, time=4, layers=1, channels=8, heads=2, vocab=12, context=4, optimizer="adam")
    rng = np.random.default_rng(0)
    table = model.params["tokens.weight"]
    table[...] = rng.normal(size=table.shape)
    losses = []
    for _ in range(400):
        tokens, targets = rng.integers(0, 12, (2, 8, 4))
        for call, values in model.trace(tokens, targets):
            if call.title == "squared_error.backward":
                losses.append(float(values["loss"][0]))
                dx = values["dx"].copy()
        if target_side:  # loss depends on x − table[target], so the target's gradient is −dx
            np.subtract.at(model.grads["tokens.weight"], targets.reshape(-1), dx)
        model.update(lr=0.02)
    return table.std(axis=0).max(), np.mean(losses[-20:])


def test_embeddings_collapse_when_the_target_side_is_trained_and_do_not_when_it_is_constant():
    spread, loss = spread_and_loss_after_training(target_side=True)
    assert spread < 0.01  # all embeddings on one point
    assert loss < 1e-3  # "solved", with nothing to know
    spread, loss = spread_and_loss_after_training(target_side=False)
    assert spread > 0.5
    assert loss > 0.3


# 004: 102,016 parameters and an output bias of 20.


def test_teaching_model_has_102016_parameters_without_an_output_bias_and_102036_with_one():
    program = transformer.evaluation(PRESETS["ops-102k"], 1, 8)
    names = {weight.name for weight in program.weights}
    assert program.parameters == 102_016
    assert "head.weight" in names
    assert "head.bias" not in names
    V, C, F = 20, 64, 256
    block = 4 * C * C + (C * F + F) + (F * C + C) + 2 * (C + C)
    assert V * C + 2 * block + C * V == program.parameters
    assert V * C + 2 * block + (C * V + V) == 102_036  # the document's layers add up to this


# 004: (0.450012 − 0.449988) / 2e-5 "= 1200", close to −0.0719 within 1e-5.


def test_the_finite_difference_of_the_document_is_1_2_and_agrees_with_nothing():
    slope = (0.450012 - 0.449988) / (2 * 1e-5)
    assert slope == pytest.approx(1.2)
    assert abs(slope - 1200) > 1000
    assert abs(slope - -0.0719) > 1


def test_losses_of_six_digits_cannot_check_a_gradient_and_the_complex_step_can():
    tokens, target = [[15, 17, 3, 19, 8, 19, 4, 18]], [8]  # Max(1,6,2) → 6
    model = model_of("ops-102k", batch=1, optimizer=None)
    probe = model_of("ops-102k", batch=1, optimizer=None, precision="complex128")
    model.forward_backward(tokens, target)
    claimed = model.grads["head.weight"][8, :20].copy()  # the weights that make the score of "6"
    row = model.params["head.weight"][8]

    def loss_at(index, value):
        kept, row[index] = row[index], value
        loss = model.loss(tokens, target)
        row[index] = kept
        return loss

    eps = 1e-5
    pairs = np.array([(loss_at(i, row[i] + eps), loss_at(i, row[i] - eps)) for i in range(20)])
    digits, full = (losses @ [1, -1] / (2 * eps) for losses in (pairs.round(6), pairs))
    grid = 1e-6 / (2 * eps)  # two losses printed to six digits differ by a multiple of 1e-6
    assert np.abs(digits / grid - np.round(digits / grid)).max() < 1e-4
    assert (np.abs(digits - claimed) > 1e-5).all()  # not one element holds to what the document asks for
    assert np.abs(digits - claimed).max() > 0.01
    assert (np.abs(full - claimed) < 1e-5).all()  # the same differences, not rounded, do

    steps = []
    for i in range(20):
        probe.params["head.weight"][8, i] += 1j * STEP
        steps.append(complex(probe.loss(tokens, target)).imag / STEP)
        probe.params["head.weight"].imag[8, i] = 0
    assert agree(claimed, steps)


# 004: about 300,000 FLOP forward per example.


def test_forward_of_the_teaching_model_is_1_6_mflop():
    # The document takes every position through both blocks and the output, as a model read out everywhere does.
    everywhere = PRESETS["ops-102k"].override(readout="all")
    calls = transformer.evaluation(everywhere, 1, 8).calls
    total = sum(call.flops for call in calls)
    assert 1.55e6 < total < 1.7e6
    T, C, F = 8, 64, 256
    linears = [2 * c.dims["R"] * c.dims["C"] * c.dims["F"] for c in calls if c.op == "linear"]
    per_block = [2 * T * C * 3 * C, 2 * T * C * C, 2 * T * C * F, 2 * T * F * C]  # qkv, proj, up, down
    assert linears == 2 * per_block
    # The document counts one product of attention and one of the feed-forward's two, in one of the two blocks.
    counted = 2 * (8 * 16 * 8) * 4 + 2 * (8 * 64 * 256) + 8 * 64 * 20
    assert counted < 300_000 < sum(linears) / 5
    # The preset itself may leave out what its one answer does not need. Even so it is no 300,000.
    assert 900_000 < transformer.evaluation(PRESETS["ops-102k"], 1, 8).flops <= total


# 004: "gradient = min(gradient, max_norm)". Question 33: ‖g‖ = 2.5, max_norm = 1.0.


def test_clipping_scales_the_whole_gradient_and_keeps_its_direction():
    g = np.array([2.0, -1.5, 0.0])
    norm, scale, finite, step = np.empty(1), np.empty(1), np.zeros(1, int), np.zeros(3)
    OPS["global_norm"].forward(norm, np.empty(1), g, (0,))
    OPS["clip"].forward(scale, finite, np.ones(1), norm, np.array([1.0]), np.array([1e19]))
    # lr = −1 writes down the clipped gradient itself
    OPS["sgd"].forward(step, None, np.zeros(1, int), np.empty(1), np.empty(1), g, scale, finite, np.array([-1.0]), (0,))
    assert agree(norm[0], 2.5)
    assert agree(step, [0.8, -0.6, 0.0])
    assert agree(np.linalg.norm(step), 1.0)

    by_element = np.minimum(g, 1.0)  # the document's
    assert np.linalg.norm(by_element) > 1.8  # still too long: nothing limits what is negative
    cosine = by_element @ g / np.linalg.norm(by_element) / np.linalg.norm(g)
    assert cosine < 0.95  # and it points elsewhere


def test_a_model_s_update_takes_the_clipped_step_over_all_tensors_together():
    model = model_of("ops-102k", batch=1, layers=1, channels=8, heads=2, optimizer="sgd")
    each = 2.5 / sqrt(model.parameters)  # every element alike, so that all of them together have norm 2.5
    for gradient in model.grads.values():
        gradient[...] = each
    before = {name: weight.copy() for name, weight in model.params.items()}
    assert agree(model.update(lr=0.5, clip=1.0), 2.5)
    for name, weight in model.params.items():
        assert np.abs(weight - before[name] + 0.5 * 0.4 * each).max() <= EXACT, name
    # Below the limit nothing is scaled.
    before = {name: weight.copy() for name, weight in model.params.items()}
    model.update(lr=0.5, clip=3.0)
    for name, weight in model.params.items():
        assert np.abs(weight - before[name] + 0.5 * each).max() <= EXACT, name


# 004: dead units are listed as prevented by residuals and LayerNorm.


def expressions(count, seed=0):
    """Inputs and targets of the operations task: First, Second, Last, Max, Min of three digits."""
    rng = np.random.default_rng(seed)
    digits, operation = rng.integers(0, 10, (count, 3)), rng.integers(0, 5, count)
    a, b, c = digits.T + 2
    opening, comma, closing = (np.full(count, token) for token in (17, 19, 18))
    inputs = np.stack([operation + 12, opening, a, comma, b, comma, c, closing], axis=1)
    answers = np.choose(operation, [*digits.T, digits.max(axis=1), digits.min(axis=1)])
    return inputs, answers + 2


def silent_units(model, inputs, targets):
    """By block: which hidden units are positive at no position of no sequence. Leaves the gradients in place."""
    silent, seen = {}, set()
    for call, values in model.trace(inputs, targets):
        seen.add(call.op)
        if call.op == "relu" and call.phase == "forward":
            silent[call.section] = (values["x"] <= 0).all(axis=0)
            assert (values["y"][:, silent[call.section]] == 0).all()
    assert {"residual", "layernorm"} <= seen  # all that should have prevented it is there
    return silent


def weights_of_units(tensors, block, units):
    """All that a hidden unit owns: what it reads with, its threshold, what it writes with."""
    names = (f"{block}.mlp.up.weight", f"{block}.mlp.up.bias", f"{block}.mlp.down.weight")
    up, bias, down = (tensors[name] for name in names)
    return np.vstack([up[:, units], bias[units], down[units].T])


def test_units_pushed_below_zero_stay_dead_in_spite_of_residuals_and_layernorm():
    model = model_of("ops-102k", batch=32, optimizer="adam")
    pushed = np.arange(0, 256, 51)
    model.params["blocks.0.mlp.up.bias"][pushed] = -1000.0
    before = weights_of_units(model.params, "blocks.0", pushed)
    for step in range(5):
        silent = silent_units(model, *expressions(32, seed=step))
        assert silent["blocks.0"][pushed].all()
        assert (weights_of_units(model.grads, "blocks.0", pushed) == 0).all()
        # All others of the block learn: it is the units that are dead, not the block.
        living = ~silent["blocks.0"]
        assert (np.abs(weights_of_units(model.grads, "blocks.0", living)).max(axis=0) > 0).all()
        model.update(lr=0.01)
    assert np.array_equal(weights_of_units(model.params, "blocks.0", pushed), before)


def test_the_teaching_model_is_born_with_units_that_never_fire():
    model = model_of("ops-102k", batch=500)
    silent = silent_units(model, *expressions(500))
    for block, units in silent.items():
        assert 5 < units.sum() < 128, block
        assert (weights_of_units(model.grads, block, units) == 0).all()


# 004, the exercises and questions with one right answer.


def test_exercise_1_all_gradients_of_a_minimal_network():
    x = np.array([[2.0, 1.0]])
    W1, b1 = np.array([[0.5, -0.3], [0.2, 0.4]]), np.array([0.1, -0.1])
    W2, b2 = np.array([[0.6], [0.3]]), np.array([0.2])
    z, hidden, output = np.empty((1, 2)), np.empty((1, 2)), np.empty((1, 1))
    linear, relu = OPS["linear"], OPS["relu"]
    linear.forward(z, x, W1, b1)
    relu.forward(hidden, z)
    linear.forward(output, hidden, W2, b2)
    assert agree(z, [[1.3, -0.3]])
    assert agree(hidden, [[1.3, 0.0]])
    assert agree(output, [[0.98]])

    loss, doutput = np.empty(1), np.empty((1, 1))
    # Counting the one row twice makes the mean square ½(output − target)², which the exercise asks for.
    table, row, count = np.array([[1.5]]), np.array([0]), np.array([2.0])
    OPS["squared_error"].backward(loss, doutput, output, table, row, count)
    assert agree(loss, [0.1352])
    assert agree(doutput, [[-0.52]])

    dW2, db2, dhidden = np.empty((2, 1)), np.empty(1), np.empty((1, 2))
    dW1, db1, dz, dx = np.empty((2, 2)), np.empty(2), np.empty((1, 2)), np.empty((1, 2))
    linear.backward(dhidden, dW2, db2, doutput, hidden, W2)
    relu.backward(dz, dhidden, z)
    linear.backward(dx, dW1, db1, dz, x, W1)
    assert agree(dW2, [[-0.676], [0.0]])
    assert agree(db2, [-0.52])
    assert agree(dhidden, [[-0.312, -0.156]])
    assert agree(dW1, [[-0.624, 0.0], [-0.312, 0.0]])
    assert agree(db1, [-0.312, 0.0])
    assert agree(dx, [[-0.156, -0.0624]])


def descend(weight, gradient, lr):
    told = (np.zeros(1, int), np.empty(1), np.empty(1))
    OPS["sgd"].forward(weight, None, *told, gradient, np.ones(1), np.ones(1, int), np.array([lr]), (0,))


def trajectory(op, gradients, start=0.5, **scalars):
    """One weight, one gradient per step; the states an optimizer keeps start at zero."""
    signature = OPS[op].SPEC.forward
    weight = np.array([start])
    states: list = [np.zeros(1, int if name == "step" else float) for name in signature.writes if name != "weights"]
    states[list(signature.writes).index("master") - 1] = None
    visited = []
    for gradient in gradients:
        known = {"gradients": np.array([gradient]), "scale": np.ones(1), "finite": np.ones(1), "lr": np.array([0.01])}
        OPS[op].forward(weight, *states, *(known[name] for name in signature.reads), **scalars, sections=(0,))
        visited.append(float(weight[0]))
    return visited


def test_exercise_4_three_optimizers_on_one_weight():
    gradients = [-0.1, -0.08, -0.12, -0.09, -0.11]
    assert agree(trajectory("sgd", gradients), [0.501, 0.5018, 0.503, 0.5039, 0.505])
    # m: −0.1, −0.17, −0.273, −0.3357, −0.41213
    by_hand = [0.501, 0.5027, 0.50543, 0.508787, 0.5129083]
    assert agree(trajectory("momentum", gradients, momentum=0.9), by_hand)
    adam = trajectory("adamw", gradients, beta1=0.9, beta2=0.999, eps=1e-8, decay=0.0, decayed=())
    # The first step of Adam is lr whatever the gradient's size, but for eps.
    assert agree(adam[0], 0.5 + 0.01 * 0.1 / (0.1 + 1e-8))
    m = v = 0.0
    weight, by_definition = 0.5, []
    for t, g in enumerate(gradients, start=1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        weight -= 0.01 * (m / (1 - 0.9**t)) / (sqrt(v / (1 - 0.999**t)) + 1e-8)
        by_definition.append(weight)
    assert agree(adam, by_definition)


@pytest.mark.parametrize("lr", [0.1, 0.5, 1.0, 2.1])
def test_exercise_5_learning_rates_on_a_parabola(lr):
    # loss = ½(W − 3)² from W = 0: each step multiplies the distance to 3 by 1 − lr.
    weight = np.zeros(1)
    for _ in range(10):
        descend(weight, weight - 3, lr)
    distance = 3 * abs(1 - lr) ** 10
    assert abs(abs(weight[0] - 3) - distance) <= EXACT * 3
    assert (distance > 3) == (lr > 2)  # 2.1 is farther away after ten steps than it was: it diverges


def test_question_7_gradient_of_the_scores():
    scores = np.array([[0.5, 1.2, -0.3, 2.1]])
    loss, dz, dweight, z = np.empty(1), np.empty((1, 4)), np.empty((4, 4)), np.empty((1, 4))
    # With the identity as vocabulary the scores are what goes in, and dx is their gradient.
    OPS["classifier"].backward(loss, dz, dweight, z, scores, np.eye(4), np.array([3]), np.ones(1))
    assert np.array_equal(dz.round(2), [[0.12, 0.24, 0.05, -0.41]])
    assert abs(dz.sum()) <= EXACT


def test_question_8_one_column_of_the_output_weights():
    final = np.array([[0.8, -0.4, 0.6]])
    dlogits, dfinal, dweight, dbias = np.zeros((1, 8)), np.empty((1, 3)), np.empty((3, 8)), np.empty(8)
    dlogits[0, 5] = -0.25
    OPS["linear"].backward(dfinal, dweight, dbias, dlogits, final, np.zeros((3, 8)))
    assert agree(dweight[:, 5], [-0.2, 0.1, -0.15])
    assert dbias[5] == -0.25


@pytest.mark.parametrize(
    ("z", "dy", "dz"),
    [
        ([-1.5, 2.3, 0.0, -0.7, 1.8], [0.5, -0.3, 0.2, -0.4, 0.6], [0, -0.3, 0, 0, 0.6]),  # question 9
        ([-2.3, 1.5, -0.7, 3.2, 0.8], [0.5, -0.3, 0.2, -0.8, 0.4], [0, -0.3, 0, -0.8, 0.4]),  # part 3
    ],
)
def test_question_9_backward_through_relu(z, dy, dz):
    found = np.empty((1, 5))
    OPS["relu"].backward(found, np.array([dy]), np.array([z]))
    assert np.array_equal(found, [dz])


def test_question_16_a_token_that_stands_twice_gets_both_gradients():
    tokens, dy, dweight = np.array([15, 17, 3, 19, 8, 19, 4, 18]), np.zeros((8, 1)), np.empty((20, 1))
    dy[3], dy[5], dy[4] = 0.25, 0.5, 2.0
    OPS["embedding"].backward(dweight, dy, tokens)
    assert dweight[19, 0] == 0.75
    assert dweight[8, 0] == 2.0


def test_question_18_sgd_reaches_a_quarter_after_320_updates():
    weight, gradient = np.array([0.234]), np.array([-0.05])
    visited = []
    for _ in range(320):
        descend(weight, gradient, 0.001)
        visited.append(weight[0])
    assert agree(visited[0], 0.23405)
    assert visited[318] < 0.25 - 4e-5
    assert abs(visited[319] - 0.25) <= EXACT
