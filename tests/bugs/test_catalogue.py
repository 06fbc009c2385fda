"""The catalogue of bugs: each is caught, nearly all are named, nothing is left behind, and the healthy pass."""

import json
import os
import re
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import typer

import tapeless.generate as generating
from tapeless import Model, model
from tapeless.backends.backend import backend_named
from tapeless.check import everything
from tapeless.check.configurations import CONFIGURATIONS
from tapeless.check.definitions import DEFINITIONS
from tapeless.check.everything import BugVerdict, run_catalogue
from tapeless.check.examples import FURTHER, examples_of
from tapeless.check.finding import Finding, difference
from tapeless.check.ops import call_alone, check_alone, check_backend_alone
from tapeless.check.planted import PLANTED
from tapeless.cli import bugs as command
from tapeless.generate import Decoder
from tapeless.models import blocks, decoding, parts, transformer
from tapeless.models.parts import affine, attention
from tapeless.ops import OPS
from tapeless.ops.dropout import cpu as dropout_on_cpu
from tapeless.program.builder import Builder
from tapeless.tasks.data import batches
from tapeless.train.loop import Trainer
from tapeless.train.schedules import Schedule
from tests.bugs import planting
from tests.bugs.catalogue import BUGS
from tests.bugs.planting import Bug
from tests.bugs.races import BUGS as RACES
from tests.bugs.rules import unverified
from tests.check.everything import check_everything
from tests.check.steps import PlainOptimizer, decays, small_model
from tests.check.training import plain_rate
from tests.check.walked_models import WALKED, check_program, check_walk
from tests.random_cases import some

cpu = backend_named("cpu")

NAMED = 0.95  # the least share that the report names rightly
PATCHED = (
    Builder,
    Model,
    model,
    Decoder,
    generating,
    Trainer,
    Schedule,
    batches,
    batches.Batches,
    blocks,
    parts,
    transformer,
    decoding,
    affine,
    affine.Adapter,
    attention,
    dropout_on_cpu,
    *OPS.values(),
)


def snapshot():
    return [dict(vars(owner)) for owner in PATCHED]


def restored(before):
    """Everything is, object for object, what it was."""
    pairs = zip(snapshot(), before, strict=True)
    return all(now.keys() == was.keys() and all(now[name] is was[name] for name in was) for now, was in pairs)


def named(name):
    return next(bug for bug in BUGS if bug.name == name)


# The catalogue


SHARE = 1 if os.environ.get("TAPELESS_SOAK") else 24  # `make bugs`, and `make soak`, take every one


def test_every_bug_is_caught_and_nearly_all_are_named():
    """One test, because the catalogue takes its time: two minutes of one core, of which `make test` takes a share."""
    before = snapshot()
    alone = len(os.sched_getaffinity(0)) == 1  # then no two threads meet
    verdicts = list(run_catalogue([bug for bug in BUGS[::SHARE] if not (alone and bug in RACES)], check_everything))
    assert [verdict.bug.name for verdict in verdicts if not verdict.caught] == []
    wrong = [verdict for verdict in verdicts if not verdict.named]
    assert len(wrong) <= (1 - NAMED) * len(BUGS), [(v.bug.name, v.bug.where, v.finding) for v in wrong]
    # Which docs/bugs.md owns up to.
    assert {verdict.bug.name for verdict in wrong} <= {"stream-dropped", "branch-dropped"}
    # Each checker is the first to catch something: one that never were would be there for nothing.
    counted = Counter(verdict.finding.checker for verdict in verdicts if verdict.finding)
    named_by = {"definition", "complex step", "reads", "adding", "verifier", "steps", "plain model", "decoding"}
    assert set(counted) <= named_by | {"lockstep", "range", "threads"}
    assert SHARE > 1 or set(counted) == named_by | {"lockstep", "range", "threads"}
    assert restored(before)


def test_there_are_enough_bugs_in_every_room():
    assert len(BUGS) >= 60
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    assert {bug.where.split()[0] for bug in BUGS} >= set(OPS) - {"positions_at"} | {
        "loop",
        "schedule",
        "batches",
        "update",
    }


def test_a_bug_says_what_it_is():
    for bug in BUGS:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", bug.name)
        for sentence in (bug.what, bug.seen, bug.public or "Nowhere known."):
            assert sentence.endswith("."), bug.name
            assert "|" not in sentence, bug.name  # it stands in a table
            assert 10 < len(sentence) <= 160, bug.name


def test_what_is_planted_is_taken_out_again():
    before = snapshot()
    for bug in BUGS:
        with bug.plant():
            assert bug.where.endswith("on cpu") or not restored(before), bug.name
        assert restored(before), bug.name


def test_also_where_something_is_raised_meanwhile():
    right = OPS["linear"].backward

    def fail():
        with named("bias-averaged").plant():
            assert OPS["linear"].backward is not right
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert OPS["linear"].backward is right


def test_cpu_kernels_come_back():
    from tapeless.ops.linear import cpu as kernels

    right = kernels.backward
    with named("cpu-bfloat16-reduction").plant():
        assert kernels.backward is not right
    assert kernels.backward is right


def test_two_plants_on_one_thing_both_hold():
    seen = []
    owner = SimpleNamespace(f=lambda: seen.append("right"))

    def noting(word):
        def wrapper(right):
            seen.append(word)
            right()

        return wrapper

    both = planting.together(planting.around(owner, "f", noting("inner")), planting.around(owner, "f", noting("outer")))
    with both():
        owner.f()
    assert seen == ["outer", "inner", "right"]


# The checkers, on healthy code and on spoilt


def test_the_healthy_program_passes_everything(monkeypatch):
    """On threads a third of the ops, and all of them in `make soak`: each is compiled twice more for it, which takes
    longer than all the rest. What the others compute on threads is held to the reference in whole models. Over the
    range of float32 each op has a test of its own: tests/check/test_ranges.py."""
    ranged: list[str] = []

    def noted(name, backend):
        ranged.append(name)
        return iter(())

    monkeypatch.setattr(everything, "check_ranges", noted)
    shared = some(list(OPS), 3, 2)
    assert list(check_everything(trusted_on_threads=[name for name in OPS if name not in shared])) == []
    assert ranged == list(OPS)


@pytest.mark.parametrize("configuration", some(CONFIGURATIONS, 3, 1), ids=lambda configuration: configuration.name)
def test_every_configuration_walks(configuration):
    assert [*check_program(configuration), *check_walk(configuration)] == []


def test_what_is_walked_has_every_choice():
    made = [configuration.model("float64").preset.values() for configuration in WALKED]
    for field in ("placement", "activation", "positions", "readout", "loss", "causal", "recompute", "tied"):
        assert len({values[field] for values in made}) > 1, field
    assert {values["activation"] for values in made} == {"gelu", "relu", "swiglu", "tanh"}


def test_every_op_has_a_definition_and_every_example_is_of_an_op():
    assert set(DEFINITIONS) == set(OPS)
    assert set(FURTHER) <= set(OPS)


def test_definitions_share_no_code_with_ops():
    for name, definition in DEFINITIONS.items():
        assert definition.__module__ == "tapeless.check.definitions", name
    import tapeless.check.definitions as module

    for value in vars(module).values():
        assert not getattr(value, "__module__", "").startswith("tapeless.ops.") or value.__module__.endswith("contract")


@pytest.mark.parametrize("name", OPS)
def test_an_output_that_is_off_by_a_little_is_refused(name):
    """1e-9 of its size, of a whole number 1, in one element of each forward output: less than a training would show."""
    for output in DEFINITIONS[name](**examples_of(name)[0]):

        def nearly(right, *args, _output=output, **options):
            right(*args, **options)
            array = args[list(OPS[name].SPEC.forward.writes).index(_output)]
            array.reshape(-1)[-1] += 1 if array.dtype.kind == "i" else 1e-9 * max(1.0, np.abs(array).max())

        with planting.around(OPS[name], "forward", nearly)():
            assert any(f.place == name and f.checker == "definition" for f in check_alone(name)), output


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if op.SPEC.backward])
def test_a_gradient_that_is_off_by_a_little_is_refused(name):
    signature = OPS[name].SPEC.backward
    for index, output in enumerate(signature.writes):
        if output in ("logits", "loss"):
            continue

        def nearly(right, *args, _index=index, **options):
            right(*args, **options)
            if args[_index] is not None:
                args[_index].reshape(-1)[0] += 1e-9 * max(1.0, np.abs(args[_index]).max())

        with planting.around(OPS[name], "backward", nearly)():
            assert any(f.checker == "complex step" and output in f.detail for f in check_alone(name)), output


def test_a_kernel_that_leaves_something_unwritten_is_refused():
    def half(right, y, x):
        y[:2] = np.tanh(x[:2])

    with planting.around(OPS["tanh"], "forward", half)(), np.errstate(all="ignore"):
        assert any(f.checker == "definition" for f in check_alone("tanh"))


def test_a_kernel_that_raises_is_a_finding():
    def broken(*args, **options):
        raise IndexError("no such row")

    with planting.replaced(OPS["linear"], "forward", broken)():
        (found,) = check_alone("linear")
    assert (found.place, found.checker) == ("linear", "definition")
    assert "IndexError: no such row" in found.detail


def test_calls_alone_add_where_they_can():
    example = examples_of("linear")[0]
    written, _ = call_alone("linear", "backward", example)
    added, arrays = call_alone("linear", "backward", example, adding=True)
    assert {argument.mode for argument in written.writes} == {"write"}
    assert {argument.mode for argument in added.writes} == {"add"}
    assert all(np.isfinite(array).all() for array in arrays.values())


def test_a_backend_that_changes_what_it_reads_is_refused():
    with named("cpu-gradient-overwritten").plant():
        found = list(check_backend_alone("gelu", cpu))
    assert {(finding.place, finding.checker) for finding in found} == {("gelu on cpu", "reads")}


def test_differences_look_at_shapes_and_nan_too():
    assert difference(np.ones(3), np.ones(3)) is None
    assert difference(np.ones((3, 1)), np.ones(3)) is not None
    assert difference(np.array([np.nan]), np.ones(1)) is not None
    assert difference(np.ones(3) * (1 + 1e-11), np.ones(3)) is not None
    assert difference(np.zeros(0), np.zeros(0)) is None


def test_the_walk_names_the_call_and_its_line():
    with named("residual-lost-in-pre-norm").plant(), unverified():
        found = next(finding for c in WALKED for finding in check_walk(c))
    assert found.place == "layernorm in norm"
    assert "layernorm.backward at norm.py:" in found.detail


def test_decay_is_for_matrices():
    model = small_model("adamw")
    expected = {name for name, weight in model.params.items() if weight.ndim == 2} - {"positions.weight"}
    assert {name for name, weight in model.params.items() if decays(name, weight)} == expected


def test_plain_adam_is_torch_s():
    import torch

    from tapeless.models.config import Optimizer

    rng = np.random.default_rng(0)
    weights = {"up.weight": rng.normal(size=(3, 2)), "up.bias": rng.normal(size=2)}
    own = PlainOptimizer(Optimizer("adamw", decay=0.1), weights, small_model(None).config)
    tensors = {name: torch.tensor(weight, requires_grad=True) for name, weight in weights.items()}
    groups = [{"params": [tensors["up.weight"]], "weight_decay": 0.1}, {"params": [tensors["up.bias"]]}]
    peer = torch.optim.AdamW(groups, weight_decay=0.0, eps=1e-8)
    for lr in (0.1, 0.03, 0.2):
        gradients = {name: rng.normal(size=weight.shape) for name, weight in weights.items()}
        for group in peer.param_groups:
            group["lr"] = lr
        for name, tensor in tensors.items():
            tensor.grad = torch.tensor(gradients[name])
        peer.step()
        own.update(gradients, lr, None)
        for name, tensor in tensors.items():
            assert difference(own.weights[name], tensor.detach().numpy()) is None


def test_plain_rates_by_hand():
    cosine = Schedule("cosine", lr=1.0, steps=6, warmup=2, floor=0.5)
    rates = [plain_rate(cosine, step) for step in range(8)]
    middle = 0.5 + 0.25 * (1 + np.sqrt(0.5)), 0.75, 0.5 + 0.25 * (1 - np.sqrt(0.5))
    assert rates == pytest.approx([1 / 3, 2 / 3, 1.0, *middle, 0.5, 0.5])


# The command


def told(monkeypatch, json, *findings):
    made = [Bug(f"bug-{n}", "linear", "What.", "Seen.", planting.together()) for n in range(len(findings))]
    found = [BugVerdict(bug, finding) for bug, finding in zip(made, findings, strict=True)]
    monkeypatch.setattr(command, "run_catalogue", lambda bugs, check: iter(found))
    return command.run_bugs(json, made)


def test_the_command_in_json(monkeypatch, capsys):
    told(monkeypatch, True, Finding("linear", "definition", "off"), Finding("gelu", "definition", "off"))
    document = json.loads(capsys.readouterr().out)
    assert {key: document[key] for key in ("bugs", "caught", "named", "missed")} == {
        "bugs": 2,
        "caught": 2,
        "named": 1,
        "missed": [],
    }
    assert [row["place"] for row in document["report"]] == ["linear", "gelu"]


def test_the_command_fails_when_one_gets_past(monkeypatch, capsys):
    with pytest.raises(typer.Exit) as stopped:
        told(monkeypatch, True, Finding("linear", "definition", "off"), None)
    assert stopped.value.exit_code == 1
    assert json.loads(capsys.readouterr().out)["missed"] == ["bug-1"]


def test_the_command_for_people(monkeypatch, capsys):
    with pytest.raises(typer.Exit):
        told(monkeypatch, False, Finding("linear", "definition", "off"), None)
    printed = capsys.readouterr().out
    assert "missed" in printed
    assert "1 of 2 bugs are caught" in printed
    told(monkeypatch, False, Finding("linear", "definition", "off"))
    assert "All 1 bugs are caught" in capsys.readouterr().out


def test_the_command_plants_what_the_lessons_plant(monkeypatch):
    """They are in the package, and first in the catalogue."""
    caught = Finding("linear", "definition", "off")
    monkeypatch.setattr(command, "run_catalogue", lambda bugs, check: (BugVerdict(bug, caught) for bug in bugs))
    planted = tuple(verdict.bug for verdict in command.run_bugs(json=True))
    assert planted == PLANTED == BUGS[:12]
