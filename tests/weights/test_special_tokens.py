"""Where texts end and writing stops is what transformers reads from the same files, there and back."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import tapeless
from tapeless.errors import TapelessError
from tapeless.tasks.data.prepare import prepare
from tapeless.tasks.data.tokenizer import load_tokenizer
from tapeless.tasks.data.tokens import open_data
from tapeless.tasks.text import Text
from tapeless.weights.runs import export_run, import_folder
from tests.screens import document, screen

WORDS = ["<unk>", "<s>", "</s>", "<|endoftext|>", "<|end|>", "<|turn|>", *"abcdefghij"]
ADDED = WORDS[:6]
FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}
END = {"eos_token": "<|end|>"}
CONFIG, TOKENS, MAP, GENERATION = (
    f"{name}.json" for name in ("config", "tokenizer_config", "special_tokens_map", "generation_config")
)
# What lies in a folder, which token ends a text, and the ids at which writing stops. None: nothing says, 3 is guessed.
FOLDERS: dict[str, tuple[dict[str, dict[str, Any]], int | None, set[int]]] = {
    "nothing": ({}, None, set()),
    "a class alone": ({TOKENS: {}}, None, set()),
    "named": ({TOKENS: END}, 4, set()),
    "described": ({TOKENS: {"eos_token": {"__type": "AddedToken", "content": "<|turn|>"}}}, 5, set()),
    "named by the map alone": ({MAP: {"eos_token": "<|turn|>"}}, 5, set()),
    "named by the map, too": ({TOKENS: END, MAP: {"eos_token": {"content": "<|turn|>"}}}, 5, set()),
    "the map is old": ({TOKENS: END | {"added_tokens_decoder": {}}, MAP: {"eos_token": "<|turn|>"}}, 4, set()),
    "null and the map": ({TOKENS: {"eos_token": None}, MAP: END}, 4, set()),
    "an id": ({CONFIG: {"eos_token_id": 4}}, None, {4}),
    "ids": ({CONFIG: {"eos_token_id": [4, 5]}}, None, {4, 5}),
    "no id": ({CONFIG: {"eos_token_id": None}, TOKENS: END}, 4, set()),
    "an id outside": ({CONFIG: {"eos_token_id": 99}, TOKENS: END}, 4, {99}),
    "an id below": ({CONFIG: {"eos_token_id": -1}, TOKENS: END}, 4, {-1}),
    "another for generating": ({CONFIG: {"eos_token_id": 4}, GENERATION: {"eos_token_id": 5}, TOKENS: END}, 4, {5}),
    "several for generating": ({CONFIG: {"eos_token_id": 2}, GENERATION: {"eos_token_id": [5, 3]}}, None, {5, 3}),
    "none for generating": ({CONFIG: {"eos_token_id": 5}, GENERATION: {"do_sample": True}, TOKENS: END}, 4, set()),
    "null for generating": ({CONFIG: {"eos_token_id": 5}, GENERATION: {"eos_token_id": None}, TOKENS: END}, 4, set()),
    "an empty list": ({CONFIG: {"eos_token_id": 5}, GENERATION: {"eos_token_id": []}, TOKENS: END}, 4, set()),
    "they disagree": ({CONFIG: {"eos_token_id": 2}, TOKENS: END}, 4, {2}),
}
BY_ID = {"an id": 4, "ids": 4, "several for generating": 2}  # where transformers names no token, and a text must end


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("base")
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.add_special_tokens(ADDED)
    config = LlamaConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        vocab_size=len(WORDS),
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    theirs = LlamaForCausalLM(config)
    for weight in theirs.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    theirs.save_pretrained(folder)
    (folder / GENERATION).unlink()
    described = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({k: v for k, v in described.items() if not k.endswith("_token_id")}))
    words.save(str(folder / "tokenizer.json"))
    return folder


def made(base: Path, folder: Path, files: dict[str, dict[str, Any]]) -> Path:
    shutil.copytree(base, folder)
    for name, content in files.items():
        before = json.loads((folder / name).read_text()) if name == CONFIG else FAST if name == TOKENS else {}
        (folder / name).write_text(json.dumps(before | content))
    return folder


def listed(ids: Any) -> set[int]:
    return set() if ids is None else set(ids) if isinstance(ids, list) else {ids}


@pytest.mark.parametrize("name", FOLDERS)
def test_ends_and_stops_are_those_of_transformers(base: Path, tmp_path: Path, name: str) -> None:
    files, end, stops = FOLDERS[name]
    folder = made(base, tmp_path / "folder", files)
    theirs, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    assert (theirs.eos_token_id, listed(model.generation_config.eos_token_id)) == (end, stops)

    wanted = BY_ID.get(name, 3 if end is None else end)
    inside = {each for each in stops if 0 <= each < len(WORDS)} | {wanted}
    run = import_folder(folder, tmp_path / "run").run
    export_run(run, tmp_path / "out", "best")
    guessed = end is None and name not in BY_ID
    for place in (folder, run.folder, tmp_path / "out"):
        ours = load_tokenizer(place)
        assert (ours.end, set(ours.stops)) == (wanted, inside)
        assert bool(ours.guessed) == (guessed and place != tmp_path / "out")
    assert AutoTokenizer.from_pretrained(tmp_path / "out").eos_token_id == wanted
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out").generation_config
    assert listed(again.eos_token_id) == inside


WRONG: list[tuple[str, dict[str, Any], str]] = [
    (CONFIG, {"eos_token_id": "4"}, "eos_token_id='4': it must be the id of a token, a list of ids, or null"),
    (CONFIG, {"eos_token_id": True}, "eos_token_id=True: it must"),
    (CONFIG, {"bos_token_id": 4.5}, "bos_token_id=4.5: it must"),
    (GENERATION, {"eos_token_id": [4, "x"]}, "eos_token_id=[4, 'x']: it must"),
    (GENERATION, {"eos_token_id": {"a": 1}}, "eos_token_id={'a': 1}: it must"),
    (TOKENS, {"eos_token": 4}, "eos_token=4: it must be the text of a token, or null"),
    (TOKENS, {"bos_token": ["<s>"]}, "bos_token=['<s>']: it must"),
    (TOKENS, {"eos_token": {"special": True}}, "eos_token={'special': True}: it must"),
    (MAP, {"pad_token": 0.5}, "pad_token=0.5: it must"),
]


@pytest.mark.parametrize(("name", "content", "said"), WRONG, ids=[said for *_, said in WRONG])
def test_what_is_no_token_is_one_sentence(
    base: Path, tmp_path: Path, name: str, content: dict[str, Any], said: str
) -> None:
    folder = made(base, tmp_path / "folder", {name: content})
    with pytest.raises(TapelessError) as caught:
        load_tokenizer(folder)
    assert str(caught.value).startswith(f"{folder / name} has {said}")
    assert str(caught.value).endswith(".")


def test_an_end_that_no_vocabulary_has_is_one_sentence(base: Path, tmp_path: Path) -> None:
    """transformers would add it behind the last of the model's."""
    folder = made(base, tmp_path / "folder", {TOKENS: {"eos_token": "<nowhere>"}})
    assert len(AutoTokenizer.from_pretrained(folder)) == len(WORDS) + 1
    with pytest.raises(TapelessError, match=r"has no token '<nowhere>', which the files beside it name as eos_token"):
        import_folder(folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_vocabulary_without_a_known_name_needs_a_file_that_says_it(base: Path, tmp_path: Path) -> None:
    folder = made(base, tmp_path / "folder", {})
    words = folder / "tokenizer.json"
    words.write_text(words.read_text().replace("</s>", "<|a|>").replace("<|endoftext|>", "<|b|>"))
    with pytest.raises(TapelessError, match=r"no token that is known to end a text: name the one .* as eos_token"):
        load_tokenizer(folder)
    (folder / TOKENS).write_text(json.dumps(END))
    assert load_tokenizer(folder).end_text == "<|end|>"


def test_a_guess_is_told_until_a_file_says_it(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made(base, tmp_path / "folder", {})
    said = "says which token ends a text, so '<|endoftext|>' is taken, by its name: if it is another, name it as"
    assert said in " ".join(screen("import", "folder", "--out", "run").split())
    assert [said in each for each in document("import", "folder", "--out", "again")["messages"]] == [True]
    (tmp_path / "text.txt").write_text("a b c d e f g h i j " * 40)
    assert said in " ".join(screen("tokenize", "text.txt", "--tokenizer", "folder", "--out", "tokens").split())
    told = document("tokenize", "text.txt", "--tokenizer", "run", "--out", "others")["messages"]
    assert [said in each for each in told] == [True]
    assert document("tokenize", "text.txt", "--tokenizer", "bytes", "--out", "bytes")["messages"] == []
    data = open_data(tmp_path / "others")
    assert said in Text(data, 8, 0).summary()
    (tmp_path / "folder" / TOKENS).write_text(json.dumps(END))
    assert document("import", "folder", "--out", "told")["messages"] == []
    assert said not in screen("import", "folder", "--out", "last")


def test_documents_end_with_it_in_training_and_a_run_that_begins_there(base: Path, tmp_path: Path) -> None:
    folder = made(base, tmp_path / "folder", {TOKENS: END, GENERATION: {"eos_token_id": [4, 5]}})
    source = tmp_path / "text"
    source.mkdir()
    for number, words in enumerate(("a b c", "d e f", "g h i", "j a d")):
        (source / f"{number}.txt").write_text(words)
    for spec in (folder, import_folder(folder, tmp_path / "run").run.folder):
        prepared = prepare(str(source), tmp_path / f"tokens-{spec.name}", tokenizer=str(spec), validation=0.3)
        data = open_data(prepared.folder)
        ids = data.training.window(0, len(data.training))
        assert prepared.meta.end == 4
        assert np.count_nonzero(ids == 4) == prepared.meta.training.documents > 1
        assert data.tokenizer is not None
        assert data.tokenizer.stops == (4, 5)


def test_writing_stops_where_transformers_does(base: Path, tmp_path: Path) -> None:
    """At the second of two ends, in a model without a template."""
    free = AutoModelForCausalLM.from_pretrained(base)
    prompt = [WORDS.index("a"), WORDS.index("b")]
    written = free.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False, pad_token_id=0)[0, 2:].tolist()
    fresh = [n for n, token in enumerate(written) if n and token not in written[:n] and token >= len(ADDED)]
    stop = written[fresh[0]]
    folder = made(base, tmp_path / "folder", {TOKENS: END, GENERATION: {"eos_token_id": [5, stop]}})
    theirs = AutoModelForCausalLM.from_pretrained(folder).generate(
        torch.tensor([prompt]), max_new_tokens=24, do_sample=False, pad_token_id=0
    )
    assert theirs[0, 2:].tolist() == written[: fresh[0] + 1]
    run = tapeless.load(import_folder(folder, tmp_path / "run").run.folder, backend="reference")
    assert run.generate("a b", 24, temperature=0).split() == [WORDS[each] for each in written[: fresh[0]]]


def test_an_end_that_is_a_word_alone_is_read_as_one_token_in_a_conversation(base: Path, tmp_path: Path) -> None:
    folder = made(base, tmp_path / "folder", {TOKENS: END | {"bos_token": "<s>"}})
    described = json.loads((folder / "tokenizer.json").read_text())
    described["added_tokens"] = [
        each for each in described["added_tokens"] if each["content"] not in ("<|end|>", "<s>")
    ]
    (folder / "tokenizer.json").write_text(json.dumps(described))
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    text = "<s>a b<|end|>c"
    assert (
        ours.encode_marked(text)[0].tolist() == theirs(text, add_special_tokens=False)["input_ids"] == [1, 6, 7, 4, 8]
    )
    assert 4 not in ours.encode("a <|end|>")
