"""`make llama-cpp`, with a reader of our own in llama.cpp's place: what it compares, and what it writes."""

from importlib import import_module

import numpy as np
import pytest
from gguf import GGUFReader

from tests.weights.test_gguf import read, walked

llamacpp = import_module("llamacpp")  # of benchmarks/, which is no package


def answered(wrong=0.0):
    """As llama.cpp would, but that one logit is `wrong`."""

    def asked_of(python, file, words_alone=False, said=()):
        values, tensors = read(file)
        ids = llamacpp.sequence()
        written: list[int] = []
        found = walked(values, tensors, np.array(ids))
        found[3, 7] += wrong * np.abs(found).max()
        for _ in range(llamacpp.CONTINUED):
            written.append(int(walked(values, tensors, np.array(ids + written))[-1].argmax()))
        return {"logits": found.tolist(), "written": written}

    return asked_of


def words_of(python, file, words_alone=False, said=()):
    field = GGUFReader(file).fields
    of = {name: field[f"tokenizer.ggml.{name}_token_id"].contents() for name in ("bos", "eos")}
    stops = [
        field[name].contents() for name in field if name.endswith(("eos_token_id", "eot_token_id", "eom_token_id"))
    ]
    template = field.get("tokenizer.chat_template")
    contents = None if template is None else template.contents()
    return {"begin": of["bos"], "end": of["eos"], "stops": stops, "template": contents}


@pytest.fixture
def words(tmp_path):
    llamacpp.ways()["GPT-2"].save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_logits_and_text_are_compared_with_ours(tmp_path, words, monkeypatch):
    monkeypatch.setattr(llamacpp, "MODELS", {name: llamacpp.MODELS[name] for name in ("GPT-2", "Qwen3")})
    monkeypatch.setattr(llamacpp, "CONTINUED", 3)
    monkeypatch.setattr(llamacpp, "asked_of", answered())
    found = list(llamacpp.compared("python", tmp_path, words))
    assert [(each.name, each.dtype) for each in found] == [
        (name, dtype) for name in ("GPT-2", "Qwen3") for dtype in ("float32", "float16")
    ]
    assert all(each.difference < 3e-6 and each.same == 3 for each in found)
    monkeypatch.setattr(llamacpp, "asked_of", answered(0.01))
    for file in tmp_path.glob("*.gguf"):
        file.unlink()
    assert all(0.005 < each.difference < 0.02 for each in llamacpp.compared("python", tmp_path, words))


def test_beginnings_and_ends_are_compared_and_another_is_not_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(llamacpp, "asked_of", words_of)
    (tmp_path / "sound").mkdir()
    found = {name: (begin, end) for name, begin, end, _ in llamacpp.ends("python", tmp_path / "sound")}
    assert found["nothing"] == ("<|endoftext|>", "<|endoftext|>")
    assert found["a beginning and an end"] == found["an end by its id"] == ("<s>", "<|end|>")
    monkeypatch.setattr(llamacpp, "asked_of", lambda *asked, **how: words_of(*asked, **how) | {"begin": 11})
    (tmp_path / "wrong").mkdir()
    with pytest.raises(SystemExit, match="begins, ends and stops at other tokens than were written"):
        list(llamacpp.ends("python", tmp_path / "wrong"))


def test_what_came_of_it_stands_between_its_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{llamacpp.BEGIN}\nof yesterday\n{llamacpp.END}\nafter\n")
    found = [llamacpp.Found("GPT-2", dtype, 1.5e-7, 24) for dtype in ("float32", "float16")]
    told = [("an end", "<s>", "<|end|>", "<|end|>, <|turn|>")]
    llamacpp.write(page, llamacpp.report(found, [("GPT-2", 3, 4)], told, "it"))
    written = page.read_text()
    assert "of yesterday" not in written
    assert written.startswith("before\n")
    assert written.endswith("after\n")
    assert "| GPT-2 | 1.5e-07 | 24 | 1.5e-07 | 24 |" in written
    assert "GPT-2 3 of 4." in written
    assert r"| an end | `<s>` | `<\|end\|>` | `<\|end\|>, <\|turn\|>` |" in written
    page.write_text("nothing")
    with pytest.raises(SystemExit, match="put both back"):
        llamacpp.write(page, "text")
    assert llamacpp.BEGIN in llamacpp.DOCS.read_text(encoding="utf-8")
