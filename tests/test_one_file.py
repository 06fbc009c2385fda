"""The one file is a second, independent GPT: it must agree with the engine, stay short and stay alone."""

import ast
import os
import re
import subprocess
import sys
from math import log
from pathlib import Path

import gpt_in_one_file as one_file
import numpy as np

from tapeless import Model
from tapeless.check.configurations import Configuration, small
from tests.oracles import disagreements

FILE = Path(one_file.__file__)
CONFIGURATION = Configuration("one file", "gpt2-4x256", small("gpt2-4x256", heads=3), batch=3, seed=7)


def scrambled(optimizer: str | None = None) -> tuple[Model, np.random.Generator]:
    model = Model(
        CONFIGURATION.preset,
        batch=CONFIGURATION.batch,
        time=CONFIGURATION.time,
        backend="reference",
        precision="float64",
        optimizer=optimizer,
        **CONFIGURATION.fields,
    )
    rng = np.random.default_rng(CONFIGURATION.seed)
    CONFIGURATION.scramble(rng, model)
    return model, rng


def test_loss_logits_and_gradients_are_those_of_the_engine():
    model, rng = scrambled()
    tokens, targets = CONFIGURATION.batch_of(rng, model)
    assert len(np.unique(tokens)) < tokens.size
    assert 0 < (targets == -1).sum() < targets.size
    weights = dict(model.params)
    loss, gradients = one_file.forward_backward(weights, tokens, targets, model.config.heads)
    logits, _ = one_file.forward(weights, tokens, model.config.heads)
    found = {"loss": model.forward_backward(tokens, targets), "logits": model.logits(tokens)}
    assert not disagreements("torch autograd", found, {"loss": loss, "logits": logits})
    assert not disagreements("torch autograd", model.grads, gradients)


def test_its_adam_is_that_of_the_engine():
    model, rng = scrambled("adam")
    weights = {name: weight.copy() for name, weight in model.params.items()}
    mean, square = dict.fromkeys(weights, 0.0), dict.fromkeys(weights, 0.0)
    for step in range(1, 11):
        model.forward_backward(*CONFIGURATION.batch_of(rng, model))
        one_file.adam(weights, dict(model.grads), mean, square, step, rate=0.01 / step)
        model.update(0.01 / step)
        assert not disagreements("torch optimizers", model.params, weights), f"step {step}"


def test_its_first_weights_have_the_engines_names_and_shapes():
    model, rng = scrambled()
    config = model.config
    weights = one_file.initialise(
        rng, config.layers, config.channels, config.vocab, config.context, hidden=config.hidden
    )
    assert {name: weight.shape for name, weight in weights.items()} == {
        name: weight.shape for name, weight in model.params.items()
    }


def test_it_is_short_and_needs_only_numpy():
    source = FILE.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 300
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert "numpy" in imported
    assert imported - {"numpy"} <= sys.stdlib_module_names  # and so not tapeless


def test_its_task_is_5000_distinct_expressions_with_their_answers():
    tokens, answers = one_file.expressions()
    assert len(np.unique(tokens, axis=0)) == len(tokens) == len(answers) == 5000
    for row, answer in zip(tokens, answers, strict=True):
        text = "".join(one_file.VOCABULARY[token] for token in row)
        parts = re.fullmatch(r"([A-Z][a-z]+)\((\d),(\d),(\d)\)", text)
        assert parts, text
        name, a, b, c = parts.groups()
        results = {"First": a, "Second": b, "Last": c, "Max": max(a, b, c), "Min": min(a, b, c)}
        assert one_file.VOCABULARY[answer] == results[name], text


def test_it_trains_for_an_epoch():
    # Its matrices are small: on a busy machine BLAS threads that wait for each other make it six times slower.
    environment = os.environ | {f"{blas}_NUM_THREADS": "1" for blas in ("OPENBLAS", "MKL", "OMP")}
    command = [sys.executable, "-W", "error", str(FILE), "--epochs", "1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    epochs = re.findall(r"^epoch (\d+)  train loss (\d+\.\d+)  validation accuracy \d+\.\d%", done.stdout, re.M)
    assert [epoch for epoch, _ in epochs] == ["1"], done.stdout
    assert float(epochs[0][1]) < log(len(one_file.VOCABULARY))  # better than a guess among all tokens
