"""The layouts that people keep conversations in."""

import gzip
import json

import pytest

from tapeless.errors import TapelessError
from tapeless.tasks.chat.layouts import are_conversations, read_conversations

USER, SAID = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}
SAME = {
    "messages": {"messages": [USER, SAID], "prompt": "hi", "id": 7},
    "prompt": {"prompt": "hi", "completion": "ho"},
    "prompt of messages": {"prompt": [USER], "completion": [SAID]},
    "sharegpt": {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]},
    "parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}, SAID]
    },
}


def written(folder, *rows, name="chats.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("layout", SAME)
def test_every_layout_is_the_same_conversation(tmp_path, layout):
    source = written(tmp_path, SAME[layout])
    assert are_conversations(source)
    (found,) = read_conversations(source)
    assert found.messages == [USER, SAID]
    assert found.place == f"{source}, line 1"


def test_a_list_and_what_is_packed_or_in_utf16_are_read(tmp_path):
    listed = tmp_path / "share.json"
    listed.write_text(json.dumps([SAME["sharegpt"], SAME["prompt"]]))
    assert are_conversations(str(listed))
    assert [each.place for each in read_conversations(str(listed))] == [f"{listed}, line 1"] * 2
    lines = json.dumps(SAME["prompt"]) + "\n"
    packed, wide = tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl"
    packed.write_bytes(gzip.compress(lines.encode()))
    wide.write_bytes(lines.encode("utf-16"))
    for path in (packed, wide):
        assert are_conversations(str(path))
        assert [each.messages for each in read_conversations(str(path))] == [[USER, SAID]]


def test_what_a_template_may_know_is_kept(tmp_path):
    called = {"role": "assistant", "content": None, "tool_calls": [{"a": 1}]}
    (found,) = read_conversations(written(tmp_path, {"messages": [USER, called], "tools": [{"b": 2}]}))
    assert found.messages[1] == called | {"content": ""}
    assert found.tools == [{"b": 2}]


def test_what_is_text_stays_text(tmp_path):
    for name, content in {
        "a.jsonl": '{"text": "a", "messages": []}\n',
        "b.jsonl": '{"prompt": "a"}\n',
        "c.jsonl": "not json",
        "d.json": '{"messages": [1]}',
        "e.txt": '{"messages": []}',
        "f.jsonl": "[" * 100_000,
        "g.jsonl": '{"messages": 3, "body": "a"}',
    }.items():
        (tmp_path / name).write_text(content)
        assert not are_conversations(str(tmp_path / name)), name
    for name in ("missing.jsonl", "x" * 5000 + ".jsonl", "nul\0.jsonl", ""):
        assert not are_conversations(name)
    assert not are_conversations(str(tmp_path))


def test_what_was_meant_to_be_some_is_refused_as_such_unless_its_text_is_named(tmp_path):
    for content in ('{"messages": "x", "body": "a"}', '{"conversations": {}}'):
        source = written(tmp_path, json.loads(content))
        assert are_conversations(source)
        assert not are_conversations(source, named=True)
    assert are_conversations(written(tmp_path, SAME["prompt"]), named=True)


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_empty_file_is_called_empty(tmp_path, content):
    for path, written in ((tmp_path / "a.jsonl", content), (tmp_path / "b.jsonl.gz", gzip.compress(content))):
        path.write_bytes(written)
        with pytest.raises(TapelessError, match=rf"{path.name} is empty: give a file with text or conversations\."):
            are_conversations(str(path))


REFUSED = {
    "nobody answers: a conversation needs an assistant, .* and here user speaks": {"messages": [USER]},
    "nobody answers: .* here system, user speak$": {"messages": [{"role": "system", "content": "s"}, USER]},
    "nobody answers: .* here nobody speaks": {"messages": []},
    "there is no conversation in it, but 'question', 'answer'; it must have messages": {"question": "a", "answer": "b"},
    "a message must be an object with a role": {"messages": ["hi", SAID]},
    "what 'assistant' says must be text, not null": {"messages": [USER, {"role": "assistant", "content": None}]},
    "what 'user' says must be text, not a number": {"prompt": 7, "completion": "x"},
    "what 'user' says has parts that are no text": {
        "messages": [{"role": "user", "content": [{"type": "image_url"}]}, SAID]
    },
    "nobody knows who speaks as 'alien': say human": {"conversations": [{"from": "alien", "value": "x"}]},
    "it has messages and also prompt and completion, and one of them is the conversation: leave out the rest": {
        "messages": [USER, SAID],
        "prompt": "x",
        "completion": "y",
    },
    "it has messages and also conversations, and one": {"messages": [USER, SAID], "conversations": []},
    "messages holds text, and must hold a list of what was said": {"messages": "x", "id": 1},
    "conversations holds an object, and must": {"conversations": {"from": "human"}, "messages": None},
    "messages holds a number, and must": {"messages": 3},
    "tools holds text, and a template is told of a list of them": {"messages": [USER, SAID], "tools": "abc"},
    "each of conversations must be an object": {"conversations": [{"value": "x"}]},
}


@pytest.mark.parametrize("said", REFUSED)
def test_a_row_that_is_none_is_one_sentence_with_its_line(tmp_path, said):
    source = written(tmp_path, SAME["messages"], REFUSED[said])
    with pytest.raises(TapelessError, match=said.removesuffix("$")) as caught:
        list(read_conversations(source))
    assert str(caught.value).startswith(f"{source}, line 2: ")
    assert "\n" not in str(caught.value)


def test_a_damaged_file_is_one_sentence(tmp_path):
    good = json.dumps(SAME["prompt"])
    for name, content, said in (
        ("a.jsonl", good + "\n{", "line 2 is not JSON"),
        ("b.jsonl", good + "\n[1]\n", "line 2 holds a list"),
        ("c.json", f"[{good}, 3]", "line 1 holds a number"),
        ("f.json", "7", "it holds no list"),
        ("d.json", f"[{good},\n\n", "line 1 is not JSON"),
        ("e.jsonl", good + "\n" + '{"a": "\udcff"}', "is not UTF-8"),
    ):
        (tmp_path / name).write_bytes(content.encode("utf-8", "surrogateescape"))
        with pytest.raises(TapelessError, match=said):
            list(read_conversations(str(tmp_path / name)))
