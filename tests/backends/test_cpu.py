"""The CPU backend, held to the float64 reference: call by call, as a whole model, and over training steps."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from tapeless import Model, TapelessError
from tapeless.backends.backend import backend_named, bind_call
from tapeless.check.configurations import CONFIGURATIONS, LARGER, Configuration
from tapeless.check.lockstep import lockstep, pair
from tapeless.check.threads import on_threads
from tapeless.check.tolerances import TOLERANCES
from tapeless.kernels import cpu as cpu_kernels
from tapeless.ops import OPS
from tapeless.ops.layernorm import cpu as layernorm
from tests.oracles import leaves, torch_loss_and_logits
from tests.random_cases import SOAK, some

pytestmark = pytest.mark.usefixtures("two_threads")

cpu = backend_named("cpu")


@pytest.mark.parametrize("configuration", [*some(CONFIGURATIONS, 3), *LARGER], ids=lambda c: c.name)
def test_every_call_of_a_step_is_within_the_table(configuration):
    wrong = [str(difference) for difference in lockstep(*pair(configuration, "cpu")) if not difference.ok]
    assert not wrong, wrong[0]


@pytest.mark.parametrize("configuration", LARGER, ids=lambda c: c.name)
def test_the_gradients_of_a_whole_model(configuration):
    model, true, inputs, targets = pair(configuration, "cpu")
    loss = true.forward_backward(inputs, targets)
    assert model.forward_backward(inputs, targets) == pytest.approx(loss, rel=1e-6)
    assert model.loss(inputs, targets) == pytest.approx(true.loss(inputs, targets), rel=1e-6)
    for name, gradient in true.grads.items():
        error = np.linalg.norm(model.grads[name] - gradient)
        # Where an adapter starts, half of it has no gradient at all.
        assert error <= TOLERANCES["float32 gradients"] * np.linalg.norm(gradient), (name, error)
    scores = true.logits(inputs)
    assert np.abs(model.logits(inputs) - scores).max() <= 1e-5 * np.abs(scores).max()


@pytest.mark.parametrize("seed", range(5 if SOAK > 1 else 2))
@pytest.mark.parametrize(("name", "shape"), [("cllm", (2, 128)), ("sunfish", (2, 150)), ("ops-102k", (32, 8))])
def test_the_gradients_of_a_preset_as_it_starts(name, shape, seed):
    """At full depth; `cllm` with small embeddings under a norm of 1, where float32 loses most."""
    batch, time = shape
    model = Model(name, batch=batch, time=time, backend="cpu", seed=seed)
    true = Model(name, batch=batch, time=time, backend="reference", seed=seed)
    if name == "cllm":
        rng = np.random.default_rng(seed)
        for table in ("tokens.weight", "positions.weight"):
            model.params[table][...] = rng.normal(0, 0.02, model.params[table].shape)
        model.params["norm.weight"][...] = 1
    for key, weight in model.params.items():
        true.params[key][...] = weight
    inputs, targets = Configuration(name, name, batch=batch, time=time).batch_of(np.random.default_rng(seed), true)
    inputs = inputs.astype(np.float32) if true.config.features else inputs
    true.forward_backward(inputs, targets)
    model.forward_backward(inputs, targets)
    for key, gradient in true.grads.items():
        error = np.linalg.norm(model.grads[key] - gradient) / np.linalg.norm(gradient)
        assert error <= TOLERANCES["float32 gradients"], (key, error)


def test_a_norm_sums_in_float64():
    """Mean and rstd are the nearest float32 or its neighbour: what they lose stretches a whole row."""
    x = np.random.default_rng(0).normal(3, 1, (64, 1021)).astype(np.float32)
    y, mean, rstd = np.empty_like(x), np.empty(64, np.float32), np.empty(64, np.float32)
    weight, bias = np.ones(1021, np.float32), np.zeros(1021, np.float32)
    for run in layernorm.forward(y, mean, rstd, x, weight, bias, 1e-5):
        run()
    wide = x.astype(np.float64)
    for found, true in ((mean, wide.mean(axis=1)), (rstd, 1 / np.sqrt(wide.var(axis=1) + 1e-5))):
        assert np.abs(found / true - 1).max() <= 2.0**-24


@on_threads(1)
def test_a_hundred_steps_beside_torch():
    """The loss curve of a small GPT from the same weights on the same batches, both in float32. On one thread: two of
    them, beside another worker of the suite, wait for each other longer than they compute."""
    fields: dict[str, Any] = {"layers": 2, "channels": 64, "heads": 4, "vocab": 300, "context": 32}
    model = Model("gpt2-4x256", batch=4, time=32, backend="cpu", optimizer="adamw", seed=3, **fields)
    params = leaves(model.params)
    decayed = [p for name, p in params.items() if p.ndim == 2 and name != "positions.weight"]
    others = [p for name, p in params.items() if p.ndim == 1 or name == "positions.weight"]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    rng = np.random.default_rng(0)
    for _ in range(100):
        tokens = rng.integers(0, 30, (4, 33))
        loss = model.forward_backward(tokens[:, :-1], tokens[:, 1:])
        model.update(1e-3, clip=1.0)
        optimizer.zero_grad()
        torch_loss, _ = torch_loss_and_logits(model.config, params, tokens[:, :-1].copy(), tokens[:, 1:].copy())
        torch_loss.backward()
        torch.nn.utils.clip_grad_norm_(list(params.values()), 1.0)
        optimizer.step()
        assert loss == pytest.approx(torch_loss.item(), rel=TOLERANCES["float32 loss curve"])
    assert loss < 4.5  # it learned that only 30 of 300 words occur


@pytest.mark.parametrize("name", ["ops-102k", "gpt2-4x256", "cllm"])
def test_training_twice_gives_the_same_bits(name):
    def trained():
        model = Model(name, batch=4, time=8, backend="cpu", layers=2, vocab=1100, seed=1)
        rng = np.random.default_rng(0)
        targets = (4,) if model.config.readout == "last" else (4, 8)
        losses = []
        for _ in range(5):
            losses.append(model.forward_backward(rng.integers(0, 1100, (4, 8)), rng.integers(0, 1100, targets)))
            model.update(1e-3, clip=1.0)
        return losses, {name: weight.tobytes() for name, weight in model.params.items()}

    assert trained() == trained()


def run_all(natives):
    for native in natives:
        native()


@pytest.mark.parametrize("configuration", some(LARGER, 2, 1), ids=lambda c: c.name)
def test_every_kernel_gives_the_same_bits_every_time(configuration):
    """All calls of one step, each run again and again on the same inputs: a hundred times in `make soak`. Beside models
    of tests/kernels/test_same_bits.py: classifiers, adapters, other norms."""
    model, _, inputs, targets = pair(configuration, "cpu")
    model.feed(inputs, targets)
    model.prepare_update(1e-3, clip=1.0)
    seen = set()
    for call in model.program.calls:
        arrays = model.engine.arguments(call)
        natives = bind_call(call, arrays, cpu)
        kind = (call.title, tuple(sorted(call.dims.items())))
        if kind in seen:
            run_all(natives)
            continue
        seen.add(kind)
        before = {a.name: arrays[a.name].copy() for a in call.arguments if a.mode != "write"}
        results = set()
        most = 100 if SOAK > 1 else 3
        for _ in range(most if arrays[call.arguments[0].name].size < 100_000 else max(3, most // 10)):
            for name, array in before.items():
                arrays[name][...] = array
            run_all(natives)
            results.add(b"".join(arrays[a.name].tobytes() for a in call.writes))
        assert len(results) == 1, call.title


def test_lockstep_names_the_first_call_that_is_wrong(monkeypatch):
    """A bug in one kernel of one block is found where it is, not where it shows."""
    from tapeless.ops.gelu import cpu as gelu

    right = gelu.backward

    def too_large(dx, dy, x):
        return [*right(dx, dy, x), lambda: dx.__imul__(np.float32(1.001))]

    monkeypatch.setattr(gelu, "backward", too_large)
    model, true, inputs, targets = pair(CONFIGURATIONS[1], "cpu")
    wrong = next(difference for difference in lockstep(model, true, inputs, targets) if not difference.ok)
    assert wrong.call.title == "gelu.backward"
    assert wrong.call.section == "blocks.1"  # the first that the backward comes to
    assert wrong.found == pytest.approx(1.001 * wrong.true, rel=1e-5)
    text = str(wrong)
    for part in ("gelu.backward", "blocks.1.mlp.dup", "feed_forward.py:", str(wrong.position)):
        assert part in text


def test_lockstep_sees_a_result_that_is_not_written(monkeypatch):
    from tapeless.ops.residual import cpu as residual

    monkeypatch.setattr(residual, "forward", lambda y, x, branch: [])
    model, true, inputs, targets = pair(CONFIGURATIONS[1], "cpu")
    model.engine.poison()
    wrong = next(difference for difference in lockstep(model, true, inputs, targets) if not difference.ok)
    assert wrong.call.title == "residual.forward"


def test_the_plan_is_what_the_arena_takes():
    model = Model("gpt2-4x256", batch=1, time=64, backend="cpu")
    assert model.plan.precision.name == "float32"
    assert model.engine.memory.nbytes == model.plan.peak_bytes


def test_binding_leaves_nothing_to_look_up():
    """A step is a walk over native calls that take no arguments."""
    model = Model("ops-102k", batch=32, backend="cpu")
    natives = [native for _, bound in model.engine.bound for native in bound]
    assert all(callable(native) for native in natives)
    assert len(natives) < 2 * len(model.program.calls)


def test_a_dtype_that_the_backend_does_not_have():
    with pytest.raises(TapelessError, match=r"float64.*float32"):
        Model("ops-102k", backend="cpu", precision="float64")


@pytest.mark.parametrize("count", [0, -1, 10_000, True, 1.5, "two"])
def test_threads_that_cannot_be_had(count):
    with pytest.raises(TapelessError, match="threads must be"):
        cpu_kernels.set_threads(count)


def test_a_missing_numba_is_named():
    code = (
        "import sys\n"
        "sys.modules['numba'] = None\n"
        "import importlib.util as util\n"
        "found = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'numba' else found(name, *rest)\n"
        "import tapeless\n"
        "try:\n"
        "    tapeless.Model('ops-102k', backend='cpu')\n"
        "except tapeless.TapelessError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Numba" in done.stdout, done.stderr
    assert "pip install" in done.stdout


def test_the_same_kernels_with_products_of_our_own():
    """Where MKL is not installed."""
    code = (
        "from tapeless.kernels.cpu import dispatch\n"
        "dispatch._installed = lambda name: None\n"
        "import numpy as np, tapeless\n"
        "assert dispatch.mkl() is None\n"
        "made = dict(batch=2, time=70, layers=1, vocab=1100, context=80)\n"
        "ours = tapeless.Model('gpt2-4x256', backend='cpu', **made)\n"
        "true = tapeless.Model('gpt2-4x256', backend='reference', **made)\n"
        "tokens = np.random.default_rng(0).integers(0, 1100, (2, 71))\n"
        "a = ours.forward_backward(tokens[:, :-1], tokens[:, 1:])\n"
        "b = true.forward_backward(tokens[:, :-1], tokens[:, 1:])\n"
        "assert abs(a - b) < 1e-5, (a, b)\n"
        "for name in ours.grads:\n"
        "    error = np.linalg.norm(ours.grads[name] - true.grads[name]) / np.linalg.norm(true.grads[name])\n"
        "    assert error < 1e-5, (name, error)\n"
        "print(dispatch.gemm_version())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "built-in GEMM" in done.stdout


def test_kernels_from_the_cache_give_the_bits_of_those_just_compiled(tmp_path):
    """The first run of a machine compiles, every later one reads from disk: both must train the same model."""
    code = (
        "import hashlib\n"
        "from tapeless.backends.backend import backend_named, run_call\n"
        "from tapeless.check.examples import examples_of\n"
        "from tapeless.check.ops import call_alone, narrowed\n"
        "from tapeless.kernels.cpu import compilations\n"
        "made = []\n"
        "for name, direction in (('layernorm', 'backward'), ('gelu', 'backward'), ('attention', 'forward')):\n"
        "    call, arrays = call_alone(name, direction, examples_of(name)[0])\n"
        "    arrays = narrowed(call, arrays, 'float32')\n"
        "    run_call(call, arrays, backend_named('cpu'))\n"
        "    made += [arrays[argument.name] for argument in call.writes]\n"
        "print([entry.cached for entry in compilations if not entry.kernel.startswith('cpu.')])\n"
        "print(hashlib.sha256(b''.join(array.tobytes() for array in made)).hexdigest())\n"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    answers = []
    for cached in (False, True):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        states, bits = done.stdout.splitlines()
        assert states == str([cached] * 3)
        answers.append(bits)
    assert answers[0] == answers[1]


def test_an_op_that_no_model_uses_is_checked_alone(monkeypatch):
    """On one thread, for which the kernels are there; to compile them for threads too takes far longer."""
    from tapeless.check.ops import ops_alone
    from tapeless.ops.sgd import cpu as sgd

    with on_threads(1):
        right = list(ops_alone("cpu"))
        assert {difference.call.op for difference in right} == set(OPS)
        assert all(difference.ok for difference in right)
        monkeypatch.setattr(sgd, "forward", lambda *arguments, scratch: [])
        wrong = [difference.call.op for difference in ops_alone("cpu") if not difference.ok]
    assert set(wrong) == {"sgd"}


def test_an_op_without_a_kernel_is_named(monkeypatch):
    from tapeless.ops.tanh import cpu as tanh

    monkeypatch.delattr(tanh, "backward")
    with pytest.raises(TapelessError, match="tanh has no backward on the cpu backend"):
        Model("cllm", batch=1, time=4, backend="cpu")


@pytest.mark.skipif(cpu_kernels.cores() < 2, reason="needs two cores")
def test_what_is_bound_later_is_bound_as_the_model_was_made():
    """Calls that a walk runs singly, the readout and the decoder, on the threads and by the GEMM library of then: the
    memory they pack in was planned for those."""
    with cpu_kernels.using_gemm_library("own"), cpu_kernels.using_threads(1):
        model, other = (Model("gpt2-4x256", batch=1, time=32, layers=1, context=32, seed=1) for _ in range(2))
        tokens = np.arange(32)[None]
        scores, written = other.logits(tokens), other.generate([1, 2], 3, seed=0)
    library = "mkl" if cpu_kernels.mkl() else "own"
    with cpu_kernels.using_gemm_library(library), cpu_kernels.using_threads(2):
        assert len(list(model.trace(tokens, tokens))) > 20
        assert np.array_equal(model.logits(tokens), scores)
        assert model.generate([1, 2], 3, seed=0) == written
        assert (cpu_kernels.threads(), cpu_kernels.gemm_library()) == (2, library)
