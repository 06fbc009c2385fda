"""Into Python and back: a run of every kind, loaded as a stranger would."""

import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import tapeless
from tapeless import TapelessError
from tapeless.cli.app import app
from tapeless.labelling import run as labelling
from tapeless.labelling.source import make_source
from tapeless.tasks.data.batches import evaluation_batches
from tapeless.tasks.data.tokens import open_data
from tapeless.train import run, session
from tapeless.train.evaluation import evaluate
from tapeless.train.settings import Request, Settings
from tapeless.weights.hugging_face import write_folder
from tapeless.weights.runs import import_folder
from tests.cli.test_train import tapeless as command

LINE = "the quick brown fox jumps over the lazy dog\n"
TINY = {"layers": 2, "channels": 16, "heads": 2}
SETTINGS = Settings(batch=8, steps=30, lr=1e-2, warmup=1, eval_every=10, eval_batches=1, keep=2)


def walked(begun):
    begun.train()
    return begun.run.folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def text(runs):
    (runs / "fox.txt").write_text(LINE * 80)
    asked = replace(SETTINGS, time=24, data=str(runs / "fox.txt"))
    return walked(session.start(Request("gpt2-4x256", TINY, asked), runs / "text"))


@pytest.fixture(scope="module")
def operations(runs):
    asked = replace(SETTINGS, batch=64, steps=60)
    return walked(session.start(Request("ops-102k", TINY | {"layers": 1}, asked), runs / "operations"))


@pytest.fixture(scope="module")
def labels(runs):
    rng = np.random.default_rng(0)
    signal, classes = rng.normal(size=2000), np.arange(2000) // 100 % 2
    np.save(runs / "signal.npy", signal * (1 + 3 * classes))
    np.save(runs / "labels.npy", classes)
    source = make_source(
        fasta=None,
        gff=None,
        feature=None,
        held_out=(),
        signal=runs / "signal.npy",
        labels=runs / "labels.npy",
        scales=(3, 10),
    )
    with run.making(runs / "labels") as made:
        begun = labelling.start(made, source, Settings(time=32, batch=4, steps=4), {"channels": 8, "heads": 2})
    return walked(begun)


def last_evaluation(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "evaluation"][-1]


# Text


def test_it_goes_on_with_a_text_as_the_command_does(text):
    loaded = tapeless.load(text)
    said = json.loads(command("sample", str(text), "--prompt", "the qu", "-n", "20", "--json", folder=text).stdout)
    assert loaded.generate("the qu", 20) == said["text"]
    assert loaded.encode("the") == list(b"the")
    assert loaded.decode(np.frombuffer(b"the", np.uint8)) == "the"
    assert "".join(loaded.stream("the qu", 20)) == said["text"]
    assert loaded.generate("the qu", 20, seed=1, temperature=2.0) != loaded.generate("the qu", 20, temperature=2.0)
    assert " " not in loaded.generate("the qu", 20, stop=" ")


def test_past_its_window_it_slides(text):
    loaded = tapeless.load(str(text))
    written = loaded.stream("the quick brown fox ", 60)
    assert len(written.whole()) == len(written.tokens) == 60
    assert written.slid > 0


def test_the_loss_of_a_text_is_the_mean_over_its_tokens(text):
    loaded = tapeless.load(text, backend="reference")
    model, tokens, half = loaded.model, [256, *loaded.encode(LINE), 256], loaded.window // 2
    count = len(tokens) - 1  # its end is foretold, too
    assert count > loaded.window
    total = 0.0
    for place in range(count):  # from its window, the first or one that begins at a multiple of half of it
        start = min(max(-(-(place + 1 - loaded.window) // half), 0) * half, count - loaded.window)
        scores = model.logits([tokens[start : place + 1]])[0, -1]
        total += np.log(np.exp(scores).sum()) - scores[tokens[place + 1]]
    assert loaded.loss(LINE) == pytest.approx(total / count, rel=1e-12)
    assert loaded.perplexity(LINE) == pytest.approx(math.exp(total / count), rel=1e-12)


@pytest.mark.parametrize("content", ["hello", LINE * 3, "x"])
def test_a_text_is_judged_as_the_command_judges_a_file(text, tmp_path, content):
    (tmp_path / "file.txt").write_text(content)
    loaded = tapeless.load(text, backend="reference")
    found = evaluate(run.open_run(text), str(tmp_path / "file.txt"), backend="reference")
    assert loaded.loss(content) == pytest.approx(found.loss, rel=1e-12)
    assert loaded.perplexity(content) == pytest.approx(found.perplexity, rel=1e-12)


def test_what_was_held_out_has_the_loss_that_was_recorded(text):
    best = tapeless.load(text, batch=8)
    assert f"held-out loss {last_evaluation(text)['loss']:.4g}" in repr(best)
    held_out = open_data(text / "data").validation
    found = [best.model.loss(*each) for each in evaluation_batches(held_out, 8, 24, 1)]
    assert found[0] == pytest.approx(last_evaluation(text)["loss"], rel=1e-4)


def test_every_checkpoint_can_be_had(text):
    assert tapeless.load(text).checkpoints == [20, 30]
    earlier, newest = tapeless.load(text, 20), tapeless.load(text, "newest")
    assert (earlier.step, newest.step) == (20, 30)
    assert earlier.loss(LINE) > newest.loss(LINE)
    assert tapeless.load(text, np.int64(20)).loss(LINE) == earlier.loss(LINE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "how",
    [
        {"backend": "reference"},
        {"backend": "reference", "precision": "float32"},
        {"backend": "reference", "precision": "bfloat16"},
        {"backend": "reference", "precision": "complex128"},
        {"batch": 4, "time": 24},
    ],
)
def test_on_any_backend_and_precision_it_is_the_same_model(text, how):
    exact = tapeless.load(text, backend="reference").loss(LINE)
    assert tapeless.load(text, **how).loss(LINE) == pytest.approx(
        exact, rel=2e-2 if "bfloat16" in how.values() else 1e-5
    )


def test_the_gradient_of_a_text(text):
    loaded = tapeless.load(text)
    loss = loaded.model.forward_backward(*next(loaded.batches(LINE)))
    assert math.isfinite(loss)
    assert np.linalg.norm(loaded.model.grads["blocks.1.mlp.up.weight"]) > 0
    with pytest.raises(TapelessError, match="optimizer=None"):
        loaded.model.update(lr=1e-3)


# And back


def test_what_was_trained_on_in_python_is_saved_and_is_a_run(text, tmp_path):
    loaded = tapeless.load(text, batch=2, optimizer="preset")
    before = loaded.loss(LINE)
    for _ in range(5):
        for inputs, targets in loaded.batches(LINE * 2):
            loaded.model.step(inputs, targets, lr=3e-3)
    after = loaded.loss(LINE)
    assert after < before
    assert loaded.save(tmp_path / "mine") == tmp_path / "mine"
    again = tapeless.load(tmp_path / "mine", batch=2)
    assert again.loss(LINE) == after
    assert again.step == 30 + loaded.model.steps
    assert again.generate("the", 5) == loaded.generate("the", 5)
    done = command(
        "train", "--init-from", "mine", "--data", str(text.parent / "fox.txt"), "--steps", "2", folder=tmp_path
    )
    assert done.returncode == 0, done.stderr
    done = command("export", "mine", "gpt", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    with pytest.raises(TapelessError, match="exists already"):
        loaded.save(tmp_path / "mine")


def test_a_save_that_fails_leaves_nothing(text, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise TapelessError("no space.")

    monkeypatch.setattr("tapeless.trained.checkpoints.save", fail)
    with pytest.raises(TapelessError, match="no space"):
        tapeless.load(text).save(tmp_path / "new" / "mine")
    assert list(tmp_path.iterdir()) == []


# Other kinds


def test_an_operations_model_answers(operations):
    loaded = tapeless.load(operations)
    assert loaded.generate("Max(1,2,6)") in {str(digit) for digit in range(10)}
    assert loaded.generate("Max(1, 2, 6)") == loaded.generate("Max(1,2,6)")
    assert loaded.decode(loaded.encode("Max(1,2,6)")) == "Max(1,2,6)"
    assert loaded.perplexity("Max(1,2,6)") == pytest.approx(math.exp(loaded.loss("Max(1,2,6)")))
    assert list(loaded.model.attention([loaded.encode("Max(1,2,6)")])) == ["blocks.0"]
    loaded.model.forward_backward(*next(loaded.batches("Max(1,2,6)")))
    done = command("sample", str(operations), "--prompt", "Max(1,2,6)", folder=operations)
    assert done.stdout.startswith(f"Max(1,2,6) = {loaded.generate('Max(1,2,6)')}\n")


@pytest.mark.parametrize("option", [("--seed", "3"), ("--stop", "6"), ("--count", "5")], ids=lambda option: option[0])
def test_sampling_an_operations_model_refuses_what_no_answer_depends_on(operations, option):
    said = CliRunner().invoke(app, ["sample", str(operations), "--prompt", "Max(1,2,6)", *option])
    assert isinstance(said.exception, TapelessError)
    assert f"{option[0].removeprefix('--')} would have no effect" in str(said.exception)


def test_a_labeller_has_its_model_and_says_what_to_label_with(labels, tmp_path):
    loaded = tapeless.load(labels)
    features = np.zeros((1, loaded.model.time, loaded.config.features))
    assert loaded.model.logits(features).shape == (1, 32, 2)
    for talk in (loaded.encode, loaded.generate, loaded.loss, loaded.batches):
        with pytest.raises(TapelessError, match="labels signals and reads no text: label with it by `tapeless label"):
            talk("text")
    assert "features" in repr(loaded)
    loaded.save(tmp_path / "mine")
    words = ("label", "predict", "mine", "--signal", str(labels.parent / "signal.npy"), "-o", "out.npy")
    assert command(*words, folder=tmp_path).returncode == 0
    signal = np.load(labels.parent / "signal.npy")
    assert np.array_equal(loaded.label(signal).astype(np.float32), np.load(tmp_path / "out.npy"))
    assert loaded.label([1.0, 2.0]).shape == (2, 2)
    for wrong in ("ACGT", [], [[1.0]], [np.nan]):
        with pytest.raises(TapelessError, match=r"^the signal"):
            loaded.label(wrong)


def test_what_labels_nothing_says_so(operations):
    with pytest.raises(TapelessError, match=r"labels nothing: `\.generate` is what it does"):
        tapeless.load(operations).label([1.0])


def test_a_run_of_bare_tokens_says_that_it_has_no_tokenizer(text, tmp_path):
    loaded = tapeless.load(text)
    write_folder(tmp_path / "gpt", loaded.config, loaded.model.weights(), None)
    imported = import_folder(tmp_path / "gpt", tmp_path / "run").run.folder
    bare = tapeless.load(imported)
    assert bare.model.logits([[1, 2]]).shape == (1, 2, 257)
    assert "no tokenizer" in repr(bare).replace("without a tokenizer", "no tokenizer")
    with pytest.raises(TapelessError, match="has no tokenizer"):
        bare.generate("the")
    with pytest.raises(TapelessError, match=r"tapeless import .* makes a run of it"):
        tapeless.load(tmp_path / "gpt")


# What is not well


def test_what_is_no_run_is_refused_in_a_sentence(text, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for given, said in {
        "empty": "it has no config.toml",
        "file": "it is no folder",
        "nowhere": "is not there",
        "x" * 5000: "too long",
        "a\0b": "no name of a file",
    }.items():
        with pytest.raises(TapelessError, match=said):
            tapeless.load(tmp_path / given)
    for wrong in (None, 3, ["runs"]):
        with pytest.raises(TapelessError, match="a run is the path of its folder"):
            tapeless.load(wrong)  # type: ignore[arg-type]
    with pytest.raises(TapelessError, match=r"is a checkpoint: load the run '.*text' with checkpoint=20"):
        tapeless.load(text / "checkpoints" / "step-00000020")
    for which, said in ((7, "no checkpoint of step 7: those it has are of 20, 30"), ("last", "'best', 'newest' or")):
        with pytest.raises(TapelessError, match=said):
            tapeless.load(text, which)
    with pytest.raises(TapelessError, match="'best', 'newest' or"):
        tapeless.load(text, True)


def damaged(folder, tmp_path, step):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    weights = copy / "checkpoints" / f"step-{step:08}" / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    return copy


def test_a_damaged_checkpoint_is_told_of_and_another_taken(text, tmp_path):
    copy = damaged(text, tmp_path, 30)
    with pytest.warns(UserWarning, match="step-00000030 is damaged .*step-00000020 is taken instead"):
        loaded = tapeless.load(copy, "newest")
    assert loaded.step == 20
    assert "is taken instead" in repr(loaded)
    with pytest.raises(TapelessError, match=r"step-00000030 is damaged .*: take another checkpoint"):
        tapeless.load(copy, 30)


def test_a_run_that_never_saved_and_one_half_written_are_told_apart(text, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(text, copy)
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(TapelessError, match="holds no whole checkpoint yet: train it first"):
        tapeless.load(copy)
    with pytest.raises(TapelessError, match="no checkpoint of step 20: it has none yet"):
        tapeless.load(copy, 20)
    whole = (copy / "config.toml").read_text()
    for content in (whole[: len(whole) // 2], "", "\0", "layers = ["):
        (copy / "config.toml").write_text(content)
        with pytest.raises(TapelessError, match=r"config\.toml|whole checkpoint"):
            tapeless.load(copy)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda run: run.generate(3), "takes text, not int"),
        (lambda run: run.generate("a", 0), "count must be"),
        (lambda run: run.generate("a", temperature=-1), "temperature must be"),
        (lambda run: run.generate("a", temperature=0, top_k=3), "top_k would have no effect at temperature 0"),
        (lambda run: run.generate("a", temperature=0, seed=3), "seed would have no effect at temperature 0"),
        (lambda run: run.generate("a", stop=""), "stop must be some text"),
        (lambda run: run.loss(""), "an empty text has nothing"),
        (lambda run: run.encode("\ud800"), "half a surrogate pair"),
        (lambda run: run.decode("abc"), "tokens must be a sequence of whole numbers, not 'abc'"),
        (lambda run: run.decode([1.5]), r"tokens must be a sequence of whole numbers, not \[1.5\]"),
        (lambda run: run.metrics("evaluaton"), "did you mean 'evaluation'"),
        (lambda run: run.save(None), "None is the path of none"),
        (lambda run: run.save("a\0b"), "is the path of none"),
        (lambda run: run.decode([65, 257]), "there is no token 257: this model knows 0 to 256"),
        (lambda run: run.decode([-1]), "there is no token -1"),
        (lambda run: tapeless.load(run.folder, time=25), "reads 24 positions at most, so time=25 is too many"),
        (lambda run: tapeless.load(""), "a run is the path of its folder"),
        (lambda run: run.decode(3), "tokens must be a sequence of whole numbers, not 3"),
        (lambda run: run.save("/proc/nothing/here"), "cannot make the run folder"),
    ],
)
def test_bad_input_gets_a_sentence(text, call, said):
    with pytest.raises(TapelessError, match=said):
        call(tapeless.load(text))


# How it shows itself


def test_a_repr_worth_reading(text, operations):
    lines = repr(tapeless.load(text)).splitlines()
    assert lines[0] == f"{text}: gpt2-4x256"
    assert lines[1] == "  model    2 layers × 16 channels, 2 heads, vocabulary 257, 11,088 parameters"
    assert lines[2].startswith("  weights  best, after update 30 of 30; held-out loss ")
    assert lines[3] == "  reads    text (bytes), 24 positions"
    assert lines[4] == "  runs     on cpu in float32, batch 1 × time 24"
    assert "% right" in repr(tapeless.load(operations))
    shown = tapeless.load(text, 20)._repr_html_()
    assert "after update 20 of 30" in shown
    assert shown.count("<td") == 8


def test_its_metrics_are_at_hand(text):
    loaded = tapeless.load(text)
    assert loaded.metrics("evaluation")[-1]["loss"] == last_evaluation(text)["loss"]
    assert {"step", "evaluation"} <= {line["kind"] for line in loaded.metrics()}
    assert loaded.metrics("spike") == []
    assert loaded.settings.lr == 1e-2
    assert loaded.config.layers == 2


def test_it_is_loaded_only_when_it_is_used():
    program = (
        "import sys, tapeless; assert 'tapeless.trained' not in sys.modules; assert 'load' in dir(tapeless); "
        "tapeless.load; assert 'tapeless.trained' in sys.modules; "
        "assert not {'torch', 'numba', 'rich', 'tokenizers', 'typer'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[1])
