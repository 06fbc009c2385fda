"""A setting that was named and cannot act is refused in a sentence; what is said of a training is what is trained."""

import subprocess
import sys
import textwrap

import pytest

from tapeless import TapelessError
from tapeless.cli.subject import subject
from tapeless.train.resolve import resolve
from tapeless.train.session import resume, start
from tapeless.train.settings import read_request
from tests.screens import refusal

SMALL = ("--set", "layers=1", "--set", "channels=8", "--set", "heads=2", "--set", "hidden=8", "--backend", "reference")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--time", "8"), "time has no effect on operations as given here: leave it out."),
        (("--field", "body"), "field has no effect on operations as given here: leave it out."),
        (("--set", "encoding=latin-1"), "encoding has no effect on operations"),
        (("--tokenizer", "bpe"), "tokenizer has no effect on operations"),
        (("--validation", "0.2"), "validation has no effect on operations"),
        (("--set", "momentum=0.9"), "momentum has no effect with adamw: leave it out."),
        (("--optimizer", "momentum", "--decay", "0.1"), "decay has no effect with momentum"),
        (("--optimizer", "adam", "--decay", "0.1"), "decay has no effect with adam"),
        (("--optimizer", "sgd", "--set", "beta2=0.9"), "beta2 has no effect with sgd"),
    ],
)
def test_what_cannot_act_is_refused_and_leaves_nothing(tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    assert said in refusal("train", *SMALL, "--steps", "1", *words)
    assert list(tmp_path.iterdir()) == []


def test_what_acts_is_taken(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"body": "some words to learn"}\n' * 3 + '{"body": "and some others"}\n' * 3)
    settings = {"data": str(tmp_path / "rows.jsonl"), "field": "body", "time": 4, "batch": 1, "backend": "reference"}
    model = {"layers": 1, "channels": 8, "heads": 2, "hidden": 8, "optimizer": "muon"}
    asked = read_request("gpt2-4x256").override(model, {**settings, "momentum": 0.8, "decay": 0.0, "steps": 1})
    start(asked, tmp_path / "run").run.release()


def test_operations_may_be_named(tmp_path):
    model = {"layers": 1, "channels": 8, "heads": 2, "hidden": 8}
    settings = {"data": "operations", "seed": 3, "backend": "reference", "beta1": 0.8, "decay": 0.2, "steps": 1}
    session = start(read_request("ops-102k").override(model, settings), tmp_path / "run")
    session.train(stopping=lambda: "enough")
    with pytest.raises(TapelessError, match="momentum has no effect with adamw"):
        resume(tmp_path / "run", {}, {"momentum": 0.5, "steps": 9})


def test_tokens_are_not_tokenized_again(tmp_path):
    (tmp_path / "some.bin").write_bytes(bytes(range(1, 21)) * 20)
    asked = read_request("gpt2-4x256").override({}, {"data": str(tmp_path / "some.bin"), "tokenizer": "bpe"})
    with pytest.raises(TapelessError, match="tokenizer has no effect on text as given here"):
        start(asked, tmp_path / "run")


def test_an_empty_file_trains_nothing(tmp_path):
    (tmp_path / "mine.toml").write_text("\n")
    with pytest.raises(TapelessError, match=r"mine\.toml is empty: name what to train"):
        read_request(str(tmp_path / "mine.toml"))


@pytest.mark.parametrize("name", ["ops-102k", "gpt2-4x256"])
def test_the_weight_decay_that_is_listed_is_the_one_that_is_trained(name):
    settings = resolve(
        read_request(name).override({}, {"data": "stdlib"} if name != "ops-102k" else {})
    ).request.settings
    listed = subject(name, {}, batch=None, time=None, usual=(1, 8)).spec.optimizer
    assert listed is not None
    assert listed.decay == settings.decay == 0.1


def test_sigterm_while_data_are_prepared_says_so_and_leaves_nothing(tmp_path):
    code = """
        import os, signal, sys
        from tapeless.tasks.data import prepare
        from tapeless.cli import main
        real = prepare.find_documents
        def slow(*args, **kwargs):
            os.kill(os.getpid(), signal.SIGTERM)
            return real(*args, **kwargs)
        prepare.find_documents = slow
        sys.argv = ["tapeless", "train", "gpt2-4x256", "--data", "stdlib"]
        main()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (143, "")
    assert done.stderr.strip().endswith("stopped by SIGTERM.")
    assert list(tmp_path.iterdir()) == []
