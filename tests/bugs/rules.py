"""By what rules other projects accept a gradient, as they publish them, applied to ours.

Each rule is given a case: a small model with the loss and the gradients that the program under test computes, and, for
rules that compare with known values, those of the healthy program (in float64, or on the cpu backend where that is
under test). It says whether it would accept. The numbers are the projects' own; what had to be assumed stands in each
docstring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from tapeless import lowering
from tapeless.check.configurations import Configuration, small
from tapeless.model import Model
from tapeless.models.config import Optimizer
from tapeless.ops.contract import Array
from tapeless.program import builder, verify
from tapeless.program.call import Program
from tests.bugs.planting import Bug, replaced, together
from tests.check.steps import Tensors

STEPS = 10  # updates of llm.c's test
ROUNDING = {"float64": 1e-12, "float32": 1e-6}  # what changes by less has not changed


@dataclass(frozen=True)
class Values:
    """What a program computes on a case: in a rule that compares, found beside expected."""

    loss: float
    scores: Array
    gradients: Tensors
    losses: tuple[float, ...]  # before each of the updates


@dataclass(frozen=True)
class Case:
    configuration: Configuration
    backend: str
    weights: Tensors
    inputs: Array
    targets: Array

    def model(self, dtype: str) -> Model:
        c = self.configuration
        optimizer = Optimizer("adamw", beta1=0.9, beta2=0.999, eps=1e-8, decay=0.01)
        made = {"batch": c.batch, "time": c.time, **c.fields}
        model = Model(c.preset, backend=self.backend, precision=dtype, optimizer=optimizer, **made)
        for name, weight in self.weights.items():
            model.params[name][...] = weight
        return model

    def gradients(self, dtype: str) -> tuple[Model, Tensors]:
        model = self.model(dtype)
        model.forward_backward(self.inputs, self.targets)
        return model, {name: gradient.copy() for name, gradient in model.grads.items()}

    def differentiated(self, model: Model) -> Tensors:
        """The weights that a difference can be taken by. Where the loss takes the target's embedding for a constant, a
        difference moves it all the same: it says nothing about that table."""
        constant = "tokens.weight" if model.config.loss == "squared_error" else None
        return {name: weight for name, weight in model.params.items() if name != constant}

    def loss(self, model: Model) -> float:
        return model.loss(self.inputs, self.targets)

    def values(self, dtype: str) -> Values:
        model, gradients = self.gradients(dtype)
        scores = model.logits(self.inputs)
        losses = []
        for _ in range(STEPS):
            losses.append(model.forward_backward(self.inputs, self.targets))
            model.update(1e-4)
        return Values(losses[0], scores, gradients, tuple(losses))


def case_of(configuration: Configuration, backend: str = "reference") -> Case:
    rng = np.random.default_rng(configuration.seed)
    model = configuration.model("float64")
    inputs, targets = configuration.batch_of(rng, model)
    configuration.scramble(rng, model)
    return Case(configuration, backend, {name: w.copy() for name, w in model.params.items()}, inputs, targets)


# Seeds at which every rule accepts the healthy program: no ReLU is so near its kink that a difference steps over it.
CASES = tuple(
    Configuration(name, name, small(name), batch=2, time=4, seed=seed)
    for name, seed in (("gpt2-4x256", 1), ("ops-102k", 2), ("cllm", 3), ("sunfish", 4), ("qwen3-0.6b", 5))
)


def torch_gradcheck(case: Case, expected: Values) -> bool:
    """torch.autograd.gradcheck with its defaults: float64, central differences with eps=1e-6, every element within
    atol=1e-5 + rtol=1e-3 · |numerical|. Assumed: the function is the model's loss, the inputs its weights."""
    model, gradients = case.gradients("float64")
    return all(
        np.allclose(gradients[name], _differences(case, model, weight, 1e-6), rtol=1e-3, atol=1e-5)
        for name, weight in case.differentiated(model).items()
    )


def torch_gradcheck_fast(case: Case, expected: Values) -> bool:
    """The same with fast_mode=True: per input one random direction u, uniform in [0, 1) and of length 1; atol grows
    with Σ u. For one output, as here, the output's own direction is 1."""
    model, gradients = case.gradients("float64")
    rng = np.random.default_rng(0)
    for name, weight in case.differentiated(model).items():
        u = rng.uniform(size=weight.shape)
        u /= np.linalg.norm(u)
        numerical = _difference(case, model, {name: u}, 1e-6)
        if not np.allclose((gradients[name] * u).sum(), numerical, rtol=1e-3, atol=1e-5 * u.sum()):
            return False
    return True


def jax_check_grads(case: Case, expected: Values, dtype: str = "float64") -> bool:
    """jax.test_util.check_grads, order 1, mode "rev": one normal direction over all arguments together, central
    differences with eps=1e-4, and the two inner products within atol = rtol = 1e-5 in float64, 2e-3 in float32."""
    tolerance = {"float64": 1e-5, "float32": 2e-3}[dtype]
    model, gradients = case.gradients(dtype)
    rng = np.random.RandomState(0)
    tangents = {name: rng.randn(*weight.shape).astype(dtype) for name, weight in case.differentiated(model).items()}
    cotangent = rng.randn()
    found = sum(float((gradients[name] * tangent).sum()) for name, tangent in tangents.items())
    true = _difference(case, model, tangents, 1e-4)
    return bool(np.allclose(found * cotangent, true * cotangent, rtol=tolerance, atol=tolerance))


def jax_check_grads_float32(case: Case, expected: Values) -> bool:
    """The same in float32, JAX's own type by default."""
    return jax_check_grads(case, expected, "float32")


def llm_c(case: Case, expected: Values) -> bool:
    """llm.c's test_gpt2.c: float32 beside values from PyTorch; scores and loss within 1e-2, every gradient within 2e-2
    (absolute), then the losses of ten updates by AdamW (lr 1e-4, decay 0.01) within 1e-2. Assumed: the healthy
    program in place of PyTorch, and our small model in place of GPT-2 124M. The comparisons are the file's own, by
    which NaN passes for a score but not for a gradient."""
    found = case.values("float32")
    scores = not (np.abs(found.scores - expected.scores) >= 1e-2).any()
    loss = not abs(found.loss - expected.loss) >= 1e-2
    gradients = all((np.abs(found.gradients[name] - true) <= 2e-2).all() for name, true in expected.gradients.items())
    losses = all(abs(a - b) < 1e-2 for a, b in zip(found.losses, expected.losses, strict=True))
    return bool(scores and loss and gradients and losses)


def float32_differences(case: Case, expected: Values) -> bool:
    """What course notes teach, done in float32: central differences with a step of 1e-3 on every weight, and a relative
    error of at most 1e-2. Taken per tensor, ‖a − n‖ / max(‖a‖, ‖n‖): element by element the rounding of float32 losses
    alone would refuse every program."""
    model, gradients = case.gradients("float32")
    for name, weight in case.differentiated(model).items():
        found, numerical = gradients[name], _differences(case, model, weight, 1e-3)
        scale = max(float(np.linalg.norm(found)), float(np.linalg.norm(numerical)), 1e-6)
        if not np.linalg.norm(found - numerical) <= 1e-2 * scale:
            return False
    return True


def _differences(case: Case, model: Model, weight: Array, eps: float) -> Array:
    """Central differences of the loss by every element."""
    flat, result = weight.reshape(-1), np.empty(weight.size)
    for index, kept in enumerate(flat.copy()):
        flat[index] = kept + eps
        above = case.loss(model)
        flat[index] = kept - eps
        result[index] = (above - case.loss(model)) / (2 * eps)
        flat[index] = kept
    return result.reshape(weight.shape)


def _difference(case: Case, model: Model, direction: Tensors, eps: float) -> float:
    """One central difference, along a direction."""
    losses = []
    for sign in (1, -1):
        for name, along in direction.items():
            model.params[name][...] = case.weights[name].astype(along.dtype) + along.dtype.type(sign * eps) * along
        losses.append(case.loss(model))
    for name in direction:
        model.params[name][...] = case.weights[name]
    return (losses[0] - losses[1]) / (2 * eps)


Rule = Callable[[Case, Values], bool]
RULES: dict[str, Rule] = {
    "torch gradcheck": torch_gradcheck,
    "torch gradcheck, fast": torch_gradcheck_fast,
    "JAX check_grads, float64": jax_check_grads,
    "JAX check_grads, float32": jax_check_grads_float32,
    "llm.c": llm_c,
    "differences in float32": float32_differences,
}
FLOAT64 = ("torch gradcheck", "torch gradcheck, fast", "JAX check_grads, float64")  # which no float32 kernel can take


@dataclass(frozen=True)
class Judged:
    """Which rules refuse a planted bug in any of the small models that it changes; where it changes none, none can."""

    bug: Bug
    changed: tuple[str, ...]
    refused: dict[str, bool]


def judge_all(bugs: Iterable[Bug]) -> Iterator[Judged]:
    healthy = {
        backend: [(case, case.values(dtype)) for case in (case_of(each, backend) for each in CASES)]
        for backend, dtype in (("reference", "float64"), ("cpu", "float32"))
    }
    for bug in bugs:
        backend = "cpu" if bug.where.endswith("on cpu") else "reference"
        yield _judge(bug, healthy[backend], "float32" if backend == "cpu" else "float64")


def _judge(bug: Bug, healthy: list[tuple[Case, Values]], dtype: str) -> Judged:
    with bug.plant(), unverified(), np.errstate(all="ignore"):
        changed = [pair for pair in healthy if _change(*pair, dtype) > ROUNDING[dtype]]
        asked = {name: rule for name, rule in RULES.items() if dtype == "float64" or name not in FLOAT64}
        refused = {name: any(not _accepts(rule, *pair) for pair in changed) for name, rule in asked.items()}
    names = tuple(case.configuration.name for case, _ in changed)
    return Judged(bug, names, dict.fromkeys(RULES, False) | refused)


def _accepts(rule: Rule, case: Case, expected: Values) -> bool:
    """A program that cannot run is refused by whoever runs it."""
    try:
        return rule(case, expected)
    except Exception:
        return False


def _change(case: Case, expected: Values, dtype: str) -> float:
    """How much anything that a rule could look at differs from the healthy program's; infinite where it is not finite
    or does not run."""
    try:
        found = case.values(dtype)
    except Exception:
        return np.inf
    pairs = [(found.gradients[name], true) for name, true in expected.gradients.items()]
    pairs += [(found.scores, expected.scores), (np.array(found.losses), np.array(expected.losses))]
    most = max(float(np.abs(a - b).max()) for a, b in pairs)
    return most if np.isfinite(most) else np.inf


@contextmanager
def unverified() -> Iterator[None]:
    """Other projects have no verifier: a list that ours refuses is run as it is."""
    silent = replaced(verify, "check_call_meanings", lambda call: None)
    unproven = replaced(lowering, "verify_lowered", lambda lowered: None)
    with together(replaced(builder, "verify", _partners_by_buffers), silent, unproven)():
        yield


def _partners_by_buffers(program: Program) -> tuple[int | None, ...]:
    """Of each backward call the last forward on the same buffers that has none yet; nothing is proven."""
    free = [index for index, call in enumerate(program.calls) if call.phase == "forward"]
    partners: list[int | None] = []
    for call in program.calls:
        shared = {argument.name: argument.view for argument in call.reads}
        fits = [
            index
            for index in free
            if call.phase == "backward"
            and program.calls[index].op == call.op
            and all(shared.get(a.name, a.view) == a.view for a in program.calls[index].arguments)
        ]
        partners.append(fits[-1] if fits else None)
        free = [index for index in free if index not in fits[-1:]]
    return tuple(partners)
