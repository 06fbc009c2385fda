"""Every file that the program reads, by whom: sound examples to start from, how they are changed, how they are read.

Files whose checksum another file holds are sealed anew after the change: a mutation must get past the checksum to
meet the code behind it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tapeless.files import disk
from tapeless.files.safetensors import read_safetensors, write_safetensors
from tapeless.labelling import source as labelled
from tapeless.labelling.genome.fasta import read_records
from tapeless.labelling.genome.found import Calibration, Finder
from tapeless.labelling.genome.gff import labels, read_annotation
from tapeless.labelling.signal.checks import checked_labels
from tapeless.labelling.signal.npy import open_array
from tapeless.model import Model
from tapeless.models import transformer
from tapeless.models.config import Preset
from tapeless.models.presets import preset
from tapeless.tasks.data.corpus import find_documents
from tapeless.tasks.data.meta import read_meta
from tapeless.tasks.data.prepare import prepare, split_documents
from tapeless.tasks.data.reading import Reading
from tapeless.tasks.data.tokenizer import load_tokenizer, train_bpe
from tapeless.tasks.data.tokens import open_data
from tapeless.tasks.operations import KIND, Operations
from tapeless.train import checkpoint, manifest, session
from tapeless.train.doctor import diagnose
from tapeless.train.loop import Trainer
from tapeless.train.metrics import Recorder, read_metrics
from tapeless.train.run import open_run, write_configuration
from tapeless.train.settings import Request, Settings, as_toml, read_request
from tapeless.weights import hugging_face, peft
from tools.fuzz import speaking
from tools.fuzz.mutate import (
    Mutation,
    mixed,
    some_bytes,
    some_json,
    some_json_lines,
    some_lines,
    some_npy,
    some_safetensors,
    some_toml,
    zipped,
)

Read = Callable[[bytes], None]
SMALL = {"layers": 1, "channels": 4, "heads": 2, "hidden": 8}
TEXT = "the quick brown fox jumps over the lazy dog\nüber 1.000 Füchse\n" * 20


@dataclass(frozen=True)
class Reader:
    name: str
    share: int  # of a thousand inputs, or so
    mutate: Mutation
    prepare: Callable[[Path], tuple[list[bytes], Read]]  # in an empty folder: examples, and how one is read


def _ops_config() -> Any:
    return preset("ops-102k").override(**SMALL)


def _ops_request(**settings: Any) -> Request:
    suited = Settings(data="operations", backend="reference", **settings).suited(_ops_config().architecture)
    return Request("ops-102k", SMALL, replace(suited, tokenizer="none"))


def _trainer(**settings: Any) -> Trainer:
    request, config = _ops_request(**settings), _ops_config()
    return Trainer(session.make_model(request, config, KIND), Operations(config.architecture, 0), request.settings)


def _run_configuration(folder: Path) -> tuple[list[bytes], Read]:
    ops = as_toml(_ops_request(), _ops_config())
    text = Request("gpt2-4x256", {}, Settings(data="stdlib").suited(preset("gpt2-4x256").architecture))
    signal = Request("sunfish", {}, Settings(data="labelled", tokenizer="none"), (0.2, 1.8))
    examples = [ops, as_toml(text, preset("gpt2-4x256")), as_toml(signal, preset("sunfish").override(**signal.model))]

    def read(data: bytes) -> None:
        (folder / "config.toml").write_bytes(data)
        run = open_run(folder)
        run.tokenizer_spec()
        as_toml(run.request(), run.preset())

    return [example.encode() for example in examples], read


def _training_file(folder: Path) -> tuple[list[bytes], Read]:
    examples, _ = _run_configuration(folder)

    def read(data: bytes) -> None:
        path = folder / "mine.toml"
        path.write_bytes(data)
        request = read_request(str(path)).override({}, {"lr": 1e-4})
        config = request.resolved()
        request.settings.suited(config.architecture).optimizer(config.optimizer)

    return [*examples, b'preset = "ops-102k"\nlr = 1e-3\n[model]\nlayers = 1\n', b""], read


def _saved(folder: Path, trainer: Trainer) -> Path:
    return checkpoint.save(folder, trainer.step, trainer.tensors(), trainer.state(), best=True)


def _reseal(path: Path) -> None:
    """The manifest of what the files of a checkpoint are now."""
    files = {}
    for file in sorted(path.iterdir()):
        if file.name != manifest.MANIFEST:
            content = file.read_bytes()
            files[file.name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (path / manifest.MANIFEST).write_bytes(disk.sealed({"format": 1, "step": 0, "files": files}))


def _state(folder: Path) -> tuple[list[bytes], Read]:
    trainer = _trainer(accumulate=3)
    at_rest = trainer.state()
    trainer.batch()
    path = _saved(folder, trainer)  # in the middle of an update, so that gradients are there, too

    def read(data: bytes) -> None:
        (path / manifest.STATE).write_bytes(data)
        _reseal(path)
        trainer.restore(checkpoint.load(path))
        json.dumps(trainer.state())

    return [(path / manifest.STATE).read_bytes(), json.dumps(at_rest).encode()], read


def _manifest(folder: Path) -> tuple[list[bytes], Read]:
    path = _saved(folder, _trainer())
    sound = (path / manifest.MANIFEST).read_bytes()

    def read(data: bytes) -> None:
        (path / manifest.MANIFEST).write_bytes(_sealed_again(data))
        found, messages = checkpoint.newest(folder)
        assert found or messages
        checkpoint.load(path)

    return [json.dumps({k: v for k, v in json.loads(sound).items() if k != "sha256"}).encode()], read


def _best(folder: Path) -> tuple[list[bytes], Read]:
    _saved(folder, _trainer())

    def read(data: bytes) -> None:
        (folder / checkpoint.BEST).write_bytes(_sealed_again(data))
        checkpoint.best(folder)

    return [b'{"step": 0, "before": null}', b'{"step": 7, "before": 0}'], read


def _sealed_again(data: bytes) -> bytes:
    try:
        content = json.loads(data)
        return disk.sealed(content) if isinstance(content, dict) else data
    except (ValueError, RecursionError):
        return data


def _checkpoint_tensors(folder: Path) -> tuple[list[bytes], Read]:
    trainer = _trainer()
    path = _saved(folder, trainer)
    weights = path / "weights.safetensors"

    def read(data: bytes) -> None:
        weights.write_bytes(data)
        _reseal(path)
        trainer.restore(checkpoint.load(path))

    return [weights.read_bytes()], read


def _metrics(folder: Path) -> tuple[list[bytes], Read]:
    recorder = Recorder(folder)
    for step in range(10, 150, 10):
        norms = {"embedding": 0.5, "blocks.0": 0.4 / step, "head": 1.0}
        recorder.record(
            "step",
            step,
            loss=3.0 / step,
            lr=1e-3,
            gradient_norm=1.2,
            gradient_norms=norms,
            update_ratios=norms,
            tokens_per_second=1000.0,
            phases={"data": 0.1, "other": 0.9},
        )
    recorder.record("spike", 60, message="the loss leapt to 9.")
    recorder.record(
        "evaluation",
        140,
        loss=1.0,
        accuracy=0.5,
        train_loss=None,
        train_accuracy=None,
        cross_entropy=None,
        epoch=1.5,
        best=True,
        dead_units={"blocks.0": 0.3},
        spread=None,
    )
    recorder.record("stop", 140, reason="all 140 updates are done")
    sound = (folder / "metrics.jsonl").read_bytes()

    def read(data: bytes) -> None:
        (folder / "metrics.jsonl").write_bytes(data)
        json.dumps([vars(finding) for finding in diagnose(read_metrics(folder))], ensure_ascii=False).encode()

    return [sound, sound[:-20]], read


def _metrics_again(folder: Path) -> tuple[list[bytes], Read]:
    examples, _ = _metrics(folder)

    def read(data: bytes) -> None:
        (folder / "metrics.jsonl").write_bytes(data)
        Recorder(folder).cut_after(60)
        read_metrics(folder)

    return examples, read


FASTA = b">chr1 first\nACGTNacgtnRYKM\nACGTAGCATGCATGCAATCGATTCGAC\n>chr2\nGGGGCCCCAATT\n"
GFF = (
    b"##gff-version 3\n##sequence-region chr1 1 41\n"
    b"chr1\tx\tgene\t1\t40\t.\t+\t.\tID=g1\n"
    b"chr1\tx\texon\t3\t12\t.\t+\t.\tParent=g1;Note=a%20b\n"
    b"chr1\tx\tCDS\t5\t10\t.\t-\t0\tParent=g1\n"
    b"chr2\tx\texon\t1\t6\t0.5\t-\t.\tID=e2\n###\n"
)


def _source(folder: Path) -> tuple[list[bytes], Read]:
    genome, genes = folder / "genome.fa", folder / "genes.gff"
    genome.write_bytes(FASTA)
    genes.write_bytes(GFF)
    signal, classes = folder / "signal.npy", folder / "labels.npy"
    np.save(signal, np.sin(np.arange(60.0)))
    np.save(classes, np.arange(60) % 3)
    made = [
        labelled.Source((str(genome),), (str(genes),), "exon", held_out=("chr2",)),
        labelled.Source(signal=str(signal), labels=str(classes), amplitude=1.4),
    ]
    for number, source in enumerate(made):
        (folder / str(number)).mkdir()
        source.write(folder / str(number))

    def read(data: bytes) -> None:
        (folder / "source.json").write_bytes(data)
        labelled.read_data(labelled.read_source(folder), 0.3)

    return [(folder / str(number) / "source.json").read_bytes() for number in range(2)], read


def _finder(folder: Path) -> tuple[list[bytes], Read]:
    Finder("exon", Calibration(0.9, -0.2), 0.37).write(folder)

    def read(data: bytes) -> None:
        (folder / "decoder.json").write_bytes(data)
        assert 0 <= Finder.read(folder).threshold <= 1

    return [(folder / "decoder.json").read_bytes()], read


def _npy(folder: Path) -> list[bytes]:
    examples = []
    for values in (np.arange(10.0), np.arange(10) % 2, np.arange(6) + 1j, np.arange(10, dtype=np.float16)):
        np.save(folder / "one.npy", values)
        examples.append((folder / "one.npy").read_bytes())
    return examples


def _signal(folder: Path) -> tuple[list[bytes], Read]:
    def read(data: bytes) -> None:
        path = folder / "signal.npy"
        path.write_bytes(data)
        labelled.make_source(signal=path, labels=path, scales=(3.0, 4.0))

    return _npy(folder), read


def _labels(folder: Path) -> tuple[list[bytes], Read]:
    def read(data: bytes) -> None:
        path = folder / "labels.npy"
        path.write_bytes(data)
        checked_labels(open_array(path), 10, 5, str(path))

    return _npy(folder), read


def _fasta(folder: Path) -> tuple[list[bytes], Read]:
    def read(data: bytes) -> None:
        path = folder / "genome.fa"
        path.write_bytes(data)
        assert all(len(record.bases) for record in read_records(path))

    return [FASTA, FASTA.replace(b"\n", b"\r\n"), b">a\nACGT"], read


def _gff(folder: Path) -> tuple[list[bytes], Read]:
    lengths = {"chr1": 41, "chr2": 12}

    def read(data: bytes) -> None:
        path = folder / "genes.gff"
        path.write_bytes(data)
        labels(read_annotation(path, lengths), lengths)

    return [GFF, GFF + b"##FASTA\n>chr1\nACGT\n"], read


def _tokenizers(folder: Path) -> list[bytes]:
    train_bpe(iter([TEXT]), 270).save(folder)
    content = json.loads((folder / "tokenizer.json").read_bytes())
    words = {"version": "1.0", "added_tokens": content["added_tokens"]}
    words["model"] = {"type": "WordLevel", "vocab": {"<|endoftext|>": 0, "the": 1, "[UNK]": 2}, "unk_token": "[UNK]"}
    words["pre_tokenizer"], words["decoder"] = {"type": "Whitespace"}, None
    unigram = {**words, "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<|endoftext|>", 0.0], ["the", -1.5]]}}
    return [json.dumps(each).encode() for each in (content, words, unigram)]


def _tokenizer(folder: Path) -> tuple[list[bytes], Read]:
    examples = _tokenizers(folder)

    def read(data: bytes) -> None:
        path = folder / "tokenizer.json"
        path.write_bytes(data)
        tokenizer = load_tokenizer(path)
        stream = tokenizer.stream()
        for token in tokenizer.encode("the quick 1.000\n"):
            stream.push(token)
        stream.finish()

    return examples, read


def _tokens_folder(folder: Path) -> Path:
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    return prepare(str(folder / "text.txt"), folder / "tokens").folder


def _meta(folder: Path) -> tuple[list[bytes], Read]:
    tokens = _tokens_folder(folder)
    sound = (tokens / "meta.json").read_bytes()

    def read(data: bytes) -> None:
        (tokens / "meta.json").write_bytes(data)
        open_data(tokens)

    return [sound], read


def _shard(folder: Path) -> tuple[list[bytes], Read]:
    tokens = _tokens_folder(folder)
    meta = json.loads((tokens / "meta.json").read_bytes())
    shard = meta["training"]["shards"][0]

    def read(data: bytes) -> None:
        (tokens / shard["file"]).write_bytes(data)
        shard["sha256"], shard["tokens"] = hashlib.sha256(data).hexdigest(), len(data) // 2
        meta["training"]["tokens"] = shard["tokens"]
        (tokens / "meta.json").write_text(json.dumps(meta))
        read_meta(tokens)
        opened = open_data(tokens)
        opened.training.window(0, len(opened.training))

    return [(tokens / shard["file"]).read_bytes()[:200]], read


def _bin(folder: Path) -> tuple[list[bytes], Read]:
    ids = np.arange(100, dtype="<u2") % 90
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, len(ids)
    wide = header.copy()
    wide[:2] = 20240801, 7

    def read(data: bytes) -> None:
        path = folder / "tokens.bin"
        path.write_bytes(data)
        opened = open_data(path)
        opened.training.window(0, len(opened.training))

    return [ids.tobytes(), header.tobytes() + ids.tobytes(), wide.tobytes() + ids.astype("<u4").tobytes()], read


def _bin_folder(folder: Path) -> tuple[list[bytes], Read]:
    examples, _ = _bin(folder)
    (folder / "val.bin").write_bytes(examples[0])

    def read(data: bytes) -> None:
        (folder / "train.bin").write_bytes(data)
        open_data(folder)

    return examples, read


def _corpus(name: str, *examples: bytes) -> Callable[[Path], tuple[list[bytes], Read]]:
    def prepared(folder: Path) -> tuple[list[bytes], Read]:
        def read(data: bytes) -> None:
            path = folder / name
            path.write_bytes(data)
            corpus = find_documents(str(path), Reading(encoding="utf-16-le", drop_duplicates=True))
            try:
                for side in split_documents(corpus, 0.2, 0).values():
                    for number in side.tolist():
                        assert sum(map(len, corpus.documents.pieces(number))) == corpus.documents.sizes[number]
            finally:
                corpus.close()

        return list(examples), read

    return prepared


TEXTS = (TEXT.encode()[:400], b"\xef\xbb\xbfone\ntwo\r\n", b"a", b"no line end, \xc3\xbc", TEXT[:90].encode("utf-16"))
JSON_LINES = b"".join(json.dumps({"id": n, "text": line}).encode() + b"\n" for n, line in enumerate(TEXT.split("\n")))
TABLE = b'id,text\n1,"a, ""b""\nc"\n2,plain\n3,\xc3\xbc\n'


def _safetensors(folder: Path) -> tuple[list[bytes], Read]:
    path = folder / "one.safetensors"
    write_safetensors(path, {"a": np.zeros((2, 3)), "b": np.ones(3, np.float32), "c": np.zeros(0, np.int8)})

    def read(data: bytes) -> None:
        path.write_bytes(data)
        for array in read_safetensors(path).values():
            array.tobytes()

    return [path.read_bytes()], read


def _gpt2(folder: Path) -> Path:
    small = preset("gpt2-4x256").override(**SMALL, vocab=7, context=5)
    model = Model(small, backend="reference", precision="float32", time=1, optimizer=None)
    hugging_face.write_folder(folder / "gpt2", small.architecture, model.params, None)
    return folder / "gpt2"


def _hugging_face(name: str) -> Callable[[Path], tuple[list[bytes], Read]]:
    def prepared(folder: Path) -> tuple[list[bytes], Read]:
        gpt2 = _gpt2(folder)
        file = gpt2 / name
        if name.endswith("index.json"):
            (gpt2 / "model.safetensors").rename(gpt2 / "model-1.safetensors")
            held = read_safetensors(gpt2 / "model-1.safetensors")
            file.write_text(json.dumps({"weight_map": dict.fromkeys(held, "model-1.safetensors")}))
        sound = file.read_bytes()

        def read(data: bytes) -> None:
            file.write_bytes(data)
            config = hugging_face.read_config(gpt2)
            shapes = {
                weight.name: weight.shape for weight in transformer.evaluation(Preset("any", config), 1, 1).weights
            }
            arrays = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
            hugging_face.read_weights(gpt2, config, arrays)

        return [sound], read

    return prepared


def _resume(folder: Path) -> tuple[list[bytes], Read]:
    """A whole run, of which the configuration is changed in what is not the model's size, and gone on with."""
    request, config = _ops_request(steps=5), _ops_config()
    trainer = _trainer(steps=5)
    made = open_or_make(folder / "run", request, config)
    state = trainer.state() | {"run": session.identity(request, config, trainer.task)}
    checkpoint.save(made / "checkpoints", 0, trainer.tensors(), state, best=True)
    sound = (made / "config.toml").read_bytes()
    settings, model = sound.split(b"\n[model]\n")
    backend = b'backend = "reference"\n'  # compiling kernels would be all that is timed
    assert backend in settings

    def read(data: bytes) -> None:
        (made / "metrics.jsonl").write_bytes(b"")
        (made / "config.toml").write_bytes(backend + data + b"\n[model]\n" + model)
        session.resume(made, {}, {}).run.release()

    return [settings.replace(backend, b"")], read


def open_or_make(folder: Path, request: Request, config: Any) -> Path:
    from tapeless.train.run import Run

    folder.mkdir()
    write_configuration(Run(folder), request, config)
    return folder


def _bytes_or(mutation: Mutation) -> Mutation:
    return mixed((mutation, mutation, mutation, some_bytes))


READERS = (
    Reader("run's config.toml", 90, some_toml, _run_configuration),
    Reader("training file (TOML)", 70, some_toml, _training_file),
    Reader("checkpoint: state.json, resealed", 40, _bytes_or(some_json), _state),
    Reader("checkpoint: manifest.json, resealed", 40, _bytes_or(some_json), _manifest),
    Reader("checkpoint: best.json, resealed", 30, _bytes_or(some_json), _best),
    Reader("checkpoint: tensors, resealed", 20, some_safetensors, _checkpoint_tensors),
    Reader("metrics.jsonl, and the doctor", 60, some_json_lines, _metrics),
    Reader("metrics.jsonl, cut and gone on with", 20, some_json_lines, _metrics_again),
    Reader("source.json", 70, _bytes_or(some_json), _source),
    Reader("decoder.json", 70, _bytes_or(some_json), _finder),
    Reader(".npy: signal", 70, some_npy, _signal),
    Reader(".npy: labels", 70, some_npy, _labels),
    Reader("FASTA", 60, mixed((some_lines, some_bytes)), _fasta),
    Reader("FASTA, gzip", 40, zipped(mixed((some_lines, some_bytes))), _fasta),
    Reader("GFF3", 60, mixed((some_lines, some_lines, some_bytes)), _gff),
    Reader("GFF3, gzip", 40, zipped(mixed((some_lines, some_bytes))), _gff),
    Reader("tokenizer.json", 10, _bytes_or(some_json), _tokenizer),
    Reader("prepared tokens: meta.json", 50, _bytes_or(some_json), _meta),
    Reader("prepared tokens: shard, resealed", 40, some_bytes, _shard),
    Reader(".bin of nanoGPT and llm.c", 60, some_bytes, _bin),
    Reader("folder of .bin", 30, some_bytes, _bin_folder),
    Reader("text", 40, mixed((some_lines, some_bytes)), _corpus("text.txt", *TEXTS)),
    Reader("text, gzip", 10, zipped(mixed((some_lines, some_bytes))), _corpus("text.gz", *TEXTS)),
    Reader("JSON lines", 30, mixed((some_json_lines, some_bytes)), _corpus("rows.jsonl", JSON_LINES)),
    Reader("table", 20, mixed((some_lines, some_bytes)), _corpus("rows.csv", TABLE)),
    Reader("safetensors", 70, some_safetensors, _safetensors),
    Reader("Hugging Face: config.json", 20, _bytes_or(some_json), _hugging_face("config.json")),
    Reader("Hugging Face: index", 10, _bytes_or(some_json), _hugging_face("model.safetensors.index.json")),
    Reader("Hugging Face: model.safetensors", 10, some_safetensors, _hugging_face("model.safetensors")),
    Reader("Hugging Face: config.json of a Llama", 20, _bytes_or(some_json), speaking.llama_config),
    Reader("conversations", 20, mixed((some_json_lines, some_bytes)), speaking.conversations("chats.jsonl")),
    Reader("conversations, one list", 10, _bytes_or(some_json), speaking.conversations("chats.json")),
    Reader("prepared conversations: conversations.json", 30, _bytes_or(some_json), speaking.about_conversations),
    Reader("prepared conversations: tensors, resealed", 20, some_safetensors, speaking.prepared_conversations),
    Reader("run's chat.json", 30, _bytes_or(some_json), speaking.chat_file("chat.json")),
    Reader("tokenizer_config.json", 30, _bytes_or(some_json), speaking.chat_file("tokenizer_config.json")),
    Reader("generation_config.json", 20, _bytes_or(some_json), speaking.chat_file("generation_config.json")),
    Reader("chat template, rendered", 10, speaking.some_template, speaking.chat_template),
    Reader("adapter_config.json", 30, _bytes_or(some_json), speaking.adapter(peft.CONFIG)),
    Reader("adapter_model.safetensors", 20, some_safetensors, speaking.adapter(peft.TENSORS)),
    Reader("adapter's tapeless.json", 10, _bytes_or(some_json), speaking.adapter(peft.BASE)),
    Reader("a whole run, resumed", 3, some_toml, _resume),
)


def example_of(reader: Reader, examples: list[bytes], seed: int, number: int) -> bytes:
    """An input, made from the seed, the reader's name and its number alone."""
    rng = Random(f"{seed}/{reader.name}/{number}")
    return reader.mutate(rng, rng.choice(examples))
