# ruff: noqa: E501 -- one trial, one line
"""Is the doctor right? Trainings whose true cause is known by construction, and what it says of each first.

DEVELOPMENT is what the rules of the doctor were tuned on. FIRST was written down before the rules were: 55 of 57 named
first, and one healthy run told that it overfits. With that mended FIRST was a list to tune on too, and BLIND was
written down: other seeds, sizes and data once more. docs/doctor.md says how blind it was. Once its diagnoses have been
seen and a rule is changed, it is blind no longer, and another list is due.

A trial counts only if its cure, which undoes what was done and nothing else, ends with a held-out loss at least 5 %
lower: else the trouble put there was none. That is measured without asking the doctor.
"""

from __future__ import annotations

from typing import Any

from tools.doctor.runs import Trial

HIGH, LOW, FEW = "learning rate too high", "learning rate too low", "too few updates"
VANISHING, EXPLODING, DEAD = "vanishing gradients", "exploding gradients", "dead units"
OVERFITTING, NOTHING, CLIPPING, HEALTHY = "overfitting", "nothing learned", "clipping", "healthy"


# How the operations were learned when these were written down.
FOUNDING: dict[str, Any] = {"optimizer": "adam", "lr": 1e-3, "schedule": "constant", "warmup": 0, "decay": 0.01}


def operations(name: str, cause: str, data: str = "operations", damage: str = "", **fields: Any) -> Trial:
    return _trial(name, cause, "ops-102k", data, damage, {"steps": 400, **FOUNDING}, fields)


def text(name: str, cause: str, data: str, **fields: Any) -> Trial:
    return _trial(name, cause, "gpt2-4x256", data, "", {"steps": 300, "batch": 8, "time": 32, "context": 32}, fields)


def nearest(name: str, cause: str, data: str, **fields: Any) -> Trial:
    return _trial(name, cause, "cllm", data, "", {"steps": 300, "batch": 8, "time": 32, "context": 32}, fields)


def signal(name: str, cause: str, data: str = "signal", damage: str = "", **fields: Any) -> Trial:
    return _trial(name, cause, "sunfish", data, damage, {"steps": 250, "batch": 8, "time": 64}, fields)


MODEL = ("layers", "channels", "heads", "context", "placement", "activation", "optimizer")


def _trial(
    name: str, cause: str, preset: str, data: str, damage: str, usual: dict[str, Any], fields: dict[str, Any]
) -> Trial:
    cure = fields.pop("cure", {})
    chosen = {"eval_every": max(5, fields.get("steps", usual["steps"]) // 8), **usual, **fields}
    model = {key: value for key, value in chosen.items() if key in MODEL}
    settings = {key: value for key, value in chosen.items() if key not in MODEL}
    return Trial(name, cause, preset, data, model, settings, cure, damage)


SMALL: dict[str, Any] = {"layers": 2, "channels": 32, "heads": 4}
TINY: dict[str, Any] = {"layers": 2, "channels": 16, "heads": 2}
GOOD: dict[str, Any] = {"lr": 1e-3}
ARGPARSE, TARFILE, TYPING, DIFFLIB = "text/argparse.py", "text/tarfile.py", "text/typing.py", "text/difflib.py"

DEVELOPMENT = [
    operations("lr 0.1", HIGH, **SMALL, lr=0.1, cure=GOOD),
    operations("lr 0.01", HIGH, **SMALL, lr=0.01, cure=GOOD),
    operations("lr 0.003", HEALTHY, **SMALL, lr=3e-3, steps=500),
    operations("lr 0.001", HEALTHY, **SMALL, lr=1e-3, steps=600),
    operations("lr 1e-4", LOW, **SMALL, lr=1e-4, cure=GOOD),
    operations("lr 1e-5", LOW, **SMALL, lr=1e-5, cure=GOOD),
    operations("sgd 1e-3", LOW, **SMALL, optimizer="sgd", lr=1e-3, cure={"lr": 0.1}),
    operations("sgd 0.1, 300 steps", FEW, **SMALL, optimizer="sgd", lr=0.1, steps=300, cure={"steps": 1500}),
    operations("momentum 1e-3", LOW, **SMALL, optimizer="momentum", lr=1e-3, cure={"lr": 0.02}),
    operations("sgd 10", HIGH, **SMALL, optimizer="sgd", lr=10.0, cure={"lr": 0.1}),
    operations("shuffled", NOTHING, "operations/shuffled", **SMALL, lr=1e-3, cure={"data": "operations"}),
    operations("100 examples", OVERFITTING, "operations/100", **SMALL, lr=1e-3, cure={"data": "operations"}),
    operations("24 post", VANISHING, layers=24, channels=32, lr=1e-3, steps=300, cure={"placement": "pre"}),
    operations("24 post, warm-up", VANISHING, layers=24, channels=32, warmup=100, lr=1e-3, steps=300, cure={"placement": "pre"}),
    operations("24 post, 1e-4", FEW, layers=24, channels=32, warmup=100, lr=1e-4, steps=300, cure={"steps": 800}),
    operations("24 pre", FEW, layers=24, channels=32, placement="pre", lr=1e-3, steps=200, cure={"steps": 400}),
    operations("12 post", VANISHING, layers=12, channels=32, lr=1e-3, steps=300, cure={"placement": "pre"}),
    operations("12 pre, 0.1", HIGH, layers=12, channels=32, placement="pre", lr=0.1, steps=200, cure=GOOD),
    operations("12 pre, 1e-5", LOW, layers=12, channels=32, placement="pre", lr=1e-5, steps=300, cure=GOOD),
    operations("16 post, sgd", VANISHING, layers=16, channels=32, optimizer="sgd", lr=0.05, steps=300, cure={"placement": "pre"}),
    operations("large weights", EXPLODING, damage="saturated", layers=12, channels=32, activation="tanh", optimizer="sgd", lr=0.05, steps=300),
    operations("dead", DEAD, damage="dead", **SMALL, lr=1e-3),
    operations("50 updates", FEW, **SMALL, lr=1e-3, steps=50, cure={"steps": 500}),
    text("lr 1", HIGH, ARGPARSE, **SMALL, lr=1.0, cure={"lr": 3e-3}),
    text("lr 0.1", HIGH, ARGPARSE, **SMALL, lr=0.1, cure={"lr": 3e-3}),
    text("lr 0.03", HIGH, ARGPARSE, **SMALL, lr=0.03, cure={"lr": 3e-3}),
    text("lr 0.003", HEALTHY, ARGPARSE, **SMALL, lr=3e-3),
    text("lr 0.001", HEALTHY, ARGPARSE, **SMALL, lr=1e-3),
    text("lr 1e-4", LOW, ARGPARSE, **SMALL, lr=1e-4, cure={"lr": 3e-3}),
    text("lr 1e-5", LOW, ARGPARSE, **SMALL, lr=1e-5, cure={"lr": 3e-3}),
    text("30 updates", FEW, ARGPARSE, **SMALL, lr=3e-3, steps=30, cure={"steps": 300}),
    text("noise", NOTHING, "text/noise", **SMALL, lr=3e-3, cure={"data": ARGPARSE}),
    text("this.py", OVERFITTING, "text/this.py", **SMALL, lr=3e-3, steps=400, cure={"data": ARGPARSE}),
    text("sgd 0.1", HEALTHY, ARGPARSE, **SMALL, optimizer="sgd", lr=0.1),
    text("sgd 1e-3", LOW, ARGPARSE, **SMALL, optimizer="sgd", lr=1e-3, cure={"lr": 0.1}),
    text("sgd, clip 1e-3", CLIPPING, ARGPARSE, **SMALL, optimizer="sgd", lr=0.1, clip=1e-3, cure={"clip": 1.0}),
    nearest("lr 0.1", HIGH, ARGPARSE, **SMALL, lr=0.1, cure={"lr": 3e-3}),
    nearest("lr 0.003", HEALTHY, ARGPARSE, **SMALL, lr=3e-3),
    nearest("lr 1e-6", LOW, ARGPARSE, **SMALL, lr=1e-6, cure={"lr": 3e-3}),
    signal("lr 0.3", HIGH, **TINY, lr=0.3, cure={"lr": 1.5e-3}),
    signal("lr 0.03", HIGH, **TINY, lr=0.03, cure={"lr": 1.5e-3}),
    signal("lr 0.0015", HEALTHY, **TINY, lr=1.5e-3),
    signal("lr 1e-6", LOW, **TINY, lr=1e-6, cure={"lr": 1.5e-3}),
    signal("noise", NOTHING, "signal/noise", **TINY, lr=1.5e-3, cure={"data": "signal"}),
]  # fmt: skip

S: dict[str, Any] = {"seed": 11}
T: dict[str, Any] = {"seed": 12}
U: dict[str, Any] = {"seed": 13}
FIRST = [
    # The learning rate is too high.
    operations("as shipped, lr 0.1", HIGH, **S, lr=0.1, cure=GOOD),
    operations("as shipped, lr 0.01", HIGH, **T, lr=0.01, cure=GOOD),
    operations("3 pre-norm layers, lr 0.1", HIGH, **S, layers=3, channels=48, placement="pre", lr=0.1, cure=GOOD),
    operations("AdamW, lr 0.05", HIGH, **U, layers=1, channels=24, optimizer="adamw", lr=0.05, cure={"lr": 2e-3}),
    operations("SGD, lr 5", HIGH, **T, channels=48, optimizer="sgd", lr=5.0, cure={"lr": 0.1}),
    operations("momentum, lr 1", HIGH, **S, channels=48, optimizer="momentum", lr=1.0, cure={"lr": 0.02}),
    operations("GELU, cosine, lr 0.03", HIGH, **U, channels=48, activation="gelu", schedule="cosine", lr=0.03, cure=GOOD),
    text("lr 0.3", HIGH, TARFILE, **S, layers=2, channels=48, heads=4, lr=0.3, cure={"lr": 2e-3}),
    text("ReLU, lr 0.1", HIGH, TYPING, **T, layers=3, channels=32, heads=2, activation="relu", lr=0.1, cure={"lr": 2e-3}),
    text("momentum, lr 3", HIGH, DIFFLIB, **S, layers=2, channels=48, heads=4, optimizer="momentum", lr=3.0, clip=0.0, cure={"lr": 0.02}),
    nearest("lr 0.2", HIGH, TYPING, **S, layers=2, channels=48, heads=4, lr=0.2, cure={"lr": 2e-3}),
    signal("lr 0.1", HIGH, **S, layers=2, channels=24, heads=4, lr=0.1, cure={"lr": 2e-3}),
    signal("pre-norm, lr 0.5", HIGH, **T, layers=3, channels=16, heads=2, placement="pre", lr=0.5, cure={"lr": 2e-3}),
    # It is too low.
    operations("as shipped, lr 1e-5", LOW, **S, lr=1e-5, cure=GOOD),
    operations("as shipped, SGD, lr 1e-3", LOW, **T, optimizer="sgd", lr=1e-3, cure={"lr": 0.1}),
    operations("momentum, lr 1e-4", LOW, **U, channels=48, optimizer="momentum", lr=1e-4, cure={"lr": 0.02}),
    operations("3 pre-norm layers, lr 1e-6", LOW, **S, layers=3, channels=48, placement="pre", lr=1e-6, cure=GOOD),
    operations("16 pre-norm layers, lr 2e-5", LOW, **T, layers=16, channels=24, placement="pre", lr=2e-5, steps=300, cure=GOOD),
    text("lr 2e-5", LOW, TARFILE, **S, layers=2, channels=48, heads=4, lr=2e-5, cure={"lr": 2e-3}),
    text("lr 1e-4, warm-up 100", LOW, TYPING, **T, layers=3, channels=32, heads=2, lr=1e-4, warmup=100, cure={"lr": 3e-3}),
    text("SGD, lr 2e-3", LOW, DIFFLIB, **S, layers=2, channels=48, heads=4, optimizer="sgd", lr=2e-3, cure={"lr": 0.1}),
    nearest("lr 5e-6", LOW, TYPING, **T, layers=2, channels=48, heads=4, lr=5e-6, cure={"lr": 2e-3}),
    signal("lr 5e-6", LOW, **S, layers=2, channels=24, heads=4, lr=5e-6, cure={"lr": 2e-3}),
    signal("SGD, lr 1e-5", LOW, **T, layers=2, channels=24, heads=4, optimizer="sgd", lr=1e-5, cure={"lr": 0.05}),
    # It is right, and the training was stopped too soon.
    operations("60 updates", FEW, **S, channels=48, lr=1e-3, steps=60, cure={"steps": 500}),
    operations("3 pre-norm layers, 100 updates", FEW, **T, layers=3, channels=48, placement="pre", lr=1e-3, steps=100, cure={"steps": 500}),
    operations("GELU, 150 updates", FEW, **U, channels=24, activation="gelu", lr=2e-3, steps=150, cure={"steps": 600}),
    operations("SGD, 250 updates", FEW, **S, channels=48, optimizer="sgd", lr=0.1, steps=250, cure={"steps": 1200}),
    text("40 updates", FEW, TARFILE, **T, layers=2, channels=48, heads=4, lr=2e-3, steps=40, cure={"steps": 300}),
    text("80 updates, constant", FEW, TYPING, **U, layers=2, channels=32, heads=4, lr=2e-3, steps=80, schedule="constant", cure={"steps": 400}),
    # Deep, post-norm, no or little warm-up.
    operations("20 post-norm layers", VANISHING, **S, layers=20, channels=32, lr=1e-3, steps=250, cure={"placement": "pre"}),
    operations("16 post-norm layers of 48", VANISHING, **T, layers=16, channels=48, lr=1e-3, steps=250, cure={"placement": "pre"}),
    operations("24 post-norm layers, SGD", VANISHING, **U, layers=24, channels=24, optimizer="sgd", lr=0.05, steps=250, cure={"placement": "pre"}),
    operations("18 post-norm layers, GELU, AdamW", VANISHING, **S, layers=18, channels=32, activation="gelu", optimizer="adamw", lr=1e-3, steps=250, cure={"placement": "pre"}),
    operations("28 post-norm layers of 16", VANISHING, **T, layers=28, channels=16, heads=2, lr=2e-3, steps=250, cure={"placement": "pre"}),
    signal("20 post-norm layers", VANISHING, **U, layers=20, channels=16, heads=2, lr=1.5e-3, steps=150, cure={"placement": "pre"}),
    # First weights twenty times too large, or biases that no input wakes.
    operations("weights 20 times as large, 10 tanh layers", EXPLODING, damage="saturated", **S, layers=10, channels=24, activation="tanh", optimizer="sgd", lr=0.05, steps=250),
    operations("weights 20 times as large, momentum", EXPLODING, damage="saturated", **T, layers=14, channels=24, activation="tanh", optimizer="momentum", lr=0.01, steps=250),
    operations("dead units", DEAD, damage="dead", **S, layers=3, channels=48, lr=1e-3, steps=300),
    signal("dead units", DEAD, damage="dead", **T, layers=2, channels=24, heads=4, lr=1.5e-3),
    # Too little data.
    operations("60 expressions", OVERFITTING, "operations/60", **S, channels=48, lr=1e-3, cure={"data": "operations"}),
    operations("150 expressions, pre-norm", OVERFITTING, "operations/150", **T, layers=3, channels=48, placement="pre", lr=1e-3, cure={"data": "operations"}),
    text("keyword.py", OVERFITTING, "text/keyword.py", **S, layers=2, channels=48, heads=4, lr=3e-3, cure={"data": TARFILE}),
    text("colorsys.py", OVERFITTING, "text/colorsys.py", **T, layers=3, channels=64, heads=4, lr=3e-3, steps=500, cure={"data": TARFILE}),
    # Answers that have nothing to do with the inputs.
    operations("shuffled answers", NOTHING, "operations/shuffled", **S, lr=1e-3, cure={"data": "operations"}),
    operations("shuffled answers, pre-norm, GELU", NOTHING, "operations/shuffled", **T, layers=3, channels=24, placement="pre", activation="gelu", lr=2e-3, cure={"data": "operations"}),
    operations("nine of ten answers are 9", NOTHING, "operations/one answer", **U, channels=48, lr=1e-3, cure={"data": "operations"}),
    text("random letters", NOTHING, "text/noise", **S, layers=2, channels=48, heads=4, lr=2e-3, cure={"data": TARFILE}),
    signal("labels of another signal", NOTHING, "signal/noise", **T, layers=2, channels=24, heads=4, lr=2e-3, cure={"data": "signal"}),
    # A clip far below every gradient.
    operations("SGD, clip 1e-3", CLIPPING, **S, channels=48, optimizer="sgd", lr=0.1, clip=1e-3, cure={"clip": 5.0}),
    text("momentum, clip 5e-4", CLIPPING, TYPING, **T, layers=2, channels=48, heads=4, optimizer="momentum", lr=0.02, clip=5e-4, cure={"clip": 1.0}),
    # Nothing is wrong.
    operations("as shipped", HEALTHY, **S, lr=1e-3, steps=700),
    operations("AdamW, pre-norm", HEALTHY, **T, layers=3, channels=48, placement="pre", optimizer="adamw", lr=2e-3, steps=600),
    operations("12 pre-norm layers", HEALTHY, **U, layers=12, channels=32, placement="pre", lr=1e-3, steps=600),
    operations("SGD, lr 0.2", HEALTHY, **S, channels=48, placement="pre", optimizer="sgd", lr=0.2, steps=1800),
    text("lr 2e-3", HEALTHY, TARFILE, **S, layers=2, channels=48, heads=4, lr=2e-3, steps=400),
    text("lr 1e-3, 600 updates", HEALTHY, TYPING, **T, layers=3, channels=32, heads=2, lr=1e-3, steps=600),
    nearest("lr 2e-3", HEALTHY, DIFFLIB, **S, layers=2, channels=48, heads=4, lr=2e-3),
    signal("lr 2e-3", HEALTHY, **S, layers=2, channels=24, heads=4, lr=2e-3),
]  # fmt: skip

V: dict[str, Any] = {"seed": 21}
W: dict[str, Any] = {"seed": 22}
X: dict[str, Any] = {"seed": 23}
PICKLE, CONFIGPARSER, INSPECT = "text/pickle.py", "text/configparser.py", "text/inspect.py"
BLIND = [
    # The learning rate is too high.
    operations("lr 0.2", HIGH, **V, channels=40, lr=0.2, cure=GOOD),
    operations("pre-norm, lr 0.06", HIGH, **W, channels=56, placement="pre", lr=0.06, cure=GOOD),
    operations("4 post-norm layers, lr 0.03", HIGH, **X, layers=4, channels=40, lr=0.03, cure={"lr": 5e-4}),
    operations("SGD, lr 8", HIGH, **V, channels=40, optimizer="sgd", lr=8.0, cure={"lr": 0.1}),
    text("lr 0.5", HIGH, PICKLE, **W, layers=2, channels=40, heads=4, lr=0.5, cure={"lr": 2e-3}),
    text("1 layer, lr 0.15", HIGH, CONFIGPARSER, **X, layers=1, channels=56, heads=4, lr=0.15, cure={"lr": 2e-3}),
    text("SGD, lr 20", HIGH, INSPECT, **V, layers=2, channels=40, heads=4, optimizer="sgd", lr=20.0, clip=0.0, cure={"lr": 0.1}),
    nearest("lr 0.3", HIGH, PICKLE, **W, layers=2, channels=40, heads=4, lr=0.3, cure={"lr": 2e-3}),
    signal("lr 0.2", HIGH, **X, layers=2, channels=32, heads=4, lr=0.2, cure={"lr": 2e-3}),
    signal("AdamW, lr 0.15", HIGH, **V, layers=3, channels=16, heads=2, optimizer="adamw", lr=0.15, cure={"lr": 2e-3}),
    # It is too low.
    operations("lr 3e-6", LOW, **V, channels=40, lr=3e-6, cure=GOOD),
    operations("SGD, lr 5e-4", LOW, **W, channels=56, optimizer="sgd", lr=5e-4, cure={"lr": 0.1}),
    operations("pre-norm, momentum, lr 5e-5", LOW, **X, channels=40, placement="pre", optimizer="momentum", lr=5e-5, cure={"lr": 0.02}),
    operations("1 layer, GELU, lr 2e-5", LOW, **V, layers=1, channels=56, activation="gelu", lr=2e-5, cure={"lr": 2e-3}),
    text("lr 5e-6", LOW, PICKLE, **W, layers=2, channels=40, heads=4, lr=5e-6, cure={"lr": 2e-3}),
    text("momentum, lr 1e-4", LOW, INSPECT, **X, layers=2, channels=40, heads=4, optimizer="momentum", lr=1e-4, cure={"lr": 0.02}),
    nearest("lr 1e-5", LOW, CONFIGPARSER, **V, layers=2, channels=40, heads=4, lr=1e-5, cure={"lr": 2e-3}),
    signal("lr 1e-5", LOW, **W, layers=2, channels=32, heads=4, lr=1e-5, cure={"lr": 2e-3}),
    signal("momentum, lr 1e-6", LOW, **X, layers=2, channels=24, heads=4, optimizer="momentum", lr=1e-6, cure={"lr": 0.01}),
    # It is right, and the training was stopped too soon.
    operations("80 updates", FEW, **V, channels=56, lr=1e-3, steps=80, cure={"steps": 500}),
    operations("pre-norm, GELU, 120 updates", FEW, **W, channels=40, placement="pre", activation="gelu", lr=1e-3, steps=120, cure={"steps": 600}),
    text("35 updates", FEW, INSPECT, **X, layers=2, channels=40, heads=4, lr=3e-3, steps=35, cure={"steps": 300}),
    text("60 updates, linear", FEW, PICKLE, **V, layers=2, channels=40, heads=4, lr=2e-3, steps=60, schedule="linear", cure={"steps": 400}),
    signal("40 updates", FEW, **W, layers=2, channels=32, heads=4, lr=1e-3, steps=40, cure={"steps": 300}),
    # Deep and post-norm.
    operations("14 post-norm layers of 24", VANISHING, **V, layers=14, channels=24, lr=1.5e-3, steps=150, cure={"placement": "pre"}),
    operations("16 post-norm layers of 16, tanh", VANISHING, **W, layers=16, channels=16, heads=2, activation="tanh", lr=2e-3, steps=150, cure={"placement": "pre"}),
    operations("12 post-norm layers, SGD", VANISHING, **X, layers=12, channels=40, optimizer="sgd", lr=0.1, steps=200, cure={"placement": "pre"}),
    signal("16 post-norm layers", VANISHING, **V, layers=16, channels=16, heads=2, lr=2e-3, steps=150, cure={"placement": "pre"}),
    # First weights twenty times too large, or biases that no input wakes.
    operations("weights 20 times as large, 8 tanh layers", EXPLODING, damage="saturated", **X, layers=8, channels=32, activation="tanh", optimizer="sgd", lr=0.05, steps=200),
    signal("dead units, pre-norm", DEAD, damage="dead", **W, layers=2, channels=32, heads=4, placement="pre", lr=1.5e-3),
    # Too little data.
    operations("80 expressions", OVERFITTING, "operations/80", **V, channels=40, lr=1e-3, cure={"data": "operations"}),
    operations("200 expressions, AdamW", OVERFITTING, "operations/200", **W, channels=56, optimizer="adamw", lr=1e-3, cure={"data": "operations"}),
    text("bisect.py", OVERFITTING, "text/bisect.py", **X, layers=2, channels=40, heads=4, lr=3e-3, steps=400, cure={"data": PICKLE}),
    text("sched.py", OVERFITTING, "text/sched.py", **V, layers=2, channels=64, heads=4, lr=3e-3, steps=400, cure={"data": PICKLE}),
    # Answers that have nothing to do with the inputs.
    operations("shuffled answers", NOTHING, "operations/shuffled", **V, channels=40, lr=1e-3, cure={"data": "operations"}),
    operations("shuffled answers, 3 layers, AdamW", NOTHING, "operations/shuffled", **W, layers=3, channels=56, optimizer="adamw", lr=1e-3, cure={"data": "operations"}),
    operations("nine of ten answers are 9", NOTHING, "operations/one answer", **X, channels=40, placement="pre", lr=1e-3, cure={"data": "operations"}),
    text("random letters", NOTHING, "text/noise", **W, layers=2, channels=40, heads=4, lr=3e-3, cure={"data": PICKLE}),
    signal("labels of another signal", NOTHING, "signal/noise", **X, layers=2, channels=32, heads=4, placement="pre", lr=1.5e-3, cure={"data": "signal"}),
    # A clip far below every gradient.
    operations("momentum, clip 1e-3", CLIPPING, **W, channels=40, optimizer="momentum", lr=0.02, clip=1e-3, cure={"clip": 5.0}),
    text("SGD, clip 3e-4", CLIPPING, PICKLE, **X, layers=2, channels=40, heads=4, optimizer="sgd", lr=0.1, clip=3e-4, cure={"clip": 1.0}),
    # Nothing is wrong.
    operations("56 channels", HEALTHY, **V, channels=56, lr=1e-3, steps=600),
    operations("pre-norm, GELU", HEALTHY, **W, channels=40, placement="pre", activation="gelu", lr=2e-3, steps=600),
    text("lr 2e-3", HEALTHY, PICKLE, **X, layers=2, channels=40, heads=4, lr=2e-3, steps=400),
    text("Adam, lr 1e-3", HEALTHY, INSPECT, **V, layers=2, channels=56, heads=4, optimizer="adam", lr=1e-3, steps=400),
    nearest("lr 2e-3", HEALTHY, CONFIGPARSER, **W, layers=2, channels=40, heads=4, lr=2e-3),
    signal("lr 2e-3", HEALTHY, **W, layers=2, channels=32, heads=4, lr=2e-3, steps=300),
    signal("pre-norm, lr 1e-3", HEALTHY, **X, layers=3, channels=24, heads=4, placement="pre", lr=1e-3, steps=400),
]  # fmt: skip
