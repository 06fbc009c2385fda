"""What a run reads of itself: a sound checksum is no sense yet."""

import hashlib
import json
from dataclasses import replace

import pytest

from tapeless.errors import TapelessError
from tapeless.files import disk
from tapeless.labelling import source as labelled
from tapeless.labelling.genome.found import Finder
from tapeless.labelling.signal.features import Features
from tapeless.models.presets import preset
from tapeless.tasks.operations import KIND, Operations
from tapeless.train import checkpoint, session
from tapeless.train.loop import Trainer
from tapeless.train.metrics import Recorder, read_metrics
from tapeless.train.run import Run, open_run, write_configuration
from tapeless.train.settings import Request, Settings, read_request

SMALL = {"layers": 1, "channels": 4, "heads": 2, "hidden": 8}


@pytest.fixture
def run(tmp_path):
    """A run of the operations task, stopped within an update."""
    config = preset("ops-102k").override(**SMALL)
    settings = Settings(data="operations", backend="reference", steps=5, accumulate=2).suited(config.architecture)
    request = Request("ops-102k", SMALL, replace(settings, tokenizer="none"))
    task = Operations(config.architecture, 0)
    trainer = Trainer(session.make_model(request, config, KIND), task, request.settings)
    trainer.batch()
    folder = tmp_path / "run"
    folder.mkdir()
    write_configuration(Run(folder), request, config)
    state = trainer.state() | {"run": session.identity(request, config, task)}
    checkpoint.save(folder / "checkpoints", 0, trainer.tensors(), state, best=True)
    return folder


def with_state(run, state):
    """Written into the checkpoint, and sealed as if it belonged there."""
    path = run / "checkpoints" / "step-00000000"
    content = state if isinstance(state, bytes) else json.dumps(state).encode()
    (path / "state.json").write_bytes(content)
    manifest = json.loads((path / "manifest.json").read_bytes())
    del manifest["sha256"]
    manifest["files"]["state.json"] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (path / "manifest.json").write_bytes(disk.sealed(manifest))


def state_of(run):
    return json.loads((run / "checkpoints" / "step-00000000" / "state.json").read_bytes())


def test_the_sound_state_is_taken(run):
    with_state(run, state_of(run))
    assert session.resume(run, {}, {}).trainer.added == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", None),
        ("step", -1),
        ("step", 2.0),
        ("step", True),
        ("step", 10**400),
        ("added", 2),
        ("added", "1"),
        ("loss", None),
        ("loss", "x"),
        ("loss", 10**400),
        ("loss", float("nan")),
        ("data", []),
        ("data", None),
        ("best", "x"),
        ("best", [1]),
        ("without_better", None),
        ("updates", -1),
        ("updates", 10**30),
        ("first_spread", {}),
        ("data", {}),
        ("data", {"epoch": -1, "position": 0}),
        ("data", {"epoch": 0, "position": 10**9}),
        ("data", {"epoch": "0", "position": 0}),
        ("data", {"epoch": 0, "position": True}),
        ("base", "\udc00\ud800"),
        ("base", 7),
        ("spikes", {}),
        ("spikes", {"recent": [1, "x"], "start": None, "calm": 1}),
        ("spikes", 3),
        ("spikes", {"recent": [], "calm": 0}),
        ("norms", [{"head": "1"}]),
        ("norms", {}),
    ],
)
def test_a_state_without_sense(run, name, value):
    with_state(run, {**state_of(run), name: value})
    with pytest.raises(TapelessError, match="damaged"):
        session.resume(run, {}, {})


@pytest.mark.parametrize("name", ["step", "added", "loss", "best", "without_better", "updates", "base", "spikes"])
def test_a_state_that_lacks_something(run, name):
    state = state_of(run)
    del state[name]
    with_state(run, state)
    with pytest.raises(TapelessError, match=f"damaged: {name} is missing"):
        session.resume(run, {}, {})


@pytest.mark.parametrize("content", [b"[]", b"7", b"null", b'"a"', b"[" * 100_000, b"9" * 5000])
def test_a_state_that_is_none(run, content):
    with_state(run, content)
    with pytest.raises(TapelessError, match="no whole checkpoint"):
        session.resume(run, {}, {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no preset"),
        ("a = " + "[" * 3000, "nested too deeply"),
        ("batch = " + "9" * 5000, "not valid TOML"),
        ("batch = " + "9" * 400, "does not fit 64 bits"),
        ('preset = "gpt2-4x256"\ndata = "operations"', "config.toml no longer says what batch is"),
        ('preset = "ops-102k"', "config.toml no longer says what data is"),
        ('preset = "ops-102k"\ndata = "text"\nbatch = 2', "config.toml no longer says what time is"),
        ('preset = "ops-102k"\nmodel = 7', "model must be a table"),
        ('preset = "ops-102k"\n[model]\nheads = 7', "config.toml: channels=64"),
        ('preset = "ops-102k"\nepochs = 1e300', "epochs must be above 0 and at most"),
        ('preset = "ops-102k"\nsteps = 9223372036854775808', "does not fit 64 bits"),
    ],
)
def test_a_configuration_without_sense(run, text, said):
    (run / "config.toml").write_text(text)
    with pytest.raises(TapelessError, match=said):
        session.resume(run, {}, {})


def test_a_training_file_without_sense(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("lr = " + "[" * 3000)
    with pytest.raises(TapelessError, match="nested too deeply"):
        read_request(str(path))


STEP = {"kind": "step", "step": 10, "loss": 1.0, "gradient_norms": {"head": 1.0}}


@pytest.mark.parametrize(
    "change",
    [
        {"loss": "x"},
        {"loss": []},
        {"loss": True},
        {"gradient_norms": 1},
        {"gradient_norms": {"head": "x"}},
        {"step": -1},
        {"step": 1.5},
        {"phases": []},
        {"kind": 7},
        {"kind": "stop", "reason": 7},
        {"kind": "spike", "message": None},
        {"kind": "evaluation", "dead_units": [1]},
        {"kind": "evaluation", "best": "yes"},
    ],
)
def test_a_line_of_metrics_without_sense(tmp_path, change):
    (tmp_path / "metrics.jsonl").write_text(json.dumps(STEP) + "\n" + json.dumps({**STEP, **change}) + "\n")
    with pytest.raises(TapelessError, match=r"line 2 of .* is not a line of metrics"):
        read_metrics(tmp_path)


@pytest.mark.parametrize(
    "text", ['{"kind": "stop", "step": 1, "reason": "\\ud800"}', f'{{"kind": "a", "step": {10**400}}}']
)
def test_a_line_of_metrics_that_cannot_be_printed_or_compared(tmp_path, text):
    (tmp_path / "metrics.jsonl").write_text(json.dumps(STEP) + "\n" + text + "\n")
    with pytest.raises(TapelessError, match="line 2"):
        read_metrics(tmp_path)
    with pytest.raises(TapelessError, match="line 2"):
        Recorder(tmp_path).cut_after(5)


def test_metrics_of_a_kind_that_is_not_known_here_are_kept(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"kind": "later", "step": 3, "loss": "as it likes"}) + "\n")
    assert len(read_metrics(tmp_path)) == 1


FEATURES = Features().document()
SOURCE = {
    "version": 1,
    "fasta": ["/a.fa"],
    "gff": ["/a.gff"],
    "feature": None,
    "code": {"number": 1, "starts": ["ATG"]},
    "held_out": ["chr1"],
    "signal": None,
    "labels": None,
    "amplitude": 1.0,
    "features": FEATURES,
}


@pytest.mark.parametrize(
    "change",
    [
        {"fasta": "\ud800"},
        {"fasta": 7},
        {"fasta": None},
        {"gff": None},
        {"gff": []},
        {"fasta": [7]},
        {"code": {"number": 1}},
        {"code": {"number": "x", "starts": ["ATG"]}},
        {"signal": "/s.npy"},
        {"held_out": "chr1"},
        {"held_out": [1]},
        {"held_out": None},
        {"amplitude": 10**400},
        {"amplitude": float("nan")},
        {"amplitude": "1"},
        {"amplitude": True},
        {"amplitude": 0},
        {"version": 2},
        {"features": FEATURES | {"scales": []}},
        {"features": FEATURES | {"scales": "3"}},
        {"features": FEATURES | {"scales": [10**400]}},
        {"feature": []},
    ],
)
def test_a_source_without_sense(tmp_path, change):
    (tmp_path / "source.json").write_text(json.dumps({**SOURCE, **change}))
    with pytest.raises(TapelessError, match=r"source\.json is damaged"):
        labelled.read_source(tmp_path)
    (tmp_path / "source.json").write_text(json.dumps(SOURCE))
    assert labelled.read_source(tmp_path).held_out == ("chr1",)


@pytest.mark.parametrize(
    "text", ["[]", "7", '{"threshold": "\\ud800"}', f'{{"threshold": {10**400}}}', "[" * 10**5, '{"threshold": NaN}']
)
def test_a_finder_without_sense(tmp_path, text):
    (tmp_path / "decoder.json").write_text(text)
    with pytest.raises(TapelessError, match=r"decoder\.json is damaged"):
        Finder.read(tmp_path)


def test_a_run_that_opens(run):
    assert open_run(run).preset().architecture.layers == 1
