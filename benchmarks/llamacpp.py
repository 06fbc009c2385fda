"""`make llama-cpp`: small models of every family that GGUF is written for, in llama.cpp itself, beside ours.

Logits, greedy text, the tokens of texts in each way of splitting them, and where a text begins and ends. Writes what
came of it into docs/llama-cpp.md, between its markers.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tapeless import Model
from tapeless.tasks.chat.template import Chat
from tapeless.tasks.data.tokenizer import load_tokenizer
from tapeless.weights.gguf import write_gguf
from tapeless.weights.vocabulary import NUMBERS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs" / "llama-cpp.md"
BEGIN, END = "<!-- make llama-cpp: begin -->", "<!-- make llama-cpp: end -->"
READER = Path(__file__).with_name("llamacpp_reader.py")
VOCAB, SEQUENCE, CONTINUED = 512, 24, 24
SMALL: dict[str, Any] = {"layers": 2, "channels": 64, "heads": 4, "vocab": VOCAB, "context": 64}
GROUPED = SMALL | {"kv_heads": 2, "hidden": 96}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT-2": ("gpt2-4x256", SMALL),
    "Llama": ("llama-4x256", GROUPED | {"tied": False}),
    "Llama, tied, wide heads": ("llama-4x256", GROUPED | {"head_width": 32, "tied": True}),
    "Llama with biases": ("llama-4x256", GROUPED | {"attention_bias": True, "projection_bias": True, "mlp_bias": True}),
    "Llama, RoPE scaled linearly": ("llama-4x256", GROUPED | {"rope_scaling": "linear", "rope_factor": 4.0}),
    "Llama, RoPE scaled as Llama 3's": (
        "llama-4x256",
        GROUPED | {"rope_scaling": "llama3", "rope_factor": 8.0, "rope_old_context": 16},
    ),
    "Mistral": ("llama-4x256", GROUPED | {"window": 60}),
    "Qwen2": ("qwen2.5-0.5b", GROUPED),
    "Qwen3": ("qwen3-0.6b", GROUPED | {"head_width": 32}),
}
ODD = [
    "",
    " ",
    "  two  blanks ",
    "\n\n\t\r\n x",
    "don't DON'T we'll",
    "1234567 12 3.14",
    "größe Ünïcode 日本語 🦊👩‍👩‍👧",
    "<|end|>",
    "a<|endoftext|>b",
    "x" * 300,
    "!!!??? ... --",
    "def f(x):\n    return {'a': x}\n",
]
TEMPLATE = "{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}"
SPECIAL = ["<unk>", "<s>", "<|end|>", "<|turn|>", "<|endoftext|>"]


@dataclass(frozen=True)
class Found:
    name: str
    dtype: str
    difference: float  # of logits, over the largest of ours
    same: int  # tokens of greedy text that are the same, from the first on


def ways() -> dict[str, Tokenizer]:
    """A tokenizer for each way of splitting text that has a name in llama.cpp, learned from our pages."""
    byte = pre_tokenizers.ByteLevel
    splits = {
        "GPT-2": byte(add_prefix_space=False),
        "SmolLM": pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), byte(add_prefix_space=False)]
        ),
        "Llama 3": _numbers("{1,3}"),
        "Qwen2": _numbers(""),
    }
    made = {name: _learned(split) for name, split in splits.items()}
    pieces = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    pieces.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    pieces.decoder = decoders.Sequence(steps)
    fallback = [f"<0x{number:02X}>" for number in range(256)]
    _train(pieces, VOCAB, [*SPECIAL, *fallback], [])
    described = json.loads(pieces.to_str())
    described["added_tokens"] = [each for each in described["added_tokens"] if each["content"] in SPECIAL]
    made["SentencePiece"] = Tokenizer.from_str(json.dumps(described))
    return made


def _numbers(most: str) -> Any:
    split = pre_tokenizers.Split(Regex(NUMBERS % most), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _learned(split: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = split, decoders.ByteLevel()
    _train(tokenizer, VOCAB, SPECIAL, sorted(pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def _train(tokenizer: Tokenizer, vocab: int, special: list[str], alphabet: list[str]) -> None:
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts(), trainer)


def texts() -> list[str]:
    """Paragraphs of our pages, and some that nobody writes."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return ODD + [part for page in pages for part in page.read_text(encoding="utf-8").split("\n\n")][::5]


def model_of(name: str, seed: int) -> Model:
    """Nothing is 0 or 1 behind which a mistake could hide."""
    preset, fields = MODELS[name]
    model = Model(preset, time=SEQUENCE, backend="reference", precision="float64", optimizer=None, **fields)
    rng = np.random.default_rng(seed)
    for title, array in model.params.items():
        model.write(title, (array + 0.1 * rng.normal(size=array.shape)).astype(np.float32))
    return model


def rounded(model: Model, dtype: str) -> None:
    """To what the file holds: matrices in its type, all else in float32."""
    for title, array in model.weights().items():
        if array.ndim > 1 and title != "positions.weight":
            model.write(title, array.astype(dtype).astype(np.float32))


def asked_of(python: str, file: Path, words_alone: bool = False, said: tuple[str, ...] = ()) -> dict[str, Any]:
    """What llama.cpp makes of a file."""
    ids, answer = sequence(), file.with_suffix(".json")
    question = {
        "file": str(file),
        "answer": str(answer),
        "room": 256,
        "ids": ids,
        "count": CONTINUED,
        "texts": said,
        "words_alone": words_alone,
    }
    ran = subprocess.run([python, str(READER)], input=json.dumps(question), capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"llama.cpp did not take {file.name}: {' '.join(ran.stderr.split())[-600:]}")
    found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    return found


def sequence() -> list[int]:
    return [int(each) for each in np.random.default_rng(0).integers(len(SPECIAL), VOCAB, SEQUENCE)]


def compared(python: str, folder: Path, words: Path) -> Iterator[Found]:
    ids = sequence()
    for number, name in enumerate(MODELS):
        for dtype in ("float32", "float16"):
            model, file = model_of(name, number), folder / f"{number}-{dtype}.gguf"
            write_gguf(file, name, model.config, model.weights(), words, dtype)
            rounded(model, dtype)
            theirs = asked_of(python, file)
            ours = model.logits(np.array([ids]))[0]
            difference = float(np.abs(ours - np.array(theirs["logits"])).max() / np.abs(ours).max())
            written = model.generate(ids, CONTINUED, temperature=0)
            same = next((n for n in range(CONTINUED) if written[n] != theirs["written"][n]), CONTINUED)
            yield Found(name, dtype, difference, same)


def split(python: str, folder: Path) -> Iterator[tuple[str, int, int]]:
    """For each way of splitting text, of how many texts the tokens are the same."""
    said = texts()
    for name, tokenizer in ways().items():
        place = folder / name.replace(" ", "-")
        place.mkdir()
        tokenizer.save(str(place / "tokenizer.json"))
        (place / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}', encoding="utf-8")
        model = model_of("Llama", 0)
        write_gguf(place / "words.gguf", name, model.config, model.weights(), place / "tokenizer.json")
        theirs = asked_of(python, place / "words.gguf", words_alone=True, said=tuple(said))["texts"]
        ours = [load_tokenizer(place).encode(text) for text in said]
        yield name, sum(a == b for a, b in zip(ours, theirs, strict=True)), len(said)


def ends(python: str, folder: Path) -> Iterator[tuple[str, str, str, str]]:
    """Where a text begins and ends, by what lies beside the tokenizer: as llama.cpp has it, and as the files say."""
    about = {"bos_token": "<s>", "eos_token": "<|end|>"}
    cases: dict[str, tuple[dict[str, dict[str, Any]], Chat | None]] = {
        "nothing": ({}, None),
        "an end": ({"tokenizer_config.json": {"eos_token": "<|end|>"}}, None),
        "a beginning and an end": ({"tokenizer_config.json": about}, None),
        "two ends to stop at": (
            {"tokenizer_config.json": about, "generation_config.json": {"eos_token_id": [4, 3]}},
            None,
        ),
        "an end by its id": ({"config.json": {"eos_token_id": 2, "bos_token_id": 1}}, None),
        "a chat template": ({"tokenizer_config.json": about}, Chat(TEMPLATE, about, (2,))),
    }
    model, described = model_of("Llama", 0), ways()["GPT-2"]
    for number, (name, (files, chat)) in enumerate(cases.items()):
        place = folder / f"ends-{number}"
        place.mkdir()
        described.save(str(place / "tokenizer.json"))
        for file, content in files.items():
            (place / file).write_text(json.dumps(content), encoding="utf-8")
        words = load_tokenizer(place)
        write_gguf(place / "m.gguf", name, model.config, model.weights(), place / "tokenizer.json", chat=chat)
        found = asked_of(python, place / "m.gguf", words_alone=True)
        if found["template"] != (None if chat is None else chat.template):
            sys.exit(f"with {name} llama.cpp finds another template than was written.")
        wanted = words.end if words.begin is None else words.begin
        if (found["begin"], found["end"]) != (wanted, words.end) or not set(words.stops) <= set(found["stops"]):
            sys.exit(f"with {name} llama.cpp begins, ends and stops at other tokens than were written: {found}")
        spelled = [described.id_to_token(each) for each in (found["begin"], found["end"])]
        yield name, spelled[0], spelled[1], ", ".join(described.id_to_token(each) for each in found["stops"])


def report(
    found: list[Found], splits: list[tuple[str, int, int]], told: list[tuple[str, str, str, str]], what: str
) -> str:
    families = dict.fromkeys(each.name for each in found)
    of = {(each.name, each.dtype): each for each in found}
    rows = "\n".join(
        f"| {name} | "
        + " | ".join(f"{of[name, d].difference:.1e} | {of[name, d].same}" for d in ("float32", "float16"))
        + " |"
        for name in families
    )
    words = "; ".join(f"{name} {same:,} of {count:,}" for name, same, count in splits)
    beginnings = "\n".join(
        f"| {name} | `{begin}` | `{end}` | `{stops}` |".replace("<|", "<\\|").replace("|>", "\\|>")
        for name, begin, end, stops in told
    )
    return f"""{date.today()}, `make llama-cpp`, {what}: random models of two blocks, {VOCAB} tokens. Differences of the logits of {SEQUENCE} positions from ours in float64 (with the weights that the file holds), over the largest logit; and how many of {CONTINUED} tokens of greedy text are the same, from the first on:

| | float32 | text | float16 | text |
|---|--:|--:|--:|--:|
{rows}

GPT-2 differs more, as llama.cpp looks its GELU up in a table of float16; in files of float16 it rounds what it multiplies, too. Keys and values were kept in float32.

Texts whose tokens are the same, by the way in which they are split: {words}.

Where a text begins, ends, and where llama.cpp stops, by what lies beside tokenizer.json:

| | begins | ends | stops at |
|---|---|---|---|
{beginnings}
"""  # noqa: E501


def write(path: Path, text: str) -> None:
    """Between the markers, whatever stood there."""
    before, found, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (found and ended):
        sys.exit(f"{path} has no {BEGIN} … {END}: put both back where the figures belong.")
    path.write_text(f"{before}{BEGIN}\n{text}{END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reader", required=True, help="a Python that has llama-cpp-python")
    parser.add_argument("--docs", type=Path, default=DOCS, help="the page that the figures are written into")
    asked = parser.parse_args()
    ran = subprocess.run(
        [asked.reader, "-c", "import llama_cpp; print(llama_cpp.__version__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    with tempfile.TemporaryDirectory() as given:
        folder = Path(given)
        words = folder / "tokenizer.json"
        ways()["GPT-2"].save(str(words))
        found = []
        for each in compared(asked.reader, folder, words):
            found.append(each)
            print(f"{each.name}, {each.dtype}: {each.difference:.1e}, text {each.same} of {CONTINUED}", flush=True)
        splits = []
        for name, same, count in split(asked.reader, folder):
            splits.append((name, same, count))
            print(f"split as {name}: {same:,} of {count:,} texts", flush=True)
        told = []
        for row in ends(asked.reader, folder):
            told.append(row)
            print(f"beside it {row[0]}: begins {row[1]}, ends {row[2]}, stops at {row[3]}", flush=True)
    text = report(found, splits, told, f"llama-cpp-python {ran.stdout.strip()} on {platform.machine()}")
    write(asked.docs, text)
    print(text)


if __name__ == "__main__":
    main()
